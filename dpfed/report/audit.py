"""Puts the result of an audit into words, for privacy cards and reports. An audit attacks a run's claimed epsilon."""

from __future__ import annotations

import math
from typing import Any

from dpfed.privacy.promise import round_down, round_up


def is_audit(facts: Any) -> bool:
    """Returns whether a file's content has the fields of an audit that this module reads."""
    numbers = ("claim", "delta", "shown", "sensitivity", "confidence", "certainty", "owners")
    of_finding = ("epsilon", "rate", "steps")
    try:
        findings = facts["findings"]
        values = [facts[name] for name in numbers] + [finding[name] for finding in findings for name in of_finding]
        values += [] if facts["moved"] is None else [facts["moved"]]  # null: a sum was not finite
        words = [facts["day"], *(finding["channel"] for finding in findings)]
        flags = [facts["contradicted"], *(finding["contradicts"] for finding in findings)]
    except (TypeError, LookupError):
        return False
    return bool(findings) and all(
        [
            *(isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value) for value in values),
            *(isinstance(word, str) for word in words),
            *(isinstance(flag, bool) for flag in flags),
        ]
    )


def attacked(audit: dict[str, Any]) -> str:
    """Returns the number of workers among which the attacked mechanism was divided, as a text such as ``3 workers``."""
    return "one worker" if audit["owners"] == 1 else f"{audit['owners']} workers"


def label(finding: dict[str, Any]) -> str:
    """Returns the name of an attack: the number of steps, and the sampling rate q."""
    steps = "1 step" if finding["steps"] == 1 else f"{finding['steps']:,} steps"
    return f"repeated attack on {steps} at q = {finding['rate']:.3g}"


def on_card(audit: dict[str, Any]) -> str:
    """Returns the text for a privacy card: the day, the attacked mechanism, the verdict, and the result of each attack."""
    each = ", ".join(f"{round_down(attack['epsilon'])} by the {label(attack)}" for attack in audit["findings"])
    return f"{audit['day']}; the audited mechanism ran on {attacked(audit)}. {verdict(audit)} Lower bounds on epsilon: {each}."


def verdict(audit: dict[str, Any]) -> str:
    """Returns the audit's verdict on the claimed epsilon, in a few sentences."""
    claim = f"epsilon {round_up(audit['claim'])}, delta {round_up(audit['delta'])}"
    reasons = []
    claimed = f"the sensitivity is claimed to be {audit['sensitivity']:.4g}"
    if audit["moved"] is None:
        reasons.append(f"a sum was not finite, but {claimed}")
    elif not audit["moved"] <= audit["sensitivity"] * 1.001:
        reasons.append(f"one record moved the sum by {audit['moved']:.4g}, but {claimed}")
    for finding in audit["findings"]:
        if finding["contradicts"]:
            shown = f"shows at least epsilon {round_down(finding['epsilon'])}, seen in the {finding['channel']}"
            reasons.append(f"the {label(finding)} {shown}")
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
