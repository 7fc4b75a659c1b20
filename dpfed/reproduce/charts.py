"""The charts of an experiment, in the look of the reports. Blue is ours, orange the paper's, grey what has no guarantee."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from dpfed.privacy.promise import round_up
from dpfed.report.results import label
from dpfed.report.style import INK, MUTED, PAPER, RULE, SERIES, TARGET, TRAINED, UNTRAINED, quiet
from dpfed.reproduce.outcome import Outcome, Row

_WIDTH = 10.0  # inches, whatever stands side by side: so all text on a page has one size
Curves = dict[str, list[tuple[float, float]]]  # by label


def charts(outcome: Outcome) -> dict[str, Figure]:
    """Every chart of the experiment, by the title that a page gives it."""
    return {title: draw(outcome) for title, draw in (_CHARTS[name] for name in outcome.request.experiment.charts)}


def _bars(outcome: Outcome) -> Figure:
    epsilons = list(dict.fromkeys(row.epsilon for row in outcome.rows))
    metrics = outcome.request.data.metrics
    most = max(sum(row.epsilon == epsilon for row in outcome.rows) for epsilon in epsilons) // len(metrics)
    canvas, panels = _panels(len(epsilons), len(metrics), 0.42 * most + 1.0)
    for across, epsilon in zip(panels, epsilons, strict=True):
        for axes, metric in zip(across, metrics, strict=True):
            rows = [row for row in outcome.rows if (row.epsilon, row.metric) == (epsilon, metric)]
            _bar_panel(axes, rows)
            promise = "no privacy" if epsilon == float("inf") else f"epsilon {round_up(epsilon)}"
            axes.set_title(f"{label(metric)}, {promise}", fontsize=9.5, color=INK, loc="left")
    return canvas


def _bar_panel(axes: Axes, rows: list[Row]) -> None:
    best = max([value for row in rows for value in (row.ours, row.published) if value is not None] or [1.0]) or 1.0
    for y, row in enumerate(rows):
        if row.ours is not None:
            axes.barh(y, row.ours, height=0.6, color=TRAINED if row.sound else UNTRAINED)
        if row.published is not None:
            axes.plot([row.published] * 2, [y - 0.38, y + 0.38], color=TARGET, linewidth=2, solid_capstyle="butt")
        words = ["–" if row.ours is None else f"{row.ours:.1f}"]
        words += [] if row.published is None else [f"(paper {row.published:.1f})"]
        end = max(value for value in (row.ours, row.published, 0.0) if value is not None)
        _annotate(axes, " ".join(words), (end, y), INK)
    _across(axes, [row.name for row in rows])
    axes.set_xlim(0, 1.35 * best)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} %"))


def _steps(outcome: Outcome) -> Figure:
    metrics = outcome.request.data.metrics
    canvas, ((*panels,),) = _panels(1, len(metrics), 3.0)
    for axes, metric in zip(panels, metrics, strict=True):
        curves: Curves = {}
        for name, view in outcome.runs.items():
            found = [item for item in view.evaluations if item["name"].partition("[")[0] == metric]
            curves[outcome.labels[name]] = sorted((item["step"], 100 * item["value"]) for item in found)
        _curve_panel(axes, outcome, curves, "step", f"{label(metric)}, percent")
    _legend(canvas, panels[0])
    return canvas


def _loss(outcome: Outcome) -> Figure:
    canvas, (((axes,),)) = _panels(1, 1, 3.2)
    curves = {outcome.labels[name]: [(float(step), loss) for step, loss in curve] for name, curve in outcome.losses.items()}
    _curve_panel(axes, outcome, curves, "step", "held-out loss over that before training")
    _legend(canvas, axes)
    return canvas


def _line(outcome: Outcome) -> Figure:
    metrics = outcome.request.data.metrics
    canvas, ((*panels,),) = _panels(1, len(metrics), 3.0)
    for axes, metric in zip(panels, metrics, strict=True):
        curves: Curves = {}
        for row in outcome.rows:
            if row.metric == metric and row.x is not None and row.ours is not None:
                curves.setdefault(outcome.labels[row.run], []).append((row.x, row.ours))
        _curve_panel(axes, outcome, curves, outcome.request.experiment.axis, f"{label(metric)}, percent", logarithmic=True)
    _legend(canvas, panels[0])
    return canvas


def _snr(outcome: Outcome) -> Figure:
    canvas, (((axes,),)) = _panels(1, 1, 3.2)
    curves: Curves = {}
    for row in outcome.rows:
        if row.x is not None and row.run in outcome.ratios and row.metric == outcome.request.data.metrics[0]:
            curves.setdefault(outcome.labels[row.run], []).append((row.x, outcome.ratios[row.run]))
    _curve_panel(axes, outcome, curves, outcome.request.experiment.axis, "norm of sum over norm of noise", logarithmic=True)
    _legend(canvas, axes)
    return canvas


def _mechanism(outcome: Outcome) -> Figure:
    """Both directions of retrieval beside the noise that each method needs."""
    methods = outcome.mechanisms
    canvas, ((left, right),) = _panels(1, 2, 0.5 * len(methods) + 1.0)
    metrics = outcome.request.data.metrics
    shades = (1.0, 0.55)
    for y, mechanism in enumerate(methods):
        colour = TRAINED if mechanism.sound else UNTRAINED
        for index, row in enumerate(outcome.best(mechanism.method)):
            value = row.ours or 0.0
            at = y + (index - 0.5) * 0.36
            left.barh(at, value, height=0.34, color=colour, alpha=shades[index])
            _annotate(left, f"{value:.1f}", (value, at), INK)
        if mechanism.noise is None:
            _annotate(right, "none", (0.0, y), MUTED, xycoords=right.get_yaxis_transform())
            continue
        right.plot(mechanism.noise, y, "o", color=colour, markersize=8)
        _annotate(right, f"{mechanism.noise:.2g}", (mechanism.noise, y), INK)
    words = {True: "", False: " (unsound)"}
    names = [m.method + ("" if m.method == "none" else words[m.sound]) for m in methods]
    _across(left, names)
    _across(right, [""] * len(methods))
    left.set_xlim(0, 1.15 * max([row.ours or 0.0 for row in outcome.rows] + [1.0]))
    right.set_xscale("log")
    right.xaxis.set_minor_locator(NullLocator())
    right.margins(x=0.2)
    left.set_title(f"{label(metrics[0])} (dark), {label(metrics[1])} (light), percent", **_TITLE)
    right.set_title("Noise on each coordinate of the gradient", **_TITLE)
    return canvas


_TITLE: dict[str, Any] = {"fontsize": 9.5, "color": INK, "loc": "left"}
_CHARTS: dict[str, tuple[str, Callable[[Outcome], Figure]]] = {
    "bars": ("Ours (bar), and the paper's (orange line) where it has one", _bars),
    "steps": ("During training", _steps),
    "loss": ("Relative loss during training", _loss),
    "line": ("Accuracy", _line),
    "snr": ("Signal over noise of the first step", _snr),
    "mechanism": ("Retrieval, and the noise that it takes", _mechanism),
}


def _panels(rows: int, columns: int, height: float) -> tuple[Figure, list[list[Axes]]]:
    canvas = Figure(figsize=(_WIDTH, height * rows), facecolor=PAPER, layout="constrained")
    FigureCanvasAgg(canvas)
    grid = canvas.subplots(rows, columns, squeeze=False).tolist()
    for axes in (axes for row in grid for axes in row):
        quiet(axes)
    return canvas, grid


def _curve_panel(axes: Axes, outcome: Outcome, curves: Curves, across: str, up: str, logarithmic: bool = False) -> None:
    # A curve has one colour in all charts, and DP-GCL the first one.
    names = sorted(dict.fromkeys(outcome.labels.values()), key=lambda name: not name.startswith("DP-GCL"))
    for name, points in sorted(curves.items(), key=lambda curve: names.index(curve[0])):
        colour = SERIES[names.index(name) % len(SERIES)]
        axes.plot(*zip(*sorted(points), strict=True), "o-", color=colour, linewidth=2, markersize=4, label=name, clip_on=False)
    axes.set_ylim(0, None)
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.set_xlabel(across, color=MUTED, fontsize=9)
    axes.set_ylabel(up, color=MUTED, fontsize=9)
    if logarithmic:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(FixedLocator(sorted({x for points in curves.values() for x, _ in points})))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _legend(canvas: Figure, axes: Axes) -> None:
    """One legend above all panels, which have the same curves."""
    handles, names = axes.get_legend_handles_labels()
    canvas.legend(handles, names, frameon=False, fontsize=8.5, labelcolor=INK, loc="outside upper left", ncols=len(names))


def _across(axes: Axes, names: list[str]) -> None:
    """Names down the side, and lines that help to read along."""
    axes.set_yticks(range(len(names)), names, color=INK)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", color=RULE, linewidth=0.8)


def _annotate(axes: Axes, text: str, at: tuple[float, float], colour: str, **where: Any) -> None:
    style: dict[str, Any] = {"va": "center", "fontsize": 8.5, "color": colour, "annotation_clip": False}
    axes.annotate(text, at, (5, 0), textcoords="offset points", **style, **where)
