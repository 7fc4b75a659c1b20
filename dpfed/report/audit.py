"""What the audit of a claim says on paper, in words.

The chart of an audit: what attacks show, beside what is claimed.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from dpfed.privacy.promise import round_down, round_up

if TYPE_CHECKING:  # every command opens runs, and few draw
    from matplotlib.figure import Figure


def is_audit(facts: Any) -> bool:
    """Whether a file's content is what an audit writes, as far as it is read."""
    numbers = ("claim", "delta", "shown", "moved", "sensitivity", "confidence", "certainty", "owners")
    of_finding = ("epsilon", "epsilon_f_dp", "rate", "steps")
    try:
        found = facts["findings"]
        values = [facts[name] for name in numbers] + [one[name] for one in found for name in of_finding]
        words = [facts["day"], *(one["channel"] for one in found)]
        flags = [facts["contradicted"], *(one[name] for one in found for name in ("contradicts", "of_run"))]
    except (TypeError, LookupError):
        return False
    return bool(found) and all(
        [
            *(isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value) for value in values),
            *(isinstance(word, str) for word in words),
            *(isinstance(flag, bool) for flag in flags),
        ]
    )


def attacked(audit: dict[str, Any]) -> str:
    """Who shared the work of the mechanism that was attacked."""
    return "one worker" if audit["owners"] == 1 else f"{audit['owners']} workers"


def label(finding: dict[str, Any]) -> str:
    """Which attack it is, in a word or two."""
    steps = "1 step" if finding["steps"] == 1 else f"{finding['steps']:,} steps"
    return f"repeated, {steps} at q = {finding['rate']:.3g}"


def worth(finding: dict[str, Any]) -> float:
    """The lower bound on the run's epsilon that follows from an attack."""
    return max(finding["epsilon_f_dp"], finding["epsilon"] if finding["of_run"] else 0.0)


def on_card(audit: dict[str, Any]) -> str:
    """What a card says: when, of what, its verdict, and what each attack showed."""
    each = "; ".join(f"{label(one)}: {round_down(worth(one))}" for one in audit["findings"])
    return f"{audit['day']}, {attacked(audit)}: {verdict(audit)} At least, by attack: {each}"


def verdict(audit: dict[str, Any]) -> str:
    """The verdict, in a sentence or two."""
    claim = f"epsilon {round_up(audit['claim'])}, delta {round_up(audit['delta'])}"
    reasons = []
    if not audit["moved"] <= audit["sensitivity"] * 1.001:
        moved, claimed = f"{audit['moved']:.4g}", f"{audit['sensitivity']:.4g}"
        reasons.append(f"one record moved the sum by {moved}, and the sensitivity is claimed to be {claimed}")
    for one in audit["findings"]:
        if one["contradicts"]:
            reasons.append(f"{label(one)}: at least epsilon {round_down(worth(one))}, seen in the {one['channel']}")
    if reasons:
        return f"The claim ({claim}) is contradicted: {'; '.join(reasons)}. Do not use this run, nor this installation."
    if not audit["shown"] <= audit["claim"]:
        return (
            f"Canaries show at least epsilon {round_down(audit['shown'])}, above the claim ({claim}), but not with "
            f"{audit['certainty']:.1%} confidence. Up to {1 - audit['confidence']:.0%} of the audits of a sound mechanism "
            "end like this: audit again, with more experiments."
        )
    return (
        f"Canaries show at least epsilon {round_down(audit['shown'])}, with {audit['confidence']:.0%} confidence; the claim is "
        f"{claim}. Nothing contradicts it."
    )


_WIDTH, _BAR = 5.0, 0.5  # inches


def audit_plot(audit: dict[str, Any]) -> Figure:
    """Lower bounds on epsilon, by attack, beside what is claimed.

    Args:
        audit: see `dpfed.audit.publishing.as_json`.
    """
    from dpfed.report.style import INK, MUTED, RULE, TARGET, TRAINED, UNTRAINED, figure

    found = audit["findings"]
    canvas, axes = figure(_WIDTH, max(2.0, 0.8 + 2 * _BAR * len(found)))
    for place, one in enumerate(found):
        pairs = [(one["epsilon_f_dp"], TRAINED, "f-DP")]
        if one["of_run"]:  # otherwise it is not a bound on what is claimed for the run
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
