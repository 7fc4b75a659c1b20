"""The charts of the page that a report has not: of a run in progress, and of several runs."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from dpfed.live.state import RunState
from dpfed.privacy.promise import round_up
from dpfed.report.curves import training_plots
from dpfed.report.plots import HEIGHT, WIDTH, comparison_plot, progress_plot
from dpfed.report.results import headlines, label
from dpfed.report.style import INK, MUTED, SERIES, TARGET, TRAINED, figure, inline_svg

_DASHES = (0, (4, 3))
_LONGEST = 30  # characters of a run's name in a chart
_DRAWING = threading.Lock()  # matplotlib's fonts are shared


def charts_of(one: RunState) -> list[tuple[str, Markup]]:
    """A run's charts with their titles."""
    with _DRAWING:
        drawn: list[tuple[str, Figure]] = []
        if one.spent and one.planned:
            drawn.append(("Epsilon over steps, against the plan", epsilon_chart([one])))
        first = headlines(one.table, 4)
        if first and len({item["step"] for item in one.evaluations if item["model"] == "trained"}) > 1:
            drawn.append(("Utility over steps", progress_plot(list(one.evaluations), [item.name for item in first])))
        return [(title, inline_svg(canvas, title)) for title, canvas in drawn]


def training_of(one: RunState) -> list[tuple[str, Markup]]:
    """Charts of training: what was released of it, the learning rate, the noisy gradient."""
    with _DRAWING:
        clip = one.plan.bounding.clip_norm if one.plan is not None and one.plan.bounding.clipping == "fixed" else None
        drawn = training_plots(one.phases, clip)
        size = (3.6, 2.6) if drawn else (WIDTH, HEIGHT)  # three beside each other, or two
        for name, title in (("learning_rate", "Learning rate"), ("noisy_gradient_norm", "Norm of the noisy gradient")):
            if len(series := one.series(name)) > 1:
                drawn.append((title, _line_chart(series, one.planned, size)))
        return [(title, inline_svg(canvas, title)) for title, canvas in drawn]


def comparison_of(runs: Sequence[RunState]) -> list[tuple[str, Markup]]:
    """Charts of several runs side by side."""
    with _DRAWING:
        drawn: list[tuple[str, Figure]] = []
        promising = [one for one in runs if one.spent and one.planned]
        if shown := promising[: len(SERIES)]:
            of = f" of {len(shown)} of the {len(promising)} runs" if len(shown) < len(promising) else ""
            drawn.append((f"Epsilon over steps{of} (dashed: planned)", epsilon_chart(shown)))
        tables = [{item.name: item for item in one.table} for one in runs]
        union = {name: item for table in tables for name, item in table.items()}
        if first := headlines(list(union.values()), 1):
            name = first[0].name
            names = [
                f"{_short(one.name)} ({'no guarantee' if one.epsilon is None else 'epsilon ' + round_up(one.epsilon)})"
                for one in runs
            ]
            chart = comparison_plot(names, [table.get(name) for table in tables], [one.epsilon is None for one in runs])
            drawn.append((f"{label(name)}: now (bar) and before training (orange line)", chart))
        return [(title, inline_svg(canvas, title)) for title, canvas in drawn]


def epsilon_chart(runs: Sequence[RunState]) -> Figure:
    """What was spent over steps (a line), what is planned (dashed), and a site's budget (dotted).

    Args:
        runs: each with steps that were spent; one has its figures written into the chart, several have a legend.
    """
    canvas, axes = figure(WIDTH, HEIGHT)
    alone, tops, last = len(runs) == 1, [0.0], 1
    for one, colour in zip(runs, SERIES, strict=False):
        expected, spent = one.expected, one.spent
        axes.plot(*zip(*expected, strict=True), color=TARGET if alone else colour, linewidth=1.2, linestyle=_DASHES)
        axes.plot(*zip(*spent, strict=True), color=colour, linewidth=2, label=_short(one.name))
        axes.plot(*spent[-1], "o", color=colour, markersize=5, clip_on=False)
        tops += [value for _, value in (*expected, *spent)]
        last = max(last, one.planned, spent[-1][0])
    if alone:
        _say(axes, runs[0], tops)
    else:
        axes.legend(loc="lower right", frameon=False, fontsize=8.5, labelcolor=INK, handlelength=1)
    axes.set_ylim(0, 1.18 * max(tops) or 1)
    axes.set_xlim(0, last * 1.02)
    axes.set_xlabel("step", color=MUTED, fontsize=9)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    return canvas


def _short(name: str) -> str:
    """As much of a name as a chart has room for: its end, which tells the runs of a sweep apart."""
    return name if len(name) <= _LONGEST else f"…{name[1 - _LONGEST :]}"


def _say(axes, one: RunState, tops: list[float]) -> None:  # type: ignore[no-untyped-def]
    """Writes one run's figures beside its lines."""
    planned, (step, spent) = one.expected[-1][1], one.spent[-1]
    axes.annotate(
        f"planned {round_up(planned)}",
        one.expected[-1],
        (0, 6),
        textcoords="offset points",
        ha="right",
        color=TARGET,
        fontsize=9,
    )
    right = step > 0.7 * one.planned
    axes.annotate(
        f"spent {round_up(spent)}",
        (step, spent),
        (-2, -26) if right else (6, -16),
        textcoords="offset points",
        ha="right" if right else "left",
        color=TRAINED,
        fontsize=9,
        fontweight="bold",
    )
    if one.budget is not None:
        axes.axhline(one.budget, color=MUTED, linewidth=1.2, linestyle=(0, (1, 2)))
        text = f"budget {round_up(one.budget)}"
        axes.annotate(text, (0, one.budget), (2, 4), textcoords="offset points", color=MUTED, fontsize=9)
        tops.append(one.budget)


def _line_chart(series: Sequence[tuple[int, float]], planned: int, size: tuple[float, float]) -> Figure:
    canvas, axes = figure(*size)
    axes.plot(*zip(*series, strict=True), color=TRAINED, linewidth=2)
    axes.set_ylim(0, 1.12 * max(value for _, value in series) or 1)
    axes.set_xlim(0, max(planned, series[-1][0]) * 1.02)
    axes.set_xlabel("step", color=MUTED, fontsize=9)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    return canvas
