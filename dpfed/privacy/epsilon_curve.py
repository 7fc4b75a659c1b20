"""Computes curves of epsilon over steps: as planned, and as charged in the ledger. A replayed step changes neither curve."""

from __future__ import annotations

import math

from dpfed.privacy.ledger import Ledger
from dpfed.privacy.plan import PrivacyPlan

_POINTS = 16

EpsilonCurve = list[tuple[int, float]]


def planned_curve(plan: PrivacyPlan) -> EpsilonCurve:
    """Returns pairs (number of steps, epsilon after them), from (0, 0) to all steps; no pairs if an epsilon is not finite."""
    return _finite([(0, 0.0), *((step, plan.epsilon(step)) for step in _steps(plan))])


def spent_curve(ledger: Ledger) -> EpsilonCurve:
    """Returns the curve of the charged steps, which ends at the epsilon spent.

    The curve is empty before the first charged step, and if an epsilon is not finite.
    """
    done = ledger.last_step + 1
    steps = [*(step for step in _steps(ledger.plan) if step < done), done]
    return _finite([(0, 0.0), *((step, ledger.epsilon_after(step)) for step in steps)]) if done else []


def _steps(plan: PrivacyPlan) -> list[int]:
    """Returns the steps that are points of a curve; they are denser at first, where epsilon grows fastest."""
    return sorted({max(1, round(plan.steps * (point / _POINTS) ** 2)) for point in range(1, _POINTS + 1)})


def _finite(curve: EpsilonCurve) -> EpsilonCurve:
    return curve if all(math.isfinite(epsilon) for _, epsilon in curve) else []
