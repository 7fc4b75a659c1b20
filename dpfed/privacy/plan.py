"""The privacy plan: one frozen object from which sampler, clipping, noise, divisor and ledger take their numbers.

Nothing else in the code base holds a sampling rate, a sensitivity or a noise scale, so they cannot drift apart.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from dpfed.errors import UserError, nearest
from dpfed.privacy import accounting
from dpfed.privacy.accounting import Accountant
from dpfed.privacy.group_statistics import GroupStatistics
from dpfed.privacy.mechanism import Mechanism
from dpfed.privacy.method import Method, method_named
from dpfed.privacy.noise import DiscreteGaussianNoise, GaussianNoise, Noise, NoiseKind
from dpfed.privacy.plan_checks import (
    MOST_RECORDS,
    NUMBER,
    NUMBERS,
    WHOLE,
    check,
    default_delta_of,
    plain_number,
    refuse_large_delta,
    refuse_unmeant_bounds,
    require,
    require_epsilon,
)
from dpfed.privacy.promise import protected_by
from dpfed.privacy.samplers import Sampler

if TYPE_CHECKING:
    from dpfed.config import Config

_AUTOMATIC = 1.0  # C, where every gradient is normalised, or there are none
_RELEASES = 2  # steps of a run in closed form: means, then moments
_SPREAD = 4.0  # standard deviations of a Poisson batch's size: a cap that is hardly ever met
# How engines round and add up. A dpfed whose engines come to other bits does not resume a run: it could not repeat the steps.
ARITHMETIC = 3
Clipping = Literal["fixed", "automatic", "adaptive"]


@dataclass(frozen=True)
class PrivacyPlan:
    """What a run promises and how it keeps the promise. Every field is public.

    Adjacency: one record is added or removed. Each step draws every record with probability q = B/N, lets every drawn record
    choose one of K groups independently, clips each group's gradient to norm C, adds the sum up, adds Gaussian noise of
    standard deviation sigma times the sensitivity once, and divides by K (docs/guarantee.md has the proof).

    With ``unit = "user"``, all records of one unit, such as a person, are added or removed together: N, B and S count units
    instead of records, and a unit is drawn, and chooses its group, as one. Other methods than group clipping bound the sum's
    change in their own way (`dpfed.privacy.method`). Without privacy (``method_name = "none"``) the same steps clip nothing and
    add no noise.

    Args:
        records: N, number of training records (or units).
        batch: B, expected records (or units) in a step.
        group_size: S, expected records (or units) in a group; public ones that join it do not count.
        clip_norm: C, largest L2 norm of what the method clips, such as one group's gradient.
        steps: T.
        noise_multiplier: sigma, noise over sensitivity.
        delta: of the (epsilon, delta) promise.
        accountant: how epsilon is computed, ``pld`` or ``rdp``.
        max_group_size: a group keeps at most so many of its own records; ``None`` keeps all.
        target_epsilon: the promise, if the noise was calibrated to one; no step is taken that would exceed it.
        unit: what is protected: ``record``, or ``user``, all records that share a unit, such as a person.
        per_unit: at most so many records of a drawn unit take part.
        method_name: of bounding, one of `dpfed.privacy.method.METHODS`; ``none``: no clipping, no noise, no privacy.
        max_batch: at most so many of the drawn records take part, where the method needs such a cap; otherwise ``None``.
        options: the method's own public numbers.
        noise_kind: ``gaussian``, in floating point, or ``discrete``, exact on a grid (`dpfed.privacy.noise`).
        clipping: ``fixed``: longer gradients are clipped to C; ``automatic``: every one is normalised to C; ``adaptive``: they
            are clipped to a threshold that follows a quantile of their norms and starts at C, and are sent in units of it.
        stability: added to the norm by which a gradient is normalised; 0 with other rules.
        progress: what `dpfed.privacy.group_statistics` releases beside the gradients; empty: nothing.

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
    unit: Literal["record", "user"] = "record"
    per_unit: int = 1
    method_name: str = "group"
    max_batch: int | None = None
    options: dict[str, Any] = field(default_factory=dict)
    noise_kind: NoiseKind = "gaussian"
    clipping: Clipping = "fixed"
    stability: float = 0.0
    progress: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, kind, optional in NUMBERS:
            if not (optional and getattr(self, name) is None):
                object.__setattr__(self, name, plain_number(name, kind, getattr(self, name)))
        check(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> PrivacyPlan:
        """The plan of an `as_dict`, such as a ledger's header or a federation's terms keep.

        Raises:
            UserError: if the numbers cannot describe a plan.
            TypeError: for other fields, or fewer.
        """
        if lacking := sorted({field.name for field in dataclasses.fields(cls)} - fields.keys()):
            raise TypeError(f"a plan without {', '.join(lacking)}")
        return cls(**fields)

    def as_dict(self) -> dict[str, Any]:
        """All fields, as files keep them."""
        return dataclasses.asdict(self)

    @classmethod
    def calibrate(cls, records: int, batch: int, steps: int, epsilon: float, delta: float | None = None, **rest) -> PrivacyPlan:
        """A plan with the least noise that keeps an (epsilon, delta) promise; `rest` are the other fields.

        Example:
            >>> PrivacyPlan.calibrate(60_000, 2048, 1200, epsilon=10, group_size=16, clip_norm=1.0).noise_multiplier
            0.9283
        """
        known = {field.name for field in dataclasses.fields(cls)} - {"noise_multiplier", "target_epsilon"}
        for name in rest.keys() - known:
            raise UserError(f"PrivacyPlan.calibrate knows no {name!r}; {nearest(name, known)}")
        for name in ("group_size", "clip_norm"):
            require(name in rest, f"{name} is missing: give it by name")
        epsilon = plain_number("epsilon", NUMBER, epsilon)
        require_epsilon("epsilon", epsilon)
        delta = default_delta_of(plain_number("records", WHOLE, records)) if delta is None else delta
        draft = cls(
            records=records, batch=batch, steps=steps, noise_multiplier=1.0, delta=delta, target_epsilon=epsilon, **rest
        )
        refuse_large_delta(draft)
        refuse_unmeant_bounds(draft)
        return draft._calibrated()

    @classmethod
    def of_numbers(
        cls,
        records: int,
        batch: int,
        steps: int,
        epsilon: float | None = None,
        noise_multiplier: float | None = None,
        delta: float | None = None,
        accountant: Accountant = "pld",
    ) -> PrivacyPlan:
        """The plan of a promise alone, without anything that only training needs; give `epsilon` or `noise_multiplier`."""
        rest: dict[str, Any] = {"group_size": 1, "clip_norm": 1.0, "accountant": accountant}
        if noise_multiplier is None:
            require(epsilon is not None, "give epsilon or noise_multiplier")
            assert epsilon is not None
            return cls.calibrate(records, batch, steps, epsilon, delta, **rest)
        delta = default_delta_of(records) if delta is None else delta
        plan = cls(records, batch, steps=steps, noise_multiplier=noise_multiplier, delta=delta, **rest)
        refuse_large_delta(plan)
        return plan

    @classmethod
    def from_config(cls, records: int, config: Config) -> PrivacyPlan:
        """The plan that a configuration describes for `records` training records (or units, where they are protected)."""
        draft = cls._draft(records, config)
        refuse_large_delta(draft)
        refuse_unmeant_bounds(draft)
        plan = draft if draft.target_epsilon is None else draft._calibrated()
        if plan.statistics is not None:
            plan.statistics.refuse_noise_alone(plan.noise_std)
        return plan

    @classmethod
    def sketch(cls, config: Config, at_most: int = MOST_RECORDS) -> PrivacyPlan:
        """A plan before the number of training records is known, with N = `at_most` and noise that is not calibrated yet.

        Raises:
            UserError: for whatever cannot be a plan, however many records there are, up to `at_most`.
        """
        require(at_most >= 2, f"the number of training records must be at least 2, got at most {at_most}")
        draft = cls._draft(at_most, config)
        if draft.private and draft.accountant == "pld" and config.privacy.delta is not None:
            same = draft.mechanism.poisson_steps(draft.steps)
            accounting.require_resolution(draft.steps if same is None else same[-1], draft.delta)
        return draft

    @classmethod
    def _draft(cls, records: int, config: Config) -> PrivacyPlan:
        """A plan whose noise is given, or still to be calibrated for its `target_epsilon`."""
        privacy, bounding = config.privacy, config.bounding
        method = method_named(bounding.method)
        if not method.private:
            require(
                privacy.epsilon is None and privacy.noise_multiplier is None,
                "bounding.method = 'none' trains without privacy, so leave privacy.epsilon and privacy.noise_multiplier out",
            )
            sigma = 0.0
        else:
            require(
                (privacy.epsilon is None) != (privacy.noise_multiplier is None),
                "give exactly one of privacy.epsilon (the noise is calibrated) and privacy.noise_multiplier (epsilon follows)",
            )
            target = privacy.epsilon
            if target is not None:
                require_epsilon("privacy.epsilon", target)
            sigma = 1.0 if privacy.noise_multiplier is None else privacy.noise_multiplier
        clipping = bounding.clipping if method.private else "fixed"
        max_batch = bounding.max_batch
        if method.capped and max_batch is None:
            max_batch = privacy.batch + math.ceil(_SPREAD * math.sqrt(max(0, min(privacy.batch, MOST_RECORDS))))
        return cls(
            records=records,
            batch=records if method.closed_form else privacy.batch,
            steps=_RELEASES if method.closed_form else privacy.steps,
            noise_multiplier=sigma,
            delta=default_delta_of(records) if privacy.delta is None else privacy.delta,
            target_epsilon=privacy.epsilon,
            group_size=1 if method.alone else bounding.group_size,
            clip_norm=_AUTOMATIC if clipping == "automatic" or method.closed_form else bounding.clip_norm,
            max_group_size=bounding.max_group_size,
            accountant=privacy.accountant if privacy.accountant in method.accountants else method.accountants[0],
            unit=privacy.unit,
            per_unit=privacy.per_unit,
            method_name=bounding.method,
            max_batch=max_batch,
            options=method.public_numbers(config),
            noise_kind=privacy.noise,
            clipping=clipping,
            stability=bounding.stability if clipping == "automatic" else 0.0,
            progress=_progress(config),
        )

    def _calibrated(self) -> PrivacyPlan:
        """The same plan with the least noise that keeps its `target_epsilon`."""
        target = self.target_epsilon
        assert target is not None  # only such plans are calibrated
        found = accounting.calibrate(target, self.mechanism, self.steps, self.delta, self.accountant)
        return dataclasses.replace(self, noise_multiplier=found.noise_multiplier)

    def is_of(self, config: Config) -> bool:
        """Whether a configuration describes this plan: the same mechanism, with enough noise for its epsilon.

        The noise is not searched for again, for another version of an accountant may find a little more or less.
        """
        given = {"epsilon": None, "noise_multiplier": self.noise_multiplier if self.private else None, "delta": self.delta}
        privacy = config.privacy.model_copy(update=given)
        same = PrivacyPlan.from_config(self.records, config.model_copy(update={"privacy": privacy}))
        same = dataclasses.replace(same, target_epsilon=config.privacy.epsilon)
        kept = not self.private or self.target_epsilon is None or self.epsilon() <= self.target_epsilon * (1 + 1e-6)
        return same == self and kept and config.privacy.delta in (None, self.delta)

    def require_finite(self) -> None:
        """Refuses noise that is given, and whose epsilon is infinite or cannot be said.

        Raises:
            UserError: saying which numbers are in the way.
        """
        if self.private:
            require(math.isfinite(self.epsilon()), f"noise_multiplier {self.noise_multiplier} leaves no finite epsilon")

    @property
    def delta_exceeds_reciprocal(self) -> bool:
        """Whether delta is above 1/N: whoever publishes a whole record (or unit), drawn at random, keeps such a promise."""
        return self.private and self.delta > 1 / self.records

    @property
    def method(self) -> Method:
        """The method of bounding."""
        return method_named(self.method_name)

    @property
    def private(self) -> bool:
        """Whether there is clipping and noise at all."""
        return self.method.private

    @property
    def promises(self) -> bool:
        """Whether its epsilon is a promise: there is noise, and the method's claim holds."""
        return self.private and self.method.sound

    @property
    def protected(self) -> str:
        """What one of the N is called: ``record`` or ``unit``."""
        return protected_by(self.unit)

    @property
    def sampling_rate(self) -> float:
        """q = B/N, the probability of each record (or unit) to take part in a step."""
        return self.batch / self.records

    @property
    def groups(self) -> int:
        """K = round(B/S), fixed in advance, however many groups happen to be empty; 1 where the batch is one group."""
        return 1 if self.method.whole_batch else max(1, round(self.batch / self.group_size))

    @property
    def divisor(self) -> int:
        """What every noisy sum is divided by, public: K, as a rule."""
        return self.method.divisor(self)

    @property
    def longest_sum(self) -> float:
        """The largest L2 norm that the sum can have without noise, for all practical purposes."""
        return self.method.spread(self) * self.sensitivity

    @property
    def cap(self) -> int | None:
        """At most so many members of a group take part; ``None``: all."""
        return self.max_batch if self.method.whole_batch else self.max_group_size

    @property
    def whole_batch_cap(self) -> int:
        """`max_batch`, of a method that has it."""
        if self.max_batch is None:
            raise ValueError(f"method '{self.method_name}' caps no batch")
        return self.max_batch

    @property
    def bound(self) -> float:
        """C, the largest L2 norm of what is clipped; infinity without privacy."""
        return self.clip_norm if self.private else math.inf

    @functools.cached_property
    def statistics(self) -> GroupStatistics | None:
        """What is released of the groups beside their gradients, in the same sum; ``None``: nothing."""
        return GroupStatistics.of(self)

    @property
    def statistics_count(self) -> int:
        """How many numbers of the sum are such statistics: they come last."""
        return 0 if self.statistics is None else len(self.statistics.names)

    @property
    def sensitivity(self) -> float:
        """Most that one record (or unit) can move the sum, L2; 2C for groups, and a little more with their statistics."""
        return self.method.sensitivity(self) / self._gradient_part

    @functools.cached_property
    def shares(self) -> tuple[float, ...]:
        """Of the run's 1 / sigma^2, what each step spends, where steps differ; empty: they do not."""
        return self.method.shares(self)

    def sensitivity_of(self, step: int) -> float:
        """Most that one record (or unit) can move the sum of a step, L2.

        Where steps have shares, it is the root of the step's share times `sensitivity`, and the noise is the same in all. Room
        is left for the rounding of discrete noise, so that what is rounded keeps to the share, too.
        """
        if not self.shares:
            return self.sensitivity
        part = math.sqrt(self.shares[step])
        return part * self.sensitivity - (1 - part) * (self.rounded_sensitivity - self.sensitivity)

    @property
    def longest_part(self) -> float:
        """The largest L2 norm of what one group adds to the sum: C, or a little more with its statistics."""
        return self.bound / self._gradient_part

    @property
    def _gradient_part(self) -> float:
        """What the sensitivity of the gradients is of the sum's."""
        return math.sqrt(1 - self.progress["share"]) if self.progress else 1.0

    @property
    def rounded_sensitivity(self) -> float:
        """Most that one record (or unit) can move what the noise is added to: the sum, rounded to a grid where that is done."""
        noise = self.noise
        return noise.rounded_sensitivity if isinstance(noise, DiscreteGaussianNoise) else self.sensitivity

    @property
    def sampler(self) -> Sampler:
        """Who takes part in a step."""
        return self.method.sampler(self)

    @property
    def mechanism(self) -> Mechanism:
        """What accounting accounts for."""
        return Mechanism(self.sampler, self.noise_multiplier, self.method.releases(self), self.shares)

    @property
    def noise(self) -> Noise:
        """What is added to the sum.

        A method that releases statistics besides spends a share of sigma's privacy on them.
        """
        return self.noise_of(1)

    def noise_of(self, shares: int) -> Noise:
        """What each of so many parties adds to its own sum, so that all of it together is `noise`."""
        if not self.private:
            return GaussianNoise(0.0)
        if self.noise_kind == "discrete":
            return DiscreteGaussianNoise(self.sensitivity, self.noise_multiplier, shares)
        whole = self.noise_multiplier * self.sensitivity / math.sqrt(self.method.gradient_share(self))
        return GaussianNoise(whole / math.sqrt(shares))

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise on each coordinate of the sum, at least."""
        return self.noise.std

    def epsilon(self, steps: int | None = None, accountant: Accountant | None = None) -> float:
        """Epsilon of `steps` steps (default: all of them), at the plan's delta."""
        count = self.steps if steps is None else steps
        return accounting.epsilon(self.mechanism, count, self.delta, accountant or self.accountant)

    @property
    def other_accountant(self) -> Accountant | None:
        """What cross-checks epsilon; ``None``: nothing can."""
        for other in self.method.accountants:
            if other != self.accountant:
                try:
                    self.epsilon(accountant=other)
                except accounting.Unresolved:
                    continue
                return other
        return None

    def groups_of(self, owner: int, owners: int) -> int:
        """K_w: how many of the K groups belong to one of several owners; they add up to K."""
        return self.groups // owners + (owner < self.groups % owners)

    def apportioned(self, records: Sequence[int]) -> list[int]:
        """K_w of owners that hold so many records (or units) each, all public: every owner's groups are then of like size.

        Largest remainders; every owner gets at least one group.

        Raises:
            UserError: if there are more owners than groups, or one holds nothing.
        """
        require(
            not self.method.whole_batch,
            f"method '{self.method_name}' contrasts the whole batch, which none of several owners holds: use 'group'",
        )
        require(
            len(records) <= self.groups,
            f"{len(records)} owners would share {self.groups} groups (batch / group_size), and each needs one",
        )
        require(min(records) > 0, "every owner must hold at least one training record")
        spare, total = self.groups - len(records), sum(records)
        quotas = [spare * count / total for count in records]
        groups = [1 + math.floor(quota) for quota in quotas]
        by_remainder = sorted(range(len(records)), key=lambda owner: (math.floor(quotas[owner]) - quotas[owner], owner))
        for owner in by_remainder[: self.groups - sum(groups)]:
            groups[owner] += 1
        return groups

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hash of all fields, and of `ARITHMETIC`: what a ledger, a checkpoint and a site agree on."""
        text = json.dumps(self.as_dict() | {"arithmetic": ARITHMETIC}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def _progress(config: Config) -> dict[str, Any]:
    """What a configuration releases of the groups' progress, with every number that it leaves open.

    Raises:
        UserError: if the loss does not say its range, and the configuration gives none.
    """
    if config.diagnostics != "private":
        return {}
    progress, objective = config.progress, config.objective
    loss_range, known = progress.loss_range, objective.loss.range
    if loss_range is None:
        require(
            known is not None,
            f"objective.name = '{objective.name}' does not say how large its loss per record is: give progress.loss_range, the "
            "largest that diagnostics = 'private' is to tell from larger ones",
        )
        assert known is not None
        loss_range = round(known(objective.options, max(2, method_named(config.bounding.method).contrasted(config))), 3)
    return {"share": progress.share, "quantile": progress.quantile, "loss_range": loss_range, "phase": progress.phase}
