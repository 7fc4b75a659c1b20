"""The privacy plan: one frozen object from which sampler, clipping, noise, divisor and ledger take their numbers.

Nothing else in the code base holds a sampling rate, a sensitivity or a noise scale, so they cannot drift apart.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dpfed.config import BoundingConfig, PrivacyConfig
from dpfed.errors import UserError
from dpfed.privacy import accounting
from dpfed.privacy.accounting import Accountant

# Fields that came later: at these values a plan keeps the fingerprint, and so the ledger, that it had without them.
_LATER = {"unit": "record", "per_unit": 1, "method": "group"}


@dataclass(frozen=True)
class PrivacyPlan:
    """What a run promises and how it keeps the promise. Every field is public.

    Adjacency: one record is added or removed. Each step draws every record with probability q = B/N, lets every drawn record
    choose one of K groups independently, clips each group's gradient to norm C, adds the sum up, adds Gaussian noise of
    standard deviation sigma times the sensitivity once, and divides by K (docs/guarantee.md has the proof).

    With units, all records of one unit are added or removed together: N, B and S count units instead of records, and a unit is
    drawn, and chooses its group, as one. Without privacy (``method = "none"``) the same steps clip nothing and add no noise.

    Args:
        records: N, number of training records (or units).
        batch: B, expected records (or units) in a step.
        group_size: S, expected records (or units) in a group.
        clip_norm: C, largest L2 norm of one group's gradient.
        steps: T.
        noise_multiplier: sigma, noise over sensitivity.
        delta: of the (epsilon, delta) promise.
        accountant: how epsilon is computed, ``pld`` or ``rdp``.
        max_group_size: a group keeps at most so many of its own records; ``None`` keeps all.
        target_epsilon: the promise, if the noise was calibrated to one; no step is taken that would exceed it.
        unit: what is protected: ``record``, or ``unit``, all records that share one.
        per_unit: at most so many records of a drawn unit take part.
        method: ``group``, or ``none``: no clipping, no noise, no privacy; the noise multiplier is 0.

    Raises:
        UserError: if the numbers cannot describe a plan.
    """

    records: int
    batch: int
    group_size: int
    clip_norm: float
    steps: int
    noise_multiplier: float
    delta: float
    accountant: Accountant = "pld"
    max_group_size: int | None = None
    target_epsilon: float | None = None
    unit: Literal["record", "unit"] = "record"
    per_unit: int = 1
    method: Literal["group", "none"] = "group"

    def __post_init__(self) -> None:
        _check(self.records >= 2, f"a plan needs at least 2 training records, got {self.records}")
        _check(1 <= self.batch <= self.records, f"batch must lie in 1..{self.records} (the training records), got {self.batch}")
        _check(
            1 <= self.group_size <= self.batch,
            f"group_size must lie in 1..{self.batch} (the expected batch), got {self.group_size}",
        )
        _check(
            _positive(self.clip_norm) and 1e-9 <= self.clip_norm <= 1e9,
            f"clip_norm must be positive, between 1e-9 and 1e9, got {self.clip_norm}",
        )
        _check(self.steps >= 1, f"steps must be at least 1, got {self.steps}")
        sigma = self.noise_multiplier
        if self.private:
            _check(
                _positive(sigma) and sigma >= accounting.LEAST_NOISE,
                f"noise_multiplier must be at least {accounting.LEAST_NOISE} (less leaves no promise), got {sigma}",
            )
        else:
            _check(sigma == 0, f"without privacy there is no noise, so noise_multiplier must be 0, got {sigma}")
        _check(0 < self.delta < 1, f"delta must lie strictly between 0 and 1, got {self.delta}")
        _check(
            self.max_group_size is None or self.max_group_size >= 2,
            f"max_group_size must be at least 2, got {self.max_group_size}",
        )
        _check(self.per_unit >= 1, f"per_unit must be at least 1, got {self.per_unit}")
        _check(
            self.unit == "unit" or self.per_unit == 1,
            f"per_unit = {self.per_unit} is for privacy.unit = 'unit'; leave it out where each record is protected",
        )

    @classmethod
    def calibrate(cls, records: int, batch: int, steps: int, epsilon: float, delta: float | None = None, **rest) -> PrivacyPlan:
        """A plan with the least noise that keeps an (epsilon, delta) promise; `rest` are the other fields.

        Example:
            >>> PrivacyPlan.calibrate(60_000, 2048, 1200, epsilon=10, group_size=16, clip_norm=1.0).noise_multiplier
            0.9283
        """
        _check(_positive(epsilon), f"epsilon must be positive, got {epsilon}")
        delta = accounting.default_delta(max(records, 2)) if delta is None else delta
        draft = cls(
            records=records, batch=batch, steps=steps, noise_multiplier=1.0, delta=delta, target_epsilon=epsilon, **rest
        )
        sigma = accounting.calibrate(epsilon, draft.sampling_rate, steps, delta, draft.accountant)
        return dataclasses.replace(draft, noise_multiplier=sigma)

    @classmethod
    def from_config(cls, records: int, privacy: PrivacyConfig, bounding: BoundingConfig) -> PrivacyPlan:
        """The plan that a configuration describes for `records` training records (or units, where they are protected)."""
        rest = {
            "group_size": bounding.group_size,
            "clip_norm": bounding.clip_norm,
            "max_group_size": bounding.max_group_size,
            "accountant": privacy.accountant,
            "unit": privacy.unit,
            "per_unit": privacy.per_unit,
            "method": bounding.method,
        }
        delta = accounting.default_delta(max(records, 2)) if privacy.delta is None else privacy.delta
        if bounding.method == "none":
            _check(
                privacy.epsilon is None and privacy.noise_multiplier is None,
                "bounding.method = 'none' trains without privacy, so leave privacy.epsilon and privacy.noise_multiplier out",
            )
            return cls(records, privacy.batch, steps=privacy.steps, noise_multiplier=0.0, delta=delta, **rest)
        _check(
            (privacy.epsilon is None) != (privacy.noise_multiplier is None),
            "give exactly one of privacy.epsilon (the noise is calibrated) and privacy.noise_multiplier (epsilon follows)",
        )
        if privacy.epsilon is not None:
            return cls.calibrate(records, privacy.batch, privacy.steps, privacy.epsilon, privacy.delta, **rest)
        return cls(records, privacy.batch, steps=privacy.steps, noise_multiplier=privacy.noise_multiplier, delta=delta, **rest)

    @property
    def private(self) -> bool:
        """Whether anything is promised at all."""
        return self.method != "none"

    @property
    def sampling_rate(self) -> float:
        """q = B/N, the probability of each record (or unit) to take part in a step."""
        return self.batch / self.records

    @property
    def groups(self) -> int:
        """K = round(B/S), fixed in advance: the divisor of every step, however many groups happen to be empty."""
        return max(1, round(self.batch / self.group_size))

    @property
    def bound(self) -> float:
        """Largest L2 norm of what one group adds to the sum: C; infinity without privacy."""
        return self.clip_norm if self.private else math.inf

    @property
    def sensitivity(self) -> float:
        """2C: one record (or unit) joins exactly one group, whose clipped gradient moves within a ball of radius C."""
        return 2.0 * self.bound

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise on each coordinate of the sum."""
        return self.noise_multiplier * self.sensitivity if self.private else 0.0

    def epsilon(self, steps: int | None = None, accountant: Accountant | None = None) -> float:
        """Epsilon of `steps` steps (default: all of them), at the plan's delta."""
        count = self.steps if steps is None else steps
        return accounting.epsilon(self.noise_multiplier, self.sampling_rate, count, self.delta, accountant or self.accountant)

    def groups_of(self, owner: int, owners: int) -> int:
        """K_w: how many of the K groups belong to one of several owners; they add up to K."""
        return self.groups // owners + (owner < self.groups % owners)

    def apportioned(self, records: Sequence[int]) -> list[int]:
        """K_w of owners that hold so many records (or units) each, all public: every owner's groups are then of like size.

        Largest remainders; every owner gets at least one group.

        Raises:
            UserError: if there are more owners than groups, or one holds nothing.
        """
        _check(
            len(records) <= self.groups,
            f"{len(records)} owners would share {self.groups} groups (batch / group_size), and each needs one",
        )
        _check(min(records) > 0, "every owner must hold at least one training record")
        spare, total = self.groups - len(records), sum(records)
        quotas = [spare * count / total for count in records]
        groups = [1 + math.floor(quota) for quota in quotas]
        by_remainder = sorted(range(len(records)), key=lambda owner: (math.floor(quotas[owner]) - quotas[owner], owner))
        for owner in by_remainder[: self.groups - sum(groups)]:
            groups[owner] += 1
        return groups

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hash of all fields: what a ledger, a checkpoint and a site agree on."""
        fields = dataclasses.asdict(self)
        for name, value in _LATER.items():
            if fields[name] == value:
                del fields[name]
        text = json.dumps(fields, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def _positive(value: float) -> bool:
    return math.isfinite(value) and value > 0


def _check(condition: bool, message: str) -> None:
    if not condition:
        raise UserError(f"impossible plan: {message}.")
