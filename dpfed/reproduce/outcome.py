"""The outcome of an experiment: our figures beside the published figures, as rows, a CSV file and a page of all runs."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpfed.artifacts.view import read_view
from dpfed.progress import Progress, Silent
from dpfed.report.html import write_report
from dpfed.report.view import RunView
from dpfed.reproduce.published import beside
from dpfed.reproduce.runs import Planned, Request, differences, plan_runs, require_right_data, train
from dpfed.runs.sweep import joint_promise


@dataclass(frozen=True)
class Row:
    """A figure that dpfed measured, with the paper's figure if the paper has it.

    Attributes:
        label: Name of the method in the paper.
        method: Value of ``bounding.method``.
        setting: Setting that distinguishes the run from others of the same method; empty: no setting is needed.
        x: Value on the axis of the experiment; ``None``: the experiment has no axis.
        epsilon: Epsilon of the guarantee; infinity: no privacy.
        metric: Name of the metric in results.json, without the label in brackets.
        ours: Our figure, percent; ``None``: not measured.
        published: Figure of the paper, percent; ``None``: the paper has none.
        sound: Whether the run's guarantee holds; ``False`` without privacy.
        run: Name of the run.
        interval: 95% confidence interval of `ours` over the draw of held-out records, percent; ``None``: not known.
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
    def name(self) -> str:
        """The label, followed by the setting unless it is empty."""
        return f"{self.label}, {self.setting}" if self.setting else self.label


@dataclass(frozen=True)
class Outcome:
    """The figures of an experiment.

    Attributes:
        request: Request of the user.
        rows: Figures.
        runs: Finished runs, by name.
        scale: Description of the scale, one or two sentences.
        promise: Joint privacy guarantee of all runs, in words.
    """

    request: Request
    rows: list[Row]
    runs: dict[str, RunView]
    scale: str
    promise: str

    def lines(self) -> list[list[Row]]:
        """Groups the rows by run and variant; each group has one row for each metric."""
        width = len(self.request.data.metrics)
        return [self.rows[start : start + width] for start in range(0, len(self.rows), width)]

    def write(self) -> dict[str, Path]:
        """Writes ``results.csv`` and ``comparison.html``, and replaces files of an earlier call.

        Their folder lies in the request's `out`, and has the request's `name`.

        Returns:
            The paths of the files, with the keys ``"figures"`` and ``"page"``.
        """
        folder = self.request.out / self.request.name
        folder.mkdir(parents=True, exist_ok=True)
        files = {"figures": folder / "results.csv", "page": folder / "comparison.html"}
        columns = "experiment scale data method setting x epsilon metric ours low high published sound run".split()
        head = (self.request.experiment.name, self.request.scale, self.request.data.name)
        with open(files["figures"], "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(columns)
            for row in self.rows:
                ours = map(_rounded, (row.ours, *(row.interval or (None, None))))
                figures = (row.x, row.epsilon, row.metric, *ours, row.published, row.sound, row.run)
                writer.writerow([*head, row.label, row.setting, *("" if value is None else value for value in figures)])
        write_report(files["page"], list(self.runs.values()), f"{self.scale} {self.promise}")
        return files


def reproduce(request: Request, progress: Progress | None = None) -> Outcome:
    """Trains the runs of an experiment that are not finished, and compares the figures of all runs with the published ones.

    Args:
        request: Request of the user.
        progress: Display of the stages; ``None``: no display.

    Raises:
        UserError: If `plan_runs`, `require_right_data`, `train` or `read_view` raises it.
    """
    progress = progress or Silent()
    planned = plan_runs(request)
    require_right_data(request, planned, progress)
    train(planned, progress)
    views = {item.config.name: read_view(item.folder) for item in planned}
    return Outcome(
        request,
        [row for item in planned for row in _rows(request, item, views[item.config.name])],
        views,
        differences(request, planned),
        f"{joint_promise(list(views.values()))} Runs of other experiments on the same records add to it.",
    )


def _rows(request: Request, item: Planned, view: RunView) -> list[Row]:
    rows = []
    for metric in request.data.metrics:
        result = next((result for result in view.table if result.name.partition("[")[0] == metric), None)
        ours = None if result is None else result.untrained if item.variant.untrained else result.trained
        bars = None if result is None else result.untrained_interval if item.variant.untrained else result.trained_interval
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
    figure = beside("dp-gcl", request.experiment.table, data=request.data.name, **key)
    return figure.value if figure is not None and isinstance(figure.value, float) else None


def _rounded(value: float | None) -> float | None:
    return value if value is None or not math.isfinite(value) else round(value, 2)
