"""Tables of what the ingredients of recipes bring, and of ways to use a noisy sum that were tried."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from benchmarks.recipes import LADDERS, MANY, REHEARSED
from benchmarks.record import figures
from benchmarks.tried import BATCH, EPSILONS, OF_ADAPTERS, TASKS, TRIED

_RETRIEVED = ("image_to_text_R@10", "text_to_image_R@10")
_FIRST = ("image_to_text_R@1", "text_to_image_R@1")  # of many pairs: R@10 is 100 % everywhere
_RECOGNISED = ("knn3_accuracy", "knn200_accuracy", "linear_probe_accuracy")
_TASKS = {"scratch": "shapes from scratch", "adaptation": "adaptation", "cifar10": "CIFAR-10"}


def rungs(situation: str) -> str:
    """The rungs of one recipe, and what the weights know before."""
    ladder = LADDERS[situation]
    runs = [run for run in figures("recipes")["runs"] if run["situation"] == situation]
    metrics = _RECOGNISED if situation == "small-images" else _RETRIEVED
    names = "3-NN / 200-NN / linear probe" if situation == "small-images" else "R@10, image to text / text to image"
    lines = [f"| | before training: {names} | after | best of the rates | runs |", "|---|---|---|---|---|"]
    for number, rung in enumerate(ladder.rungs):
        own = [run for run in runs if run["rung"] == rung.words]
        if not own:
            continue
        best = max((run for run in own if run["run"] == 0), key=lambda run: sum(run["after"].values()))["rate"]
        tried = ", ".join(f"{rate:g}" for rate in ladder.rates_of(number))
        chosen = [run for run in own if run["rate"] == best]
        before, after = (_figures([run[when] for run in chosen], metrics) for when in ("before", "after"))
        lines.append(f"| {rung.words} | {before} | {after} | {best:g} of {tried} | {len(chosen)} |")
    return "\n".join([*lines, "", f"Percent, epsilon 1. {_SPREAD}"])


_SPREAD = "± is the standard deviation of the runs, where there are several. `python -m benchmarks.recipes DATA`"


def rehearsed() -> str:
    """The rungs of the recipe for many pairs."""
    lines = ["| | R@1, image to text / text to image | sigma | seconds |", "|---|---|---|---|"]
    _, *found = figures("recipes").get("rehearsed", [None])  # the first is the configuration as it is
    for (words, _), one in zip(REHEARSED.values(), found, strict=False):
        after = {line["name"]: line["value"] for line in one["evaluations"] if line["model"] == "trained"}
        lines.append(f"| {words} | {_figures([after], _FIRST)} | {one['noise_multiplier']:.2f} | {one['seconds']:.0f} |")
    note = (
        f"Percent, epsilon 1 for {MANY:,} pairs. Rehearsed on generated shapes with the small CNN, one run each, on one core. "
        "`python -m benchmarks.recipes DATA`"
    )
    return "\n".join([*lines, "", note])


def tried() -> str:
    """What each way to use a noisy sum changes, in points, on each task and at each epsilon."""
    runs = {(run["tried"], run["task"], run["epsilon"]): run["after"] for run in figures("tried")["runs"]}
    epsilons = [epsilon for epsilon in EPSILONS if any(key[2] == epsilon for key in runs)]
    columns = [(task, epsilon) for task in TASKS for epsilon in epsilons]
    head = " | ".join(f"{_TASKS[task]}, epsilon {epsilon}" for task, epsilon in columns)
    plain, *others = TRIED
    lines = [f"| | {head} |", "|---" * (len(columns) + 1) + "|"]
    cells = (_mean(runs.get((plain, *column))) for column in columns)
    lines.append(f"| {plain}, percent | {' | '.join(f'{100 * cell:.1f}' for cell in cells)} |")
    for what in others:
        if not any((what, *column) in runs for column in columns):
            continue  # not tried yet
        changes = []
        for column in columns:
            found, without = _mean(runs.get((what, *column))), _mean(runs.get((plain, *column)))
            changes.append("" if found != found or without != without else f"{100 * (found - without):+.1f}")
        lines.append(f"| {what} | {' | '.join(changes)} |")
    return "\n".join(
        [
            *lines,
            "",
            "Change in points of the mean of two figures: R@10 in both directions, or 200-NN and linear probe. One run each, "
            f"so changes of two points or less show nothing. B = {BATCH:,}. {' and '.join(OF_ADAPTERS)}: only where there are "
            "adapters. `python -m benchmarks.tried DATA`",
        ]
    )


def _mean(found: dict[str, float] | None) -> float:
    return statistics.mean(found.values()) if found else float("nan")


def _figures(measured: list[dict[str, float]], metrics: Iterable[str]) -> str:
    return " / ".join(_spread([100 * one[metric] for one in measured]) for metric in metrics)


def _spread(values: list[float]) -> str:
    mean = f"{statistics.mean(values):.1f}"
    return mean if len(set(values)) == 1 else f"{mean} ± {statistics.stdev(values):.1f}"
