"""The chart of an audit: what attacks show, beside what is claimed."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from dpfed.privacy.promise import round_down, round_up
from dpfed.report.audit import label
from dpfed.report.style import INK, MUTED, RULE, TARGET, TRAINED, UNTRAINED, figure

_WIDTH, _BAR = 5.0, 0.5  # inches


def audit_plot(audit: dict[str, Any]) -> Figure:
    """Lower bounds on epsilon, by attack, beside what is claimed.

    Args:
        audit: see `dpfed.audit.publishing.as_json`.
    """
    found = audit["findings"]
    canvas, axes = figure(_WIDTH, max(2.0, 0.8 + 2 * _BAR * len(found)))
    for place, one in enumerate(found):
        pairs = [(one["epsilon_f_dp"], TRAINED, "f-DP")]
        if one["of_run"]:  # otherwise it is no bound on what is claimed for the run
            pairs.append((one["epsilon"], UNTRAINED, "any mechanism"))
        for offset, (value, colour, form) in zip((-0.2, 0.2) if one["of_run"] else (0.0,), pairs, strict=True):
            axes.barh(place + offset, value, height=0.36, color=colour)
            axes.annotate(
                f"≥ {round_down(value)} ({form})",
                (value, place + offset),
                (4, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
                color=MUTED,
            )
    axes.axvline(audit["claim"], color=TARGET, linewidth=1.2, linestyle=(0, (4, 3)))
    axes.annotate(
        f"claimed {round_up(audit['claim'])}",
        (audit["claim"], 1),
        (-4, 2),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        ha="right",
        color=TARGET,
        fontsize=9,
    )
    axes.set_yticks(range(len(found)), [label(one).replace(", ", ",\n", 1) for one in found], color=INK)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.25 * max([audit["claim"], *(max(one["epsilon"], one["epsilon_f_dp"]) for one in found)]))
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", color=RULE, linewidth=0.8)
    axes.set_xlabel("epsilon: lower bounds at 95% confidence", color=MUTED, fontsize=9)
    return canvas
