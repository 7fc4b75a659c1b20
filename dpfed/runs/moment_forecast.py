"""Predicts the result of a run of private moments. The prediction follows from public numbers alone; nothing is measured."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dpfed.config import Config
from dpfed.data.store.counting import store_at_hand
from dpfed.data.store.records import RecordStore
from dpfed.errors import UserError
from dpfed.models.moment_heads import FEWEST_IMAGES
from dpfed.models.moment_layout import dimensions_for
from dpfed.privacy import accounting
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.promise import round_up
from dpfed.runs.public_basis import kind_of

_OF_CANDIDATES = 0.5  # exponent of C in `_Curve`
_GOOD = 0.75  # part of the gain without noise that `MomentForecast.verdict` calls enough
_HELD_OUT = 6  # one of so many records is assumed to be held out, if the number is unknown


@dataclass(frozen=True)
class _Curve:
    """Fraction of the gain that remains under noise: x^p / (x^p + h^p), with x = N / sigma and h = half N^r C^0.5.

    The gain is the improvement of evaluation figures when the heads of private moments are added to the towers. N is the
    number of records, sigma the noise multiplier, and C the number of held-out records that retrieval chooses among. The curve
    was fitted to the data sets in the section on private moments of docs/results.md.

    Attributes:
        half: Factor of h.
        of_records: Exponent r of N.
        power: Exponent p.
    """

    half: float
    of_records: float
    power: float

    def kept(self, ratio: float, records: int, candidates: int) -> float:
        odds = (ratio / (self.half * records**self.of_records * candidates**_OF_CANDIDATES)) ** self.power
        return odds / (odds + 1)

    def records_for(self, kept: float, sigma: float, candidates: int) -> int:
        """Returns the number of records N with which the heads keep the fraction `kept` of their gain under noise `sigma`."""
        half = self.half * candidates**_OF_CANDIDATES * sigma
        return math.ceil(((kept / (1 - kept)) ** (1 / self.power) * half) ** (1 / (1 - self.of_records)))


# Public: with several layers of each tower.
_RANDOM, _PUBLIC = _Curve(16, 0.2, 1.2), _Curve(2.5, 0.44, 1.07)


def kept_by(records: int, noise_multiplier: float, candidates: int, public: bool = False) -> float:
    """Estimates how much of the heads' gain remains under noise, as a fraction of their gain without noise, from 0 to 1.

    The gain is the improvement of evaluation figures when heads are added to the towers.

    Args:
        records: N, number of records.
        noise_multiplier: Noise multiplier sigma.
        candidates: C, number of held-out records that retrieval chooses among.
        public: Whether the basis is made of public features.
    """
    return (_PUBLIC if public else _RANDOM).kept(records / noise_multiplier, records, candidates)


@dataclass(frozen=True)
class MomentRow:
    """Forecast of private moments for one plan.

    Attributes:
        what: Difference from the configuration, in words.
        plan: Plan with its noise multiplier.
        candidates: C, number of held-out records that retrieval chooses among.
        public: Whether the basis is made of public features.
        aligned: Whether the towers are aligned before the run; the heads then keep all dimensions of the features, unless the
            plan's options set a number of dimensions.
    """

    what: str
    plan: PrivacyPlan
    candidates: int
    public: bool = False
    aligned: bool = False

    @property
    def curve(self) -> _Curve:
        """The fitted curve for the plan's kind of basis, random or public."""
        return _PUBLIC if self.public else _RANDOM

    @property
    def ratio(self) -> float:
        """Ratio N / sigma of records to noise."""
        return self.plan.sampling.records / self.plan.noise.multiplier

    @property
    def kept(self) -> float:
        """Estimated gain of the heads under noise, as a fraction of their gain without noise, from 0 to 1; see `kept_by`."""
        return kept_by(self.plan.sampling.records, self.plan.noise.multiplier, self.candidates, self.public)

    def facts(self) -> dict[str, Any]:
        """Returns the forecast as a JSON object.

        Its key ``dimensions`` is the number of dimensions that the heads keep; ``None``: all dimensions of the features.
        """
        plan = self.plan
        numbers = {"records": plan.sampling.records, "epsilon": plan.epsilon(), "noise_multiplier": plan.noise.multiplier}
        k = None if self.aligned else dimensions_for(plan.sampling.records, plan.noise.multiplier, (), self.public)
        return {"what": self.what, **numbers, "dimensions": plan.bounding.options["dimensions"] or k, "kept": self.kept}


@dataclass(frozen=True)
class MomentForecast:
    """Forecast for a configuration of private moments.

    Attributes:
        name: Name of the configuration.
        rows: Forecasts for the plan as configured, then for plans with one number changed.
        of_images: Whether the records are images without captions.
    """

    name: str
    rows: tuple[MomentRow, ...]
    of_images: bool = False

    @property
    def records_needed(self) -> int:
        """The number of records with which three quarters of the heads' gain would remain, at the configured sigma."""
        first = self.rows[0]
        return first.curve.records_for(_GOOD, first.plan.noise.multiplier, first.candidates)

    @property
    def verdict(self) -> str:
        """Conclusion of the forecast, in one or two sentences."""
        first = self.rows[0]
        if self.of_images and first.plan.sampling.records < FEWEST_IMAGES:
            return f"Nothing will be gained: views of fewer than {FEWEST_IMAGES:,} images teach nothing. Keep the public tower."
        said = (
            f"About {first.kept:.0%} of the heads' gain without noise will remain (retrieval among {first.candidates:,} "
            "held-out records)."
        )
        if first.kept >= _GOOD:
            return said
        return f"{said} With {self.records_needed:,} records, {_GOOD:.0%} would remain."

    def facts(self) -> dict[str, Any]:
        """Returns the forecast as a JSON object."""
        rows = [row.facts() for row in self.rows]
        return {"name": self.name, "rows": rows, "records_needed": self.records_needed, "verdict": self.verdict}


def forecast_moments(config: Config, plan: PrivacyPlan) -> MomentForecast:
    """Predicts a run of private moments.

    Args:
        config: Configuration of the run.
        plan: Plan of the run.

    Raises:
        UserError: See `dpfed.runs.public_basis.kind_of`; also if the store of the records is damaged.
    """
    count, public = _candidates(config, plan), kind_of(config) != "random"
    rows = (MomentRow(what, other, count, public, config.is_aligned) for what, other in _plans(plan))
    return MomentForecast(config.name, tuple(rows), not config.model.reads_text)


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
    """Returns the plan with another epsilon or number of records, at the same delta; ``None``: no noise gives this epsilon."""
    other = plan.replace(records=records, batch=records, target_epsilon=epsilon)
    try:
        calibrated = accounting.calibrate(epsilon, other.mechanism, other.steps, other.promise.delta, other.promise.accountant)
    except UserError:
        return None
    return other.replace(noise_multiplier=calibrated.noise_multiplier)
