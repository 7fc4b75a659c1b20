"""Defines the parts of a privacy plan: promise, sampling, bounding, noise and progress.

Each part raises a `UserError` for impossible numbers; `dpfed.privacy.plan` checks conditions across parts. All numbers
are public. Each part comes from the configuration's section of the same name, or from ``[privacy]``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from dpfed.privacy import accounting
from dpfed.privacy.accounting import Accountant
from dpfed.privacy.method import METHODS, Method, method_named
from dpfed.privacy.noise import NoiseKind
from dpfed.privacy.plan_checks import (
    MOST_RECORDS,
    normalise_numbers,
    positive,
    require,
    require_within,
    wrong_clip_norm,
    wrong_stability,
)
from dpfed.privacy.promise import Unit, protected_by

Clipping = Literal["fixed", "automatic", "adaptive"]
MOST_DISCRETE = 1e3  # largest multiplier of discrete noise


@dataclass(frozen=True)
class Promise:
    """The promise: (epsilon, delta)-differential privacy for each record (or unit), as computed by one accountant.

    Args:
        delta: Delta of the promise, in (0, 1); configurations default to 1/(N ln N).
        accountant: Accountant that computes epsilon, ``pld`` or ``rdp``.
        target_epsilon: Epsilon to which the noise was calibrated, and which the run never exceeds; ``None`` if the noise was
            not calibrated.
        unit: Privacy unit. Neighbouring data sets differ in one record if it is ``record``, and in all records of one unit,
            such as a person, if it is ``user``.
    """

    delta: float
    accountant: Accountant = "pld"
    target_epsilon: float | None = None
    unit: Unit = "record"

    def __post_init__(self) -> None:
        normalise_numbers(self)
        target = self.target_epsilon
        require(0 < self.delta < 1, f"delta must lie strictly between 0 and 1, got {self.delta}")
        require(target is None or positive(target), f"target_epsilon must be positive and finite, got {target}")
        require(self.unit in ("record", "user"), f"unit must be 'record' or 'user', got {self.unit!r}")

    @property
    def protected(self) -> str:
        """Word for what is protected: ``record`` or ``unit``."""
        return protected_by(self.unit)


@dataclass(frozen=True)
class Sampling:
    """The sampling of a step: every record takes part with probability q = B/N. If units are protected, N and B count units.

    Args:
        records: Number of training records (or units), N.
        batch: Expected number of records (or units) in a step, B.
        per_unit: Largest number of records of a drawn unit that take part.
    """

    records: int
    batch: int
    per_unit: int = 1

    def __post_init__(self) -> None:
        normalise_numbers(self)
        require_within("the number of training records (or units)", self.records, 2, MOST_RECORDS)
        require_within("batch", self.batch, 1, self.records, " (the training records or units)")
        require_within("per_unit", self.per_unit, 1)

    @property
    def rate(self) -> float:
        """Probability that a record (or unit) takes part in a step, q = B/N."""
        return self.batch / self.records


@dataclass(frozen=True)
class Bounding:
    """The bound on one record's influence on a step's sum.

    Args:
        group_size: Expected number of records (or units) in a group, S; public records that join it do not count.
        clip_norm: Largest L2 norm of the vectors that the method clips, such as one group's gradient, C.
        method_name: Name of the method, one of `dpfed.privacy.method.METHODS`; ``none``: no clipping, no noise, no privacy.
        options: Further public numbers, which belong to this method alone.
        max_group_size: Largest number of drawn records that a group keeps; ``None`` if it keeps all. Public records do not
            count.
        max_batch: Largest number of the drawn records that take part, if the method needs such a cap; otherwise ``None``.
        clipping: Rule of clipping. With ``fixed``, gradients with a norm above C are clipped to norm C. With ``automatic``,
            every gradient is divided by its norm plus `stability`, and multiplied by C. With ``adaptive``, gradients are
            clipped to a threshold, which starts at C and follows a quantile of the gradients' norms. Each clipped gradient is
            then multiplied by C / threshold, so its norm is at most C.
        stability: Constant that is added to the norm by which a gradient is divided; 0 unless clipping is ``automatic``.
    """

    group_size: int
    clip_norm: float
    method_name: str = "group"
    options: dict[str, Any] = field(default_factory=dict)
    max_group_size: int | None = None
    max_batch: int | None = None
    clipping: Clipping = "fixed"
    stability: float = 0.0

    def __post_init__(self) -> None:
        normalise_numbers(self)
        self._check_method()
        clip_norm, rule = self.clip_norm, self.clipping
        require(1e-9 <= clip_norm <= 1e9, f"clip_norm must be positive, between 1e-9 and 1e9, got {clip_norm}")
        if self.max_group_size is not None:
            require_within("max_group_size", self.max_group_size, 2)
        require(
            rule in ("fixed", "automatic", "adaptive"), f"clipping must be 'fixed', 'automatic' or 'adaptive', got {rule!r}"
        )
        if rule != "fixed":
            self.require_measured(f"clipping = '{rule}'")
        fits = positive(self.stability) if rule == "automatic" else self.stability == 0
        require(
            fits, f"stability must be positive and finite with clipping = 'automatic', and 0 otherwise, got {self.stability}"
        )

    def _check_method(self) -> None:
        name = self.method_name
        require(name in METHODS, f"method must be one of {', '.join(METHODS)}, got {name!r}")
        require(isinstance(self.options, dict), f"options must be a dictionary, got {self.options!r}")
        for key, value in self.options.items():
            require(not isinstance(value, float) or math.isfinite(value), f"options.{key} must be finite, got {value}")
        require(
            self.max_batch is None or self.method.capped, f"max_batch is a cap that method '{name}' does not need: leave it out"
        )
        require(
            not self.method.singleton_groups or (self.group_size == 1 and self.max_group_size is None),
            f"every record forms its own group with method '{name}': group_size must be 1, and max_group_size left out",
        )
        require(
            not self.method.whole_batch or self.max_group_size is None,
            f"max_group_size is for groups, and method '{name}' has none",
        )

    @property
    def method(self) -> Method:
        """Declaration of the method that `method_name` names."""
        return method_named(self.method_name)

    @property
    def cap(self) -> int | None:
        """Largest number of drawn records that take part in a group, or in the whole batch; ``None`` if all take part."""
        return self.max_batch if self.method.whole_batch else self.max_group_size

    @property
    def whole_batch_cap(self) -> int:
        """Cap on the whole batch, `max_batch`, for a method that has such a cap.

        Raises:
            ValueError: If the method has no cap.
        """
        if self.max_batch is None:
            raise ValueError(f"method '{self.method_name}' has no cap on the batch")
        return self.max_batch

    @property
    def bound(self) -> float:
        """Largest L2 norm of a clipped vector, C; infinity without privacy."""
        return self.clip_norm if self.method.private else math.inf

    def require_measured(self, wanted: str) -> None:
        """Refuses a setting that requires one clipped gradient for each group, if the method has no such gradients.

        Args:
            wanted: Description of the setting, for the message.

        Raises:
            UserError: If the method does not support the setting.
        """
        measured = [name for name in METHODS if method_named(name).supports_metrics]
        require(self.method.private, f"{wanted} has no effect without privacy (method '{self.method_name}'): leave it out")
        require(
            self.method.supports_metrics,
            f"the guarantee of {wanted} is proven only for methods that clip one gradient for each group "
            f"({', '.join(measured)}), not for '{self.method_name}'",
        )

    def refuse_unmeant(self) -> None:
        """Refuses an implausible clip norm or stability in a new plan; plans from files are not checked.

        Raises:
            UserError: If a value lies outside its plausible range; the message states the range and a first value to try.
        """
        wrong = wrong_clip_norm(self.clip_norm)
        require(not wrong, f"clip_norm: {wrong}; got {self.clip_norm:g}")
        wrong = wrong_stability(self.stability) if self.clipping == "automatic" else ""
        require(not wrong, f"stability: {wrong}; got {self.stability:g}")


@dataclass(frozen=True)
class NoiseScale:
    """The scale and kind of the noise, which is added once to a step's sum.

    Args:
        multiplier: Standard deviation of the noise divided by the sum's sensitivity, sigma; 0 without privacy.
        kind: Kind of the noise: ``gaussian``, which is computed in floating point, or ``discrete``, which is exact on a grid
            (`dpfed.privacy.noise`).
    """

    multiplier: float
    kind: NoiseKind = "gaussian"

    def __post_init__(self) -> None:
        normalise_numbers(self, "noise_")
        sigma, most = self.multiplier, accounting.MOST_NOISE
        require(
            sigma == 0 or sigma >= accounting.LEAST_NOISE,
            f"noise_multiplier must be at least {accounting.LEAST_NOISE} (less noise gives no useful promise), got {sigma}",
        )
        require(sigma <= most, f"noise_multiplier must be at most {most:g} (more leaves nothing to learn), got {sigma}")
        require(self.kind in ("gaussian", "discrete"), f"noise must be 'gaussian' or 'discrete', got {self.kind!r}")
        require(
            self.kind == "gaussian" or sigma <= MOST_DISCRETE,
            f"with noise = 'discrete' noise_multiplier must be at most {MOST_DISCRETE:g} (more noise makes the grid of "
            "the sums coarser, and rounding could move a gradient of a billion numbers by more than 3 % of clip_norm), got "
            f"{sigma}",
        )


@dataclass(frozen=True)
class PrivateProgress:
    """Settings of the groups' statistics, which are released in the same sum as the gradients.

    See `dpfed.privacy.group_statistics`.

    Args:
        share: Fraction of a step's privacy, measured as 1 / sigma^2, that is spent on the statistics, in (0, 1).
        quantile: Quantile of the gradients' norms that a threshold follows, in (0, 1); one of the statistics is the fraction of
            norms below this threshold.
        loss_range: Upper limit of the loss per record in the statistics; a larger loss counts as this limit.
        phase: Number of steps over which figures are averaged; ``None`` if dpfed chooses it from the noise.
    """

    share: float
    quantile: float
    loss_range: float
    phase: int | None

    def __post_init__(self) -> None:
        normalise_numbers(self, "progress.")
        for name, value in (("share", self.share), ("quantile", self.quantile)):
            require(0 < value < 1, f"progress.{name} must lie strictly between 0 and 1, got {value}")
        require(positive(self.loss_range), f"progress.loss_range must be positive and finite, got {self.loss_range}")
        if self.phase is not None:
            require_within("progress.phase", self.phase, 1)
