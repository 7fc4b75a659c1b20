"""What an experiment gave: our figures beside the published ones, and what each run's method is."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpfed.artifacts.directory import RunDirectory
from dpfed.artifacts.view import RunView
from dpfed.config import Config
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.promise import round_up
from dpfed.progress import Silent, Watcher
from dpfed.reproduce.held_out import relative_losses, seconds_per_step
from dpfed.reproduce.published import beside
from dpfed.reproduce.runs import Planned, Request, differences, plan_runs, require_public, require_right_data, train
from dpfed.runs.sweep import joint_promise


@dataclass(frozen=True)
class Row:
    """One figure of ours, with the paper's where there is one.

    Attributes:
        label: the method, as the paper calls it.
        method: ``bounding.method``.
        setting: what else tells it apart.
        x: on the axis of the experiment.
        epsilon: of the promise; infinity: none.
        metric: as in results.json.
        ours: percent; ``None``: not measured.
        published: percent.
        sound: whether the run's guarantee holds; False without privacy.
        run: its name.
        interval: 95%, of ours, over the draw of held-out records, percent; ``None``: not known.
    """

    label: str
    method: str
    setting: str
    x: float | None
    epsilon: float
    metric: str
    ours: float | None
    published: float | None
    sound: bool
    run: str
    interval: tuple[float, float] | None = None

    @property
    def difference(self) -> float | None:
        """Ours minus the published, points."""
        return None if self.ours is None or self.published is None else self.ours - self.published

    @property
    def name(self) -> str:
        """Label and setting."""
        return f"{self.label}, {self.setting}" if self.setting else self.label


@dataclass(frozen=True)
class Mechanism:
    """What one method does to a step.

    Attributes:
        method: ``bounding.method``.
        title: for people.
        sound: whether its claim holds.
        epsilon: spent; ``None``: no promise, or none that holds.
        sensitivity: most that one record moves the sum; ``None`` without privacy.
        noise: standard deviation on each coordinate of the gradient that the optimizer gets: noise over divisor; ``None``
            without privacy.
        seconds: of processor time per step.
        cost: `seconds` over those of the group method; ``None`` where that one did not run.
    """

    method: str
    title: str
    sound: bool
    epsilon: float | None
    sensitivity: float | None
    noise: float | None
    seconds: float | None = None
    cost: float | None = None


@dataclass(frozen=True)
class Outcome:
    """All that tables, charts and page need.

    Attributes:
        request: what was asked for.
        rows: the figures.
        mechanisms: of the methods, in the experiment's order; several of one whose runs differ in promise or noise.
        runs: the finished runs, by name.
        labels: what each run is called in charts of curves.
        losses: curves of the relative loss, by run.
        ratios: signal-to-noise ratio of the first gradient, by run.
        scale: what the scale is, in a sentence.
        promise: what all runs together promise, in a sentence.
    """

    request: Request
    rows: list[Row]
    mechanisms: list[Mechanism]
    runs: dict[str, RunView]
    labels: dict[str, str]
    scale: str
    promise: str
    losses: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)

    def best(self, method: str) -> list[Row]:
        """A method's figures in the run that did best on average over its metrics."""
        runs: dict[tuple[str, str], list[Row]] = {}
        for row in self.rows:
            if row.method == method:
                runs.setdefault((row.name, row.run), []).append(row)
        return max(runs.values(), key=lambda rows: sum(row.ours or 0.0 for row in rows))

    def write_csv(self, path: Path) -> None:
        """One figure a row."""
        columns = (
            "experiment",
            "scale",
            "data",
            "method",
            "setting",
            "x",
            "epsilon",
            "metric",
            "ours",
            "low",
            "high",
            "published",
            "run",
        )
        with open(path, "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(columns)
            head = (self.request.experiment.name, self.request.scale, self.request.data.name)
            for row in self.rows:
                low, high = row.interval or (None, None)
                ours = map(_rounded, (row.ours, low, high))
                figures = (row.x, row.epsilon, row.metric, *ours, row.published, row.run)
                writer.writerow([*head, row.label, row.setting, *("" if value is None else value for value in figures)])


def reproduce(request: Request, watcher: Watcher | None = None) -> Outcome:
    """Trains what an experiment needs and is not there yet, and compares.

    Raises:
        UserError: see `plan_runs` and `train`.
    """
    watcher = watcher or Silent()
    experiment = request.experiment
    planned = plan_runs(request)
    require_right_data(request, planned, watcher)
    if experiment.needs_public:
        require_public(planned, watcher)
    train(planned, watcher)
    views = {item.config.name: RunView.read(item.folder) for item in planned}
    trained = {item.config.name: item for item in planned if not item.variant.untrained}
    folders = {name: RunDirectory.open(item.folder) for name, item in trained.items()}
    return Outcome(
        request,
        [row for item in planned for row in _rows(request, item, views[item.config.name])],
        _mechanisms(experiment.timed, list(trained.values()), views, watcher),
        views,
        {name: _label(request, item) for name, item in trained.items()},
        differences(request, planned),
        f"{joint_promise(list(views.values()))} Runs of other experiments on the same records count, too.",
        {name: relative_losses(run) for name, run in folders.items()} if "loss" in experiment.charts else {},
        {name: ratio for name, run in folders.items() if (ratio := _first_ratio(run)) is not None} if experiment.raw else {},
    )


def _label(request: Request, item: Planned) -> str:
    own = "privacy.epsilon" in item.variant.changes or item.epsilon == math.inf
    return (
        item.variant.label if own or len(request.epsilons) == 1 else f"{item.variant.label}, epsilon {round_up(item.epsilon)}"
    )


def _rows(request: Request, item: Planned, view: RunView) -> list[Row]:
    rows = []
    for metric in request.data.metrics:
        found = next((result for result in view.table if result.name.partition("[")[0] == metric), None)
        ours = None if found is None else found.untrained if item.variant.untrained else found.trained
        bars = None if found is None else found.untrained_interval if item.variant.untrained else found.trained_interval
        rows.append(
            Row(
                item.variant.label,
                item.variant.method,
                item.variant.setting,
                item.variant.x,
                item.epsilon,
                metric,
                None if ours is None else 100 * ours,
                _published(request, item, metric),
                not view.void,
                item.config.name,
                None if bars is None else (100 * bars[0], 100 * bars[1]),
            )
        )
    return rows


def _published(request: Request, item: Planned, metric: str) -> float | None:
    if request.experiment.table is None:
        return None
    key: dict[str, Any] = {
        "method": item.variant.label,
        "setting": item.variant.setting,
        "epsilon": item.epsilon,
        "metric": metric,
    }
    found = beside("dp-gcl", request.experiment.table, data=request.data.name, **key)
    return found.value if found is not None and isinstance(found.value, float) else None


def _mechanisms(timed: bool, trained: list[Planned], views: dict[str, RunView], watcher: Watcher) -> list[Mechanism]:
    """One for each method, or more where its runs differ in what is promised or in how much noise that takes."""
    first: dict[str, Config] = {}
    for item in trained:
        first.setdefault(item.variant.method, item.config)
    seconds: dict[str, float] = {}
    if timed:
        watcher.note("times the steps of the methods in turns")
        seconds = seconds_per_step(first)
    made: dict[tuple[object, ...], Mechanism] = {}
    for item in trained:
        method = item.variant.method
        plan, view = Ledger.open(RunDirectory.open(item.folder).ledger).plan, views[item.config.name]
        own = seconds.get(method)
        mechanism = Mechanism(
            method,
            plan.bounding.method.title,
            plan.bounding.method.sound and plan.private,
            None if view.void else view.epsilon,
            plan.sensitivity if plan.private else None,
            plan.noise_std / plan.divisor if plan.private else None,
            own,
            own / seconds["group"] if own is not None and "group" in seconds else None,
        )
        made.setdefault((method, item.epsilon, mechanism.sensitivity, mechanism.noise), mechanism)
    order = list(first)
    return sorted(made.values(), key=lambda mechanism: order.index(mechanism.method))


def _first_ratio(run: RunDirectory) -> float | None:
    """Norm of the first step's sum over that of its noise, where raw diagnostics were written."""
    if not run.diagnostics.is_file():
        return None
    with open(run.diagnostics, encoding="utf-8") as file:
        return json.loads(file.readline())["snr"]


def _rounded(value: float | None) -> float | None:
    return value if value is None or not math.isfinite(value) else round(value, 2)
