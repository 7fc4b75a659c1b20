"""Draws the charts of a report. Each function returns one chart; the page adds the chart's title."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from dpfed.privacy.epsilon_curve import EpsilonCurve
from dpfed.privacy.promise import round_up
from dpfed.report.record_charts import OTHERS
from dpfed.report.results import Interval, Result, label, shown
from dpfed.report.style import INK, MUTED, RULE, SERIES, TARGET, TRAINED, UNTRAINED, figure

_LEGEND = 44  # longest class name in a legend, characters
WIDTH, HEIGHT = 5.0, 2.9  # inches; two stand side by side on a page of 1000 pixels
_DASHES = (0, (4, 3))
# Classes named after colours, such as those of the generated shapes, are drawn in these colours.
_CALLED = {
    **{"red": "#d55e00", "green": "#009e73", "blue": "#0072b2", "yellow": "#8c6d31", "orange": "#e69f00"},
    **{"purple": "#7a5195", "pink": "#cc79a7", "cyan": "#56b4e9", "grey": "#5a6773", "gray": "#5a6773"},
}


def epsilon_plot(spent: EpsilonCurve, planned: EpsilonCurve, budget: float | None = None) -> Figure:
    """Draws the epsilon spent over the steps, with the planned and the largest allowed epsilon.

    Args:
        spent: Pairs of a step and the epsilon after it; not empty.
        planned: Pairs of a step and the planned epsilon after it, drawn dashed; empty: nothing was planned.
        budget: Largest epsilon that is allowed; ``None``: not known.
    """
    step, epsilon = spent[-1]
    last = max(planned[-1][0] if planned else 0, step, 1)
    canvas, axes = _over_steps(last)
    axes.plot(*zip(*spent, strict=True), color=TRAINED, linewidth=2)
    axes.plot(step, epsilon, "o", color=TRAINED, markersize=5, clip_on=False)
    if planned:
        axes.plot(*zip(*planned, strict=True), color=TARGET, linewidth=1.2, linestyle=_DASHES)
        text = f"planned {round_up(planned[-1][1])}"
        axes.annotate(text, planned[-1], (0, 5), textcoords="offset points", ha="right", color=TARGET, fontsize=9)
    if budget is not None:
        axes.axhline(budget, color=MUTED, linewidth=1.2, linestyle=(0, (1, 2)))
        text = f"budget {round_up(budget)}"
        axes.annotate(text, (0, budget), (2, 4), textcoords="offset points", color=MUTED, fontsize=9)
    right = step > 0.7 * last
    axes.annotate(
        f"spent {round_up(epsilon)}",
        spent[-1],
        (-2, -26) if right else (6, -16),
        textcoords="offset points",
        ha="right" if right else "left",
        color=TRAINED,
        fontsize=9,
        fontweight="bold",
    )
    axes.set_ylim(0, 1.18 * max(budget or 0, *(value for _, value in (*spent, *planned))) or 1)
    return canvas


def norm_plot(norms: Sequence[tuple[int, float]], noise: float | None) -> Figure:
    """Draws the norms of the noisy gradient and of the noise alone over the steps. Where they meet, no signal is visible.

    Args:
        norms: Steps, and the norms of the noisy gradients.
        noise: Approximate norm of the noise alone; ``None``: not known.
    """
    canvas, axes = _over_steps(max(*(step for step, _ in norms), 1))
    axes.plot(*zip(*norms, strict=True), color=TRAINED, linewidth=2)
    if noise is not None:
        axes.axhline(noise, color=TARGET, linewidth=1.2, linestyle=_DASHES)
        axes.annotate("noise alone", (0, noise), (2, -12), textcoords="offset points", color=TARGET, fontsize=9)
    axes.set_ylim(0, 1.18 * max(noise or 0, *(value for _, value in norms)) or 1)
    return canvas


def _over_steps(last: int) -> tuple[Figure, Axes]:
    """Returns an empty chart over `last` steps."""
    canvas, axes = figure(WIDTH, HEIGHT)
    axes.set_xlim(0, last * 1.02)
    axes.set_xlabel("step", color=MUTED, fontsize=9)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    return canvas, axes


def progress_plot(evaluations: list[dict[str, Any]], names: Sequence[str]) -> Figure:
    """Draws metrics over steps: the model in training as points, and the untrained model as a dashed line of the same colour.

    Args:
        evaluations: Evaluations in results.json.
        names: Names of the metrics to draw.
    """
    canvas, axes = figure(WIDTH, HEIGHT)
    ends = []
    for name, colour in zip(names, SERIES, strict=False):
        rows = [item for item in evaluations if item["name"] == name]
        points = sorted((item["step"], item["value"]) for item in rows if item["model"] == "trained")
        baseline = next((item["value"] for item in rows if item["model"] == "untrained"), None)
        if baseline is not None:
            axes.axhline(baseline, color=colour, linewidth=1, linestyle=(0, (4, 3)), alpha=0.7)
            points = [(0, baseline), *points]
        if points:
            axes.plot(*zip(*points, strict=True), "o-", color=colour, linewidth=2, markersize=4, clip_on=False)
            for item in rows:
                if item["model"] == "trained" and item.get("interval"):
                    axes.plot([item["step"]] * 2, item["interval"], color=colour, linewidth=1.2, alpha=0.6, clip_on=False)
            ends.append((points[-1], label(name), colour))
    last = max((step for (step, _), _, _ in ends), default=1)
    for _, text, colour in ends:
        axes.plot([], [], color=colour, linewidth=3, label=text)
    axes.legend(
        loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=2, frameon=False, fontsize=8.5, labelcolor=INK, handlelength=1
    )
    axes.set_xlim(0, last)
    axes.set_ylim(0, None)
    low, high = axes.get_ylim()
    heights = _spread([value for (_, value), _, _ in ends], (high - low) / 12)
    for y, ((_, value), _, colour) in zip(heights, ends, strict=True):
        # Clipping would hide a label that was moved above the axes.
        axes.annotate(
            f"{100 * value:.1f} %",
            (last, y),
            (8, 0),
            textcoords="offset points",
            va="center",
            color=colour,
            fontsize=8.5,
            annotation_clip=False,
        )
    axes.set_xlabel("step  (dashed: before training)", color=MUTED, fontsize=9)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    _percent(axes, "y")
    return canvas


def bar_chart(results: Sequence[Result], tall: bool) -> Figure:
    """Draws a pair of bars for each metric, one for the untrained and one for the trained model, and a tick at chance level.

    Args:
        results: Metrics, at least one.
        tall: Whether the chart is as high as the two charts beside it together.
    """
    rows = list(results)
    canvas, axes = figure(WIDTH, 2 * HEIGHT + 0.6 if tall else max(HEIGHT, 0.4 * len(rows) + 0.4))
    ends = [0.0]
    for sign, colour, key in ((-1, UNTRAINED, "untrained"), (1, TRAINED, "trained")):
        values = [getattr(item, key) or 0.0 for item in rows]
        at = [index + 0.19 * sign for index in range(len(rows))]
        axes.barh(at, values, height=0.36, color=colour)
        for y, item in zip(at, rows, strict=True):
            value, interval = getattr(item, key), getattr(item, f"{key}_interval")
            _whisker(axes, y, interval)
            ends.append(interval[1] if interval else value or 0.0)
            axes.annotate(
                shown(value),
                (ends[-1], y),
                (4, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
                color=TRAINED if sign > 0 else MUTED,
                fontweight="bold" if sign > 0 else "normal",
            )
    for y, item in enumerate(rows):
        if item.chance is not None:
            axes.plot([item.chance] * 2, [y - 0.4, y + 0.4], color=TARGET, linewidth=1.6, solid_capstyle="butt")
            ends.append(item.chance)
    axes.set_yticks(range(len(rows)), [item.label for item in rows], color=INK)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.16 * (max(ends) or 1))
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", color=RULE, linewidth=0.8)
    _percent(axes, "x")
    return canvas


def comparison_plot(names: Sequence[str], results: Sequence[Result | None], void: Sequence[bool]) -> Figure:
    """Draws one metric of several runs: for each run a bar for the trained model, and a tick for the untrained model.

    Args:
        names: Names of the runs, each shown beside its bar.
        results: Metric of each run; ``None``: it was not measured.
        void: Whether each run lacks a guarantee; the bar of a run without a guarantee is grey.
    """
    canvas, axes = figure(2 * WIDTH, 0.46 * len(names) + 1.0)
    ends = [0.0]
    for y, item in enumerate(results):
        if item is None or item.trained is None:
            axes.annotate("not measured", (0, y), (4, 0), textcoords="offset points", va="center", fontsize=9, color=MUTED)
            continue
        colour = UNTRAINED if void[y] else TRAINED
        axes.barh(y, item.trained, height=0.56, color=colour)
        text = shown(item.trained, item.trained_interval)
        _whisker(axes, y, item.trained_interval)
        ends.append(item.trained_interval[1] if item.trained_interval else item.trained)
        axes.annotate(
            text, (ends[-1], y), (6, 0), textcoords="offset points", va="center", fontsize=9, color=INK, weight="bold"
        )
        if item.untrained is not None:
            axes.plot([item.untrained] * 2, [y - 0.36, y + 0.36], color=TARGET, linewidth=2, solid_capstyle="butt")
    axes.set_yticks(range(len(names)), names, color=INK)
    axes.set_ylim(len(names) - 0.5, -0.5)  # also where the last run was not measured
    axes.set_xlim(0, 1.2 * (max(ends) or 1))
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", color=RULE, linewidth=0.8)
    _percent(axes, "x")
    return canvas


def _whisker(axes: Axes, y: float, interval: Interval | None) -> None:
    """Draws the error interval of a bar."""
    if interval is not None:
        axes.plot(interval, [y, y], color=INK, linewidth=1, solid_capstyle="butt")
        for end in interval:
            axes.plot([end, end], [y - 0.07, y + 0.07], color=INK, linewidth=1)


def _percent(axes: Axes, side: str) -> None:
    axis = axes.yaxis if side == "y" else axes.xaxis
    axis.set_major_locator(MaxNLocator(5))
    axis.set_major_formatter(PercentFormatter(1.0, decimals=None, symbol=" %"))


def _spread(values: Sequence[float], gap: float) -> list[float]:
    """Returns heights for the labels of the values: in the same order, at least ``gap`` apart, the lowest at its value."""
    order = sorted(range(len(values)), key=lambda index: values[index])
    placed = list(values)
    for below, above in zip(order, order[1:], strict=False):
        placed[above] = max(placed[above], placed[below] + gap)
    return placed


def map_plot(points: Sequence[tuple[float, float]], classes: Sequence[int], names: Sequence[str]) -> Figure:
    """Draws a map of records: a dot for each record, in the colour of its class.

    Args:
        points: Positions of n records.
        classes: Classes of the same records; -1 is drawn in grey.
        names: Names of the classes.
    """
    shown = [_short(name) for name in (*names, OTHERS)]
    columns = max(1, min(4, int(WIDTH / (0.6 + 0.08 * max(map(len, shown))))))  # inches of a marker, and of a letter
    canvas, axes = figure(WIDTH, 3.7 + 0.22 * math.ceil(len(shown) / columns))
    place, of_class = np.asarray(points), np.asarray(classes)
    colours = [_CALLED[name] for name in names] if set(names) <= set(_CALLED) else SERIES
    for number in (-1, *range(len(names))):
        dots = place[of_class == number]
        if len(dots):
            colour, name = (UNTRAINED, OTHERS) if number < 0 else (colours[number], shown[number])
            axes.plot(dots[:, 0], dots[:, 1], "o", color=colour, markersize=3.4, markeredgewidth=0, label=name)
    axes.set_xlim(-0.03, 1.03)
    axes.set_ylim(-0.03, 1.03)
    axes.grid(visible=False)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines["bottom"].set_visible(False)
    axes.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, -0.01),
        ncols=columns,
        frameon=False,
        fontsize=9,
        labelcolor=MUTED,
        markerscale=2,
    )
    return canvas


def _short(name: str) -> str:
    return name if len(name) <= _LEGEND else f"{name[: _LEGEND - 1]}…"
