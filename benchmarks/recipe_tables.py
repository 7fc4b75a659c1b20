"""Tables of what each ingredient of a recipe adds, for docs/results.md."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.record import figures, made_by
from benchmarks.utility_tables import RETRIEVED, SHORT, spread

SITUATIONS = ("small-images", "adaptation", "federation")
_FIRST = ("image_to_text_R@1", "text_to_image_R@1")  # of many pairs: R@10 is 100 % everywhere
_REHEARSED = (
    "B = 2,048 in groups of 4, random weights",
    "and B = 16,384",
    "and groups of 16",
    "and a procedural initialisation",
)


def rungs(situation: str) -> str:
    """Returns the table of the rungs of one recipe, before and after training.

    Args:
        situation: Name of the recipe, one of `SITUATIONS`.
    """
    runs = [run for run in figures("recipes")["runs"] if run["situation"] == situation]
    metrics = SHORT if situation == "small-images" else RETRIEVED
    names = "200-NN / linear probe" if situation == "small-images" else "R@10, image to text / text to image"
    lines = [f"| {names} | before training | after |", "|---|---|---|"]
    for words in dict.fromkeys(run["rung"] for run in runs):
        candidates = [run for run in runs if run["rung"] == words]
        best = max((run for run in candidates if run["run"] == 0), key=lambda run: sum(run["after"].values()))["rate"]
        chosen = [run for run in candidates if run["rate"] == best]
        starts = [run["before"] for run in chosen]
        before = _figures(starts[:1] if starts[0] == starts[-1] else starts, metrics)  # a start that is made once is the same
        after = _figures([run["after"] for run in chosen], metrics)
        lines.append(f"| {words} | {before} | {after} |")
    tried = ", ".join(f"{rate:g}" for rate in sorted({run["rate"] for run in runs}))
    note = f"Percent, epsilon 1, the best of the rates {tried}; two runs each, ± their standard deviation."
    return "\n".join([*lines, "", f"{note} {made_by('recipes')}"])


def rehearsed() -> str:
    """Returns the table of the rungs of the recipe for many pairs, from a rehearsal."""
    lines = ["| | R@1, image to text / text to image | sigma |", "|---|---|---|"]
    [rehearsal] = (run for run in figures("recipes")["runs"] if run["situation"] == "large-image-text")
    _, *results = rehearsal["rehearsed"]  # the first is the configuration as it is
    for words, result in zip(_REHEARSED, results, strict=True):
        after = {line["name"]: line["value"] for line in result["evaluations"] if line["model"] == "trained"}
        lines.append(f"| {words} | {_figures([after], _FIRST)} | {result['noise_multiplier']:.2f} |")
    many = f"Percent, epsilon 1 for {rehearsal['records']:,} pairs."
    note = f"{many} Rehearsed on generated shapes with the small CNN, one run each."
    return "\n".join([*lines, "", f"{note} {made_by('recipes')}"])


def _figures(measured: list[dict[str, float]], metrics: Iterable[str]) -> str:
    return " / ".join(spread(values[metric] for values in measured) for metric in metrics)
