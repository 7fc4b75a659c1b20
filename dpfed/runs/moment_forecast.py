"""Predicts a run of private moments: all of it follows from public numbers, so nothing is measured."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dpfed.config import Config
from dpfed.data.store.counting import store_at_hand
from dpfed.data.store.records import RecordStore
from dpfed.errors import UserError
from dpfed.models.moment_layout import dimensions_for
from dpfed.privacy import accounting
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.promise import round_up

# With x = N / sigma, heads keep x^p / (x^p + h^p) of what they gain without noise, where h = 16 N^0.2 C^0.5 and C is how many
# records are distinguished. Fitted to symbols, tiles and CIFAR-10, and tried on icons (docs/results.md, private moments).
_HALF = 16
_OF_RECORDS = 0.2
_OF_CANDIDATES = 0.5
_POWER = 1.2
_GOOD = 0.75
_HELD_OUT = 6  # one of so many records is held out, where nobody knows


def kept_by(records: int, noise_multiplier: float, candidates: int) -> float:
    """About so much of what heads of moments gain without noise over the towers alone is left, from 0 to 1.

    Args:
        records: N.
        noise_multiplier: sigma.
        candidates: C, held-out records that retrieval chooses among.
    """
    odds = (records / noise_multiplier / (_HALF * records**_OF_RECORDS * candidates**_OF_CANDIDATES)) ** _POWER
    return odds / (odds + 1)


@dataclass(frozen=True)
class MomentRow:
    """One plan.

    Attributes:
        what: differs from the configuration.
        plan: with its sigma.
        candidates: C, held-out records that retrieval chooses among.
    """

    what: str
    plan: PrivacyPlan
    candidates: int

    @property
    def ratio(self) -> float:
        """N / sigma: records over noise."""
        return self.plan.sampling.records / self.plan.noise.multiplier

    @property
    def kept(self) -> float:
        """Of what the heads gain without noise over the towers alone, about so much."""
        return kept_by(self.plan.sampling.records, self.plan.noise.multiplier, self.candidates)

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
        """N with which three quarters of what heads gain without noise are kept, at the same sigma."""
        first = self.rows[0]
        half = _HALF * first.candidates**_OF_CANDIDATES * first.plan.noise.multiplier
        return math.ceil(((_GOOD / (1 - _GOOD)) ** (1 / _POWER) * half) ** (1 / (1 - _OF_RECORDS)))

    @property
    def verdict(self) -> str:
        """What follows, in a sentence or two."""
        first = self.rows[0]
        said = (
            f"About {first.kept:.0%} of the heads' gain without noise will remain, among {first.candidates:,} held-out records."
        )
        if first.kept >= _GOOD:
            return said
        return f"{said} With {self.records_needed:,} records, {_GOOD:.0%} would be."

    def facts(self) -> dict[str, Any]:
        """For JSON."""
        rows = [row.facts() for row in self.rows]
        return {"name": self.name, "rows": rows, "records_needed": self.records_needed, "verdict": self.verdict}


def forecast_moments(config: Config, plan: PrivacyPlan) -> MomentForecast:
    """Predicts a run of private moments.

    Args:
        config: of the run.
        plan: of the run.
    """
    count = _candidates(config, plan)
    return MomentForecast(config.name, tuple(MomentRow(what, own, count) for what, own in _plans(plan)))


def _candidates(config: Config, plan: PrivacyPlan) -> int:
    split, path = config.evaluation.split, store_at_hand(config.data)
    there = RecordStore.open(path).count(split) if path is not None and split != "none" else 0
    there = there or max(1, plan.sampling.records // _HELD_OUT)
    return min(there, config.evaluation.records or there)


def _plans(plan: PrivacyPlan) -> Iterator[tuple[str, PrivacyPlan]]:
    yield "as configured", plan
    epsilon = plan.epsilon()
    for factor in (1 / 3, 3.0):
        if (other := _with(plan, epsilon * factor, plan.sampling.records)) is not None:
            yield f"epsilon {round_up(epsilon * factor)}", other
    for factor in (3, 10):
        if (other := _with(plan, epsilon, plan.sampling.records * factor)) is not None:
            yield f"{plan.sampling.records * factor:,} records", other


def _with(plan: PrivacyPlan, epsilon: float, records: int) -> PrivacyPlan | None:
    """The plan with another epsilon or N, at the same delta; ``None``: there is no such noise."""
    other = plan.replace(records=records, batch=records, target_epsilon=epsilon)
    try:
        found = accounting.calibrate(epsilon, other.mechanism, other.steps, other.promise.delta, other.promise.accountant)
    except UserError:
        return None
    return other.replace(noise_multiplier=found.noise_multiplier)
