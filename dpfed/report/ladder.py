"""Shows the gain of each change in a sequence of runs: the keys that a run changed, and the difference in a metric."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence

from dpfed.evaluation.intervals import apart
from dpfed.files.toml_file import leaves
from dpfed.report.results import Result, difference, shown
from dpfed.report.view import RunView

_MOST = 6  # keys shown for each rung
_NAMES = ("name", "data.path", "data.stores")  # keys that only name the run or its files


def ladder(runs: Sequence[RunView], figures: Sequence[Result | None]) -> list[tuple[str, str, str, str]]:
    """Returns a rung for each run: its name, the keys that it changed, its figure, and the difference from the rung before.

    The first rung is the first run's model before training, if that was measured.

    Args:
        runs: Runs in order; each adds something to the run before.
        figures: Result of the same metric for each run; ``None``: it was not measured.
    """
    rungs = []
    first = figures[0]
    if first is not None and first.untrained is not None:
        rungs.append(("before training", "", shown(first.untrained, first.untrained_interval), ""))
    for number, (run, figure) in enumerate(zip(runs, figures, strict=True)):
        if figure is None:
            rungs.append((run.name, _changed(runs, number), "not measured", "–"))
            continue
        moved = figure.difference if number == 0 else _difference(figures[number - 1], figure)
        rungs.append((run.name, _changed(runs, number), shown(figure.trained, figure.trained_interval), moved))
    return rungs


def _difference(below: Result | None, figure: Result) -> str:
    if below is None or below.trained is None or figure.trained is None:
        return "–"
    change = None
    if below.trained_interval is not None and figure.trained_interval is not None:
        change = apart(figure.trained, figure.trained_interval, below.trained, below.trained_interval)
    return difference(figure.trained - below.trained, change)


def _changed(runs: Sequence[RunView], number: int) -> str:
    """Returns the keys that differ from the previous run's configuration, with their new values."""
    if number == 0:
        return ""
    before, after = (leaves(tomllib.loads(run.config_toml)) for run in runs[number - 1 : number + 1])
    keys = [key for key in {**before, **after} if before.get(key) != after.get(key) and key not in _NAMES]
    records = [run.results["run"]["data"].get("fingerprint") for run in runs[number - 1 : number + 1]]
    named = ["other records"] * (records[0] != records[1])
    named += [f"{key} = {after[key]}" if key in after else f"no {key}" for key in keys[:_MOST]]
    more = [f"{len(keys) - _MOST} more"] * (len(keys) > _MOST)
    return ", ".join(named + more) or "no key of the configuration"
