"""Draws the charts of private training: the released loss, clipping and norms, with error bands."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter, PercentFormatter, StrMethodFormatter

from dpfed.privacy.metrics_window import MetricsWindow, percent
from dpfed.report.style import MUTED, TARGET, TRAINED, figure

_WIDTH, _HEIGHT = 3.6, 2.6  # inches


def training_plots(windows: Sequence[MetricsWindow], clip_norm: float | None) -> list[tuple[str, Figure]]:
    """Draws the charts of training and returns them with their titles; empty if nothing was released.

    Args:
        windows: Released figures of a run, in order.
        clip_norm: C, if it is fixed; otherwise ``None``.
    """
    if not windows:
        return []
    plots = [
        ("Loss per record", _banded(windows, [window.loss for window in windows], [window.loss_error for window in windows]))
    ]
    rates = [window.clip_rate for window in windows if window.clip_rate is not None]
    if len(rates) == len(windows):
        canvas = _banded(windows, rates, [window.share_error for window in windows], most=1.0)
        canvas.axes[0].yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None, symbol=" %"))
        plots.append(("Groups whose gradient was clipped", canvas))
    quantile = windows[-1].quantile
    name = "Median norm of the gradients" if quantile == 0.5 else f"{percent(quantile)} of the norms are below the line"
    return [*plots, (name, _norms(windows, clip_norm))]


def training_note(windows: Sequence[MetricsWindow], void: bool) -> str:
    """Returns the note that explains the charts; empty if there are no charts.

    Args:
        windows: Released figures of a run, in order.
        void: Whether the run has no guarantee.
    """
    if not windows:
        return ""
    last = windows[-1]
    share = f"{percent(last.below)} ± {percent(last.share_error)} of the norms were below it"
    covered = "" if void else ", and epsilon covers them"
    return (
        f"These figures were released with the gradients, under the same noise{covered}. Each point is a mean over up to "
        f"{max(window.released for window in windows)} steps. The true mean lies in the band in 95 % of cases. The "
        f"plotted norm is an estimate: in the last window of steps, {share}."
    )


def _banded(
    windows: Sequence[MetricsWindow], values: Sequence[float], errors: Sequence[float], most: float | None = None
) -> Figure:
    """Draws a curve of figures that are at least 0, with the band in which the true value lies."""
    canvas, axes = _empty(windows)
    top = most or 1.1 * max(0.0, *(value + error for value, error in zip(values, errors, strict=True)))
    steps = [window.last for window in windows]
    low = [min(max(value - error, 0.0), top) for value, error in zip(values, errors, strict=True)]
    high = [min(max(value + error, 0.0), top) for value, error in zip(values, errors, strict=True)]
    axes.fill_between(steps, low, high, color=TRAINED, alpha=0.18, linewidth=0)
    axes.plot(
        steps, [min(max(value, 0.0), top) for value in values], "o-", color=TRAINED, linewidth=2, markersize=4, clip_on=False
    )
    axes.set_ylim(0, top or 1)
    axes.yaxis.set_major_locator(MaxNLocator(5))
    return canvas


def _norms(windows: Sequence[MetricsWindow], clip_norm: float | None) -> Figure:
    canvas, axes = _empty(windows)
    axes.plot(
        [window.last for window in windows], [window.norm for window in windows], "o-", color=TRAINED, linewidth=2, markersize=4
    )
    axes.set_yscale("log")
    if clip_norm:
        axes.axhline(clip_norm, color=TARGET, linewidth=1.2, linestyle=(0, (4, 3)))
        axes.annotate(f"C = {clip_norm:g}", (0, clip_norm), (2, 3), textcoords="offset points", color=TARGET, fontsize=9)
    values = [window.norm for window in windows] + ([clip_norm] if clip_norm else [])
    axes.set_ylim(min(values) / 1.6, max(values) * 1.6)
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_formatter(StrMethodFormatter("{x:g}") if max(values) < 8 * min(values) else NullFormatter())
    axes.tick_params(which="minor", length=0, labelsize=8, colors=MUTED)
    return canvas


def _empty(windows: Sequence[MetricsWindow]) -> tuple[Figure, Axes]:
    canvas, axes = figure(_WIDTH, _HEIGHT)
    axes.set_xlim(0, max(windows[-1].last, 1) * 1.03)
    axes.set_xlabel("step", color=MUTED, fontsize=9)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    return canvas, axes
