"""Epsilon over steps: as the plan expects it, and as the ledger charged it. A replayed step moves neither."""

from __future__ import annotations

import math

from dpfed.privacy.ledger import Ledger
from dpfed.privacy.plan import PrivacyPlan

_POINTS = 16

EpsilonCurve = list[tuple[int, float]]


def planned_curve(plan: PrivacyPlan) -> EpsilonCurve:
    """Steps and epsilon after them, from (0, 0) to the last planned step; empty where epsilon is not finite."""
    return _finite([(0, 0.0), *((step, plan.epsilon(step)) for step in _steps(plan))])


def spent_curve(ledger: Ledger) -> EpsilonCurve:
    """The same for the steps so far: the last point is what is spent; empty before the first step."""
    done = ledger.last_step + 1
    steps = [*(step for step in _steps(ledger.plan) if step < done), done]
    return _finite([(0, 0.0), *((step, ledger.epsilon_after(step)) for step in steps)]) if done else []


def _steps(plan: PrivacyPlan) -> list[int]:
    """Some of the planned steps, denser at first, where epsilon grows fastest."""
    return sorted({max(1, round(plan.steps * (point / _POINTS) ** 2)) for point in range(1, _POINTS + 1)})


def _finite(curve: EpsilonCurve) -> EpsilonCurve:
    return curve if all(math.isfinite(epsilon) for _, epsilon in curve) else []
