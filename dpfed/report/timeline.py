"""Draws the chart of a federation: which sites took part in each step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from dpfed.report.style import INK, MUTED, TARGET, TRAINED, UNTRAINED, figure

TITLE = "Sites over steps: answered (blue), missing (orange), step discarded (grey)"
_WIDTH, _ROW = 5.0, 0.34  # inches


def timeline_plot(steps: Sequence[Mapping[str, Any]]) -> Figure:
    """Draws a row for each site, with a bar of one colour for each period in which the site's state stays the same.

    Args:
        steps: For each step, in order, the last line about it in the coordinator's journal, with the keys ``step``, ``event``,
            ``arrived`` and ``missing``. At least one line names a site.
    """
    sites = sites_in(steps)
    canvas, axes = figure(_WIDTH, _ROW * len(sites) + 0.8)
    for row, site in enumerate(sites):
        stretches: dict[str, list[tuple[int, int]]] = {}
        for colour, stretch in groupby(steps, key=lambda line: _colour(site, line)):
            numbers = [line["step"] for line in stretch]
            stretches.setdefault(colour, []).append((numbers[0], numbers[-1] - numbers[0] + 1))
        for colour, spans in stretches.items():  # one shape for each colour: a long run has thousands of stretches
            axes.broken_barh(spans, (row - 0.31, 0.62), color=colour)
    axes.set_yticks(range(len(sites)), sites, color=INK)
    axes.set_ylim(len(sites) - 0.5, -0.5)
    axes.set_xlim(0, steps[-1]["step"] + 1)
    axes.grid(visible=False)
    axes.set_xlabel("step", color=MUTED, fontsize=9)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    return canvas


def sites_in(steps: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns all sites that a journal names, in alphabetical order."""
    return sorted({str(site) for line in steps for site in (*line.get("arrived", ()), *line.get("missing", ()))})


def _colour(site: str, line: Mapping[str, Any]) -> str:
    if site not in line.get("arrived", ()):
        return TARGET if "arrived" in line else UNTRAINED  # else the server died in the step: no site's fault
    return TRAINED if line["event"] == "collected" else UNTRAINED
