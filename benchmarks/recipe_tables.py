"""Tables of what the ingredients of recipes bring."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.recipes import LADDERS, MANY, REHEARSED
from benchmarks.record import figures
from benchmarks.utility_tables import RETRIEVED, SHORT, spread

_FIRST = ("image_to_text_R@1", "text_to_image_R@1")  # of many pairs: R@10 is 100 % everywhere


def rungs(situation: str) -> str:
    """The rungs of one recipe, and what the weights know before."""
    ladder = LADDERS[situation]
    runs = [run for run in figures("recipes")["runs"] if run["situation"] == situation]
    metrics = SHORT if situation == "small-images" else RETRIEVED
    names = "200-NN / linear probe" if situation == "small-images" else "R@10, image to text / text to image"
    lines = [f"| {names} | before training | after |", "|---|---|---|"]
    for rung in ladder.rungs:
        own = [run for run in runs if run["rung"] == rung.words]
        if not own:
            continue
        best = max((run for run in own if run["run"] == 0), key=lambda run: sum(run["after"].values()))["rate"]
        chosen = [run for run in own if run["rate"] == best]
        starts = [run["before"] for run in chosen]
        before = _figures(starts[:1] if starts[0] == starts[-1] else starts, metrics)  # a start that is made once is the same
        after = _figures([run["after"] for run in chosen], metrics)
        lines.append(f"| {rung.words} | {before} | {after} |")
    tried = ", ".join(f"{rate:g}" for rate in ladder.rates)
    note = f"Percent, epsilon 1, the best of the rates {tried}; two runs each, ± their standard deviation."
    return "\n".join([*lines, "", note])


def rehearsed() -> str:
    """The rungs of the recipe for many pairs."""
    lines = ["| | R@1, image to text / text to image | sigma |", "|---|---|---|"]
    [rehearsal] = (run for run in figures("recipes")["runs"] if run["situation"] == "large-image-text")
    _, *found = rehearsal["rehearsed"]  # the first is the configuration as it is
    for (words, _), one in zip(REHEARSED.values(), found, strict=True):
        after = {line["name"]: line["value"] for line in one["evaluations"] if line["model"] == "trained"}
        lines.append(f"| {words} | {_figures([after], _FIRST)} | {one['noise_multiplier']:.2f} |")
    note = f"Percent, epsilon 1 for {MANY:,} pairs. Rehearsed on generated shapes with the small CNN, one run each."
    return "\n".join([*lines, "", note])


def _figures(measured: list[dict[str, float]], metrics: Iterable[str]) -> str:
    return " / ".join(spread(one[metric] for one in measured) for metric in metrics)
