"""Defines the privacy plan, one immutable object from which sampler, clipping, noise, divisor and ledger take their numbers.

No other object holds a sampling rate, a sensitivity or a noise scale of its own, so the numbers cannot disagree.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpfed.errors import UserError, nearest
from dpfed.privacy import accounting
from dpfed.privacy.accounting import Accountant, default_delta
from dpfed.privacy.group_statistics import GroupStatistics
from dpfed.privacy.mechanism import Mechanism
from dpfed.privacy.method import METHODS, method_named
from dpfed.privacy.noise import DiscreteGaussianNoise, GaussianNoise, Noise
from dpfed.privacy.parameters import MechanismParameters
from dpfed.privacy.plan_checks import MOST_STEPS, normalise_numbers, plain_number, require, require_epsilon, require_within
from dpfed.privacy.plan_parts import Bounding, NoiseScale, PrivateProgress, Promise, Sampling
from dpfed.privacy.promise import round_up
from dpfed.privacy.sum_grid import LONGEST, SumGrid

STEPS_IN_CLOSED_FORM = 2  # means, then moments
# Incremented when engines round or sum differently in float32 on a CPU: a dpfed with another number does not resume a run.
# Different bits alone release nothing twice: a charged step is repeated as it was stored, or refused if its result differs.
# The number is part of the noise's keys, so another number changes every seeded run.
ARITHMETIC = 4
_FARTHEST = 16  # largest noise on a number for all practical purposes, in standard deviations
# The numbers of a plan by name and order in files: the fields of its parts; those of the noise have the prefix ``noise_``.
_NAMES = (
    "records batch group_size clip_norm steps noise_multiplier delta accountant max_group_size target_epsilon unit per_unit "
    "method_name max_batch options noise_kind clipping stability progress"
).split()


@dataclass(frozen=True)
class PrivacyPlan:
    """The promise of a run, and the mechanism that keeps it. All fields are public.

    Two data sets are neighbours if they are the same except that one of them has one record more. Each step draws every record
    with probability q = B/N, assigns every drawn record to one of K groups independently, clips each group's gradient to norm
    C, sums the gradients, adds noise once, of standard deviation sigma times the sensitivity, and divides by K
    (docs/guarantee.md has the proof).

    If the promise is about units, such as people, all records of a unit are added or removed together. The numbers of records
    N, of the batch B and of a group S then count units, and a unit is drawn, and assigned to a group, as one. Methods other
    than group clipping bound the sum's change in their own way, and may define draws and neighbours differently
    (`dpfed.privacy.method`). In runs without privacy, the same steps clip nothing and add no noise.

    Args:
        promise: Privacy unit, delta, accountant and target epsilon.
        sampling: Sampling of records (or units) in a step.
        bounding: Bound on one record's influence on a step's sum.
        noise: Kind and scale of the noise on the sum.
        steps: Number of steps, T.
        progress: Settings of the groups' statistics, which are released in the same sum as the gradients; ``None`` if no
            statistics are released.

    Raises:
        UserError: If the parts do not form a possible plan.
    """

    promise: Promise
    sampling: Sampling
    bounding: Bounding
    noise: NoiseScale
    steps: int
    progress: PrivateProgress | None = None

    def __post_init__(self) -> None:
        normalise_numbers(self)
        bounding = self.bounding
        method = self.bounding.method
        batch = self.sampling.batch
        steps = self.steps
        name = bounding.method_name
        sigma = self.noise.multiplier
        per_unit = self.sampling.per_unit
        progress = self.progress
        require_within("steps", steps, 1, MOST_STEPS)
        require(
            self.promise.accountant in method.accountants,
            f"accountant must be one of {', '.join(method.accountants)} with method '{name}', got {self.promise.accountant!r}",
        )
        if not method.whole_batch:
            require_within("group_size", bounding.group_size, 1, batch, " (the expected batch)")
        require(
            not method.capped or (bounding.max_batch is not None and bounding.max_batch >= max(2, batch)),
            f"method '{name}' contrasts the whole batch and needs a cap, max_batch, of at least {max(2, batch)} (the expected "
            f"batch, but at least 2), got {bounding.max_batch}",
        )
        require(
            not method.closed_form or (batch == self.sampling.records and steps == STEPS_IN_CLOSED_FORM),
            f"with method '{name}' every record takes part in each of {STEPS_IN_CLOSED_FORM} steps, so batch must be "
            f"{self.sampling.records} (all training records or units) and steps must be {STEPS_IN_CLOSED_FORM}, got batch = "
            f"{batch} and steps = {steps}",
        )
        require(
            self.promise.unit == "user" or per_unit == 1,
            f"per_unit = {per_unit} is for privacy.unit = 'user'; leave it out where each record is protected",
        )
        require(
            method.units or self.promise.unit == "record",
            f"the sensitivity of method '{name}' is for single records: privacy.unit = 'user' needs one of the methods "
            "'group', 'batch', 'public' and 'moments'",
        )
        require(self.private or sigma == 0, f"without privacy there is no noise, so noise_multiplier must be 0, got {sigma}")
        require(not self.private or sigma > 0, f"noise_multiplier must be positive (no noise, no promise), got {sigma}")
        if self.private and self.noise.kind == "discrete":
            proven = [name for name in METHODS if method_named(name).proven_in_floats]
            require(
                method.proven_in_floats,
                f"noise = 'discrete' needs a proof that covers floating point, which method '{name}' does not have: use "
                f"noise = 'gaussian', or one of the methods {', '.join(proven)}",
            )
        require(
            bounding.clipping != "adaptive" or progress is not None,
            "clipping = 'adaptive' follows a quantile of the gradients' norms, which has to be released: set "
            "diagnostics = 'private'",
        )
        if progress is not None:
            bounding.require_measured("diagnostics = 'private'")
            if progress.phase is not None:
                require_within("progress.phase", progress.phase, 1, steps, " (the steps)")
        if self.private:
            grid = self.grid_of()
            longest = (self.longest_sum + _FARTHEST * self.noise_std) / grid.unit * grid.finer
            require(
                longest < LONGEST,
                f"sums of up to {self.longest_sum:.3g} with noise of standard deviation {self.noise_std:.3g} do not fit into "
                "whole numbers of 64 bits: give a smaller batch, or a smaller noise_multiplier",
            )

    @classmethod
    def of(cls, *values: Any, **named: Any) -> PrivacyPlan:
        """Makes a plan from its numbers, given in the order of `as_dict`, or by the names that `as_dict` uses.

        All numbers after delta have defaults.

        Raises:
            UserError: If the numbers do not form a possible plan.
            TypeError: If there are too many numbers, a name is unknown or given twice, or a number is missing.
        """
        if len(values) > len(_NAMES):
            raise TypeError(
                f"a plan has {len(_NAMES)} numbers, got {len(values)}; the first surplus number is {values[len(_NAMES)]!r}"
            )
        if twice := [name for name in _NAMES[: len(values)] if name in named]:
            raise TypeError(f"a plan got {', '.join(twice)} twice: by position and by name")
        numbers = dict(zip(_NAMES, values, strict=False)) | named
        progress = numbers.pop("progress", {})
        wanted = {field.name for field in dataclasses.fields(PrivateProgress)}
        require(
            progress == {} or (isinstance(progress, dict) and progress.keys() == wanted),
            f"progress must hold {', '.join(sorted(wanted))}, or nothing, got {progress!r}",
        )

        def part(kind: Any, prefix: str = "") -> Any:
            names = {field.name for field in dataclasses.fields(kind)}
            return kind(**{name: numbers.pop(prefix + name) for name in names if prefix + name in numbers})

        parts = part(Promise), part(Sampling), part(Bounding), part(NoiseScale, "noise_")
        return cls(*parts, progress=PrivateProgress(**progress) if progress else None, **numbers)

    @classmethod
    def from_dict(cls, numbers: Mapping[str, Any]) -> PrivacyPlan:
        """Makes a plan from the numbers of `as_dict`, for example those in a ledger's header or a federation's terms.

        Raises:
            UserError: If the numbers do not form a possible plan.
            TypeError: If a name is unknown, or a number is missing.
        """
        if lacking := sorted(set(_NAMES) - numbers.keys()):
            raise TypeError(f"the numbers of the plan lack {', '.join(lacking)}")
        return cls.of(**numbers)

    def as_dict(self) -> dict[str, Any]:
        """Returns all numbers in a flat dict, under the names used in ledgers and federations, such as ``noise_multiplier``."""
        parts = dataclasses.asdict(self)
        noise = {f"noise_{name}": value for name, value in parts["noise"].items()}
        numbers = {**parts["promise"], **parts["sampling"], **parts["bounding"], **noise, "steps": self.steps}
        numbers["progress"] = parts["progress"] or {}
        return {name: numbers[name] for name in _NAMES}

    def replace(self, **changes: Any) -> PrivacyPlan:
        """Returns the plan with some numbers changed.

        Args:
            **changes: New numbers, under the names that `as_dict` uses.

        Raises:
            UserError: If the new numbers do not form a possible plan.
            TypeError: If a name is unknown.
        """
        return self.of(**self.as_dict() | changes)

    @classmethod
    def calibrate(
        cls, records: int, batch: int, steps: int, epsilon: float | None = None, delta: float | None = None, **rest
    ) -> PrivacyPlan:
        """Makes a new plan with the least noise that keeps (epsilon, delta), or with a given `noise_multiplier`.

        Args:
            records: Number of training records (or units), N.
            batch: Expected number of records (or units) in a step, B.
            steps: Number of steps, T.
            epsilon: Epsilon to keep; ``None`` if `rest` has the `noise_multiplier`.
            delta: Delta of the promise; default: 1/(N ln N), see `dpfed.privacy.accounting.default_delta`.
            **rest: Further numbers, see `of`; `group_size` and `clip_norm` are required.

        Raises:
            UserError: If a name is unknown or a number is missing, if the numbers do not form a possible plan, or for a reason
                that `calibrated` names.

        Example:
            >>> PrivacyPlan.calibrate(60_000, 2048, 1200, epsilon=10, group_size=16, clip_norm=1.0).noise.multiplier
            0.9283
        """
        known = set(_NAMES) - {"target_epsilon"}
        for name in rest.keys() - known:
            raise UserError(f"PrivacyPlan.calibrate knows no {name!r}; {nearest(name, known)} [plan-name-unknown]")
        for name in ("group_size", "clip_norm"):
            require(name in rest, f"{name} is missing: pass it as a keyword argument")
        require((epsilon is None) == ("noise_multiplier" in rest), "give exactly one of epsilon and noise_multiplier")
        if epsilon is not None:
            epsilon = plain_number("epsilon", float, epsilon)
            require_epsilon("epsilon", epsilon)
            rest |= {"noise_multiplier": 1.0, "target_epsilon": epsilon}
        delta = default_delta(plain_number("records", int, records)) if delta is None else delta
        return cls.of(records, batch, steps=steps, delta=delta, **rest).calibrated()

    def calibrated(self) -> PrivacyPlan:
        """Returns this new plan with the least noise that keeps the target epsilon; without a target, the plan is unchanged.

        Raises:
            UserError: If the target needs a noise multiplier below 0.1 or above 1e6, if the accountant cannot compute epsilon,
                or if delta, clip norm or stability is implausible. Only new plans have to be plausible: a plan from a file is
                accepted unchanged.
        """
        self._refuse_large_delta()
        self.bounding.refuse_unmeant()
        promise = self.promise
        if promise.target_epsilon is None:
            return self
        calibrated = accounting.calibrate(promise.target_epsilon, self.mechanism, self.steps, promise.delta, promise.accountant)
        return self.replace(noise_multiplier=calibrated.noise_multiplier)

    def _refuse_large_delta(self) -> None:
        """Refuses a delta above 1/N in a new plan; a plan from a file may have such a delta, and its card warns of it."""
        records, delta = self.sampling.records, self.promise.delta
        require(
            not self.private or delta <= 1 / records,
            f"delta = {round_up(delta)} is more than 1/N (N = {records:,}): a program that publishes one whole "
            f"{self.promise.protected}, drawn at random, would keep such a promise; leave delta out for the default, "
            "1/(N ln N), or give at most 1/N",
        )

    def require_finite(self) -> None:
        """Refuses a noise multiplier whose epsilon is infinite or cannot be computed.

        Raises:
            UserError: If epsilon is infinite or cannot be computed; the message names the numbers that cause it.
        """
        if self.private:
            require(math.isfinite(self.epsilon()), f"noise_multiplier {self.noise.multiplier} gives no finite epsilon")

    @property
    def private(self) -> bool:
        """Whether the plan clips and adds noise at all."""
        return self.bounding.method.private

    @property
    def has_guarantee(self) -> bool:
        """Whether the plan's epsilon is a promise: the plan has noise, and the method is sound."""
        return self.private and self.bounding.method.sound

    @property
    def groups(self) -> int:
        """Number of groups, K = round(B/S), fixed in advance, although some may be empty; 1 if the batch is one group."""
        return 1 if self.bounding.method.whole_batch else max(1, round(self.sampling.batch / self.bounding.group_size))

    @functools.cached_property
    def parameters(self) -> MechanismParameters:
        """Public numbers from which the method computes sensitivity, divisor and mechanism."""
        return MechanismParameters(
            records=self.sampling.records,
            batch=self.sampling.batch,
            steps=self.steps,
            groups=self.groups,
            clip_norm=self.bounding.clip_norm,
            noise_multiplier=self.noise.multiplier,
            max_batch=self.bounding.max_batch,
            options=self.bounding.options,
        )

    @property
    def divisor(self) -> int:
        """Public number by which every noisy sum is divided: K for most methods."""
        return self.bounding.method.divisor(self.parameters)

    @property
    def spread(self) -> float:
        """Bound on the L2 norm of the sum, divided by the sensitivity; see `longest_sum`."""
        return self.bounding.method.spread(self.parameters)

    @property
    def gradient_share(self) -> float:
        """Fraction of a step's privacy, measured as 1 / sigma^2, that is spent on the sum; the rest is spent on statistics."""
        return self.bounding.method.gradient_share(self.parameters)

    @property
    def longest_sum(self) -> float:
        """Bound on the L2 norm of the sum without noise; the probability of a larger norm is 0 or negligible."""
        return self.spread * self.sensitivity

    @functools.cached_property
    def statistics(self) -> GroupStatistics | None:
        """Statistics of the groups, which are released in the same sum as the gradients; ``None`` if none are released."""
        if self.progress is None:
            return None
        return GroupStatistics.of(self.progress, self.sampling, self.bounding, self.parameters, self.noise_std)

    @property
    def statistics_count(self) -> int:
        """Number of statistics in the sum; they are the last entries of the sum."""
        return 0 if self.statistics is None else len(self.statistics.names)

    @property
    def sensitivity(self) -> float:
        """Largest L2 change of the sum by one record (or unit).

        For group clipping it is twice the clip norm, or a little more if the sum contains the groups' statistics.
        """
        return self.bounding.method.sensitivity(self.parameters) / self._gradient_part

    def sensitivity_of(self, step: int) -> float:
        """Returns the sensitivity of one step's sum: how far one record (or unit) can move it, as an L2 distance.

        If the run divides its privacy, measured as 1 / sigma^2, among the steps (`Mechanism.shares`), the result is
        `sensitivity` times the square root of the step's fraction, because every step gets the same noise.
        """
        shares = self.mechanism.shares
        return math.sqrt(shares[step]) * self.sensitivity if shares else self.sensitivity

    @property
    def longest_part(self) -> float:
        """Largest L2 norm of a group's contribution to the sum; infinity without privacy.

        It is the clip norm, or a little more if the contribution contains the group's statistics.
        """
        return self.bounding.bound / self._gradient_part

    @property
    def _gradient_part(self) -> float:
        """Sensitivity of the gradients, divided by the sensitivity of the sum, which includes the statistics."""
        return math.sqrt(1 - self.progress.share) if self.progress else 1.0

    def grid_of(self, parties: int = 1) -> SumGrid:
        """Returns the grid on which sums are exact; the plan must have privacy.

        Args:
            parties: Number of parties that each add a part of the noise, see `noise_of`.
        """
        bound, most = self.bounding.bound, self.bounding.method.radius(self.parameters)
        if self.noise.kind == "gaussian":
            return SumGrid.of(bound, most)
        return SumGrid.for_discrete(bound, most, self.sensitivity / bound, self.noise.multiplier, parties)

    @property
    def mechanism(self) -> Mechanism:
        """Mechanism of the run: the sampler and the noise that accounting composes."""
        return self.bounding.method.mechanism(self.parameters)

    def noise_of(self, parties: int = 1) -> Noise:
        """Returns the noise on the sum, or each party's part of it; without privacy, its standard deviation is 0.

        If the method also releases statistics of its own, the step's privacy, measured as 1 / sigma^2, is divided between them
        and the sum, so the sum gets more noise.

        Args:
            parties: Number of parties; each adds the returned noise to its own sum, so that all together add the whole noise.
        """
        if not self.private:
            return GaussianNoise(0.0)
        grid = self.grid_of(parties)
        if self.noise.kind == "discrete":
            return DiscreteGaussianNoise(grid.unit, grid.finer)
        return GaussianNoise(self.promised_noise_std / math.sqrt(parties), grid.unit)

    @property
    def promised_noise_std(self) -> float:
        """Standard deviation of the noise that the promise needs on each number of the sum.

        The standard deviation of discrete noise is larger than that by a fraction of up to 5e-9.
        """
        return self.noise.multiplier * self.sensitivity / math.sqrt(self.gradient_share)

    @property
    def noise_std(self) -> float:
        """Lower bound on the standard deviation of the noise on each number of the sum."""
        return self.noise_of().std

    def epsilon(self, steps: int | None = None, accountant: Accountant | None = None) -> float:
        """Computes the epsilon of a number of steps at the plan's delta.

        Args:
            steps: Number of steps, which may exceed the plan's; default: all steps of the plan.
            accountant: Accountant that computes epsilon, ``pld`` or ``rdp``; default: the plan's.

        Returns:
            Epsilon; 0 if there are no steps, infinity without noise.

        Raises:
            UserError: If `steps` or `accountant` is impossible, or the accountant cannot compute epsilon.
        """
        count = self.steps if steps is None else steps
        return accounting.epsilon(self.mechanism, count, self.promise.delta, accountant or self.promise.accountant)

    @property
    def other_accountant(self) -> Accountant | None:
        """Another accountant that can compute epsilon, for comparison; ``None`` if no other accountant can."""
        for other in self.bounding.method.accountants:
            if other != self.promise.accountant:
                try:
                    self.epsilon(accountant=other)
                except accounting.Unresolved:
                    continue
                return other
        return None

    def groups_of(self, rank: int, world_size: int) -> int:
        """Returns how many of the K groups belong to the worker `rank`, K_w; the numbers of all workers add up to K."""
        return self.groups // world_size + (rank < self.groups % world_size)

    def apportioned(self, records: Sequence[int]) -> list[int]:
        """Returns the number of groups of each client, K_w, proportional to its records, so that groups have similar sizes.

        The method of largest remainders is used; every client gets at least one group.

        Args:
            records: Numbers of training records (or units) that the clients hold; they are public.

        Raises:
            UserError: If the plan has no groups or fewer groups than clients, if there is no client, or a client holds no
                record.
        """
        require(
            not self.bounding.method.whole_batch,
            f"method '{self.bounding.method_name}' contrasts the whole batch, which no single client holds: use 'group'",
        )
        require(
            len(records) <= self.groups,
            f"{len(records)} clients would share {self.groups} groups (batch / group_size), and each needs one: raise "
            "privacy.batch, or lower bounding.group_size",
        )
        require(min(records, default=0) > 0, "every client must hold at least one training record")
        spare, total = self.groups - len(records), sum(records)
        quotas = [spare * count / total for count in records]
        groups = [1 + math.floor(quota) for quota in quotas]
        by_remainder = sorted(range(len(records)), key=lambda client: (math.floor(quotas[client]) - quotas[client], client))
        for client in by_remainder[: self.groups - sum(groups)]:
            groups[client] += 1
        return groups

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hash of all fields and of `ARITHMETIC` (how engines round); ledgers, checkpoints and sites identify plans by it."""
        text = json.dumps(self.as_dict() | {"arithmetic": ARITHMETIC}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]
