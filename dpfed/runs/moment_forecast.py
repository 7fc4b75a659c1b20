"""What a run of private moments will come to: all of it follows from public numbers, so nothing is measured."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dpfed.config import Config
from dpfed.errors import UserError
from dpfed.models.moment_layout import dimensions_for
from dpfed.privacy import accounting
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.promise import round_up

# With x = N / sigma, retrieval reaches x^p / (x^p + h^p) of what the same heads reach without noise. Fitted to three
# libraries of pictures with names (docs/moments.md): mostly within 14 points, and too low for sets of a few hundred names.
HALF, POWER = 1_400, 0.7
_GOOD = 0.75


@dataclass(frozen=True)
class MomentRow:
    """One plan.

    Attributes:
        what: differs from the configuration.
        plan: with its sigma.
    """

    what: str
    plan: PrivacyPlan

    @property
    def ratio(self) -> float:
        """N / sigma: records over noise."""
        return self.plan.sampling.records / self.plan.noise.multiplier

    @property
    def kept(self) -> float:
        """Of what the heads reach without noise, about so much."""
        odds = (self.ratio / HALF) ** POWER
        return odds / (odds + 1)

    def facts(self) -> dict[str, Any]:
        """For JSON."""
        plan = self.plan
        numbers = {"records": plan.sampling.records, "epsilon": plan.epsilon(), "noise_multiplier": plan.noise.multiplier}
        k = dimensions_for(plan.sampling.records, plan.noise.multiplier, ())
        return {"what": self.what, **numbers, "dimensions": plan.bounding.options["dimensions"] or k, "kept": self.kept}


@dataclass(frozen=True)
class MomentForecast:
    """What is to be expected.

    Attributes:
        name: of the configuration.
        rows: the plan as configured, then changes of one number each.
    """

    name: str
    rows: tuple[MomentRow, ...]

    @property
    def records_needed(self) -> int:
        """N with which three quarters of what heads reach without noise are kept, at the same sigma."""
        return math.ceil((_GOOD / (1 - _GOOD)) ** (1 / POWER) * HALF * self.rows[0].plan.noise.multiplier)

    @property
    def verdict(self) -> str:
        """What follows, in a sentence or two."""
        first = self.rows[0]
        said = f"About {first.kept:.0%} of the recall that these towers reach on these records without noise will be left."
        if first.kept >= _GOOD:
            return said
        return f"{said} With {self.records_needed:,} records, {_GOOD:.0%} would be."

    def facts(self) -> dict[str, Any]:
        """For JSON."""
        rows = [row.facts() for row in self.rows]
        return {"name": self.name, "rows": rows, "records_needed": self.records_needed, "verdict": self.verdict}


def forecast_moments(config: Config, plan: PrivacyPlan) -> MomentForecast:
    """What a run of private moments will come to.

    Args:
        config: of the run.
        plan: of the run.
    """
    return MomentForecast(config.name, (MomentRow("as configured", plan), *_others(config, plan)))


def _others(config: Config, plan: PrivacyPlan) -> Iterator[MomentRow]:
    epsilon = plan.epsilon()
    for factor in (1 / 3, 3.0):
        if (other := _with(plan, epsilon * factor, plan.sampling.records)) is not None:
            yield MomentRow(f"epsilon {round_up(epsilon * factor)}", other)
    for factor in (3, 10):
        if (other := _with(plan, epsilon, plan.sampling.records * factor)) is not None:
            yield MomentRow(f"{plan.sampling.records * factor:,} records", other)


def _with(plan: PrivacyPlan, epsilon: float, records: int) -> PrivacyPlan | None:
    """The plan with another epsilon or N, at the same delta; ``None``: there is no such noise."""
    other = plan.replace(records=records, batch=records, target_epsilon=epsilon)
    try:
        found = accounting.calibrate(epsilon, other.mechanism, other.steps, other.promise.delta, other.promise.accountant)
    except UserError:
        return None
    return other.replace(noise_multiplier=found.noise_multiplier)
