"""The values that a privacy plan is composed of: promise, sampling, bounding, noise and progress.

Each raises a `UserError` when it is made of numbers that cannot describe it; `dpfed.privacy.plan` checks what only several
say together. All of them are public, and come from the configuration's section of the same name, or from ``[privacy]``.
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
_MOST_DISCRETE = 1e3


@dataclass(frozen=True)
class Promise:
    """What is promised: (epsilon, delta)-differential privacy for each record, or unit, by one accountant.

    Args:
        delta: in (0, 1); the default is 1/(N ln N).
        accountant: how epsilon is computed, ``pld`` or ``rdp``.
        target_epsilon: what the noise was calibrated to, if it was; no step is taken that would exceed it.
        unit: what is added or removed between neighbours: a ``record``, or a ``user``, all records that share a unit.
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
        """What is protected, in a word: ``record`` or ``unit``."""
        return protected_by(self.unit)


@dataclass(frozen=True)
class Sampling:
    """Who takes part in a step: every record with probability q = B/N. Where units are protected, N and B count units.

    Args:
        records: N, number of training records (or units).
        batch: B, expected records (or units) in a step.
        per_unit: at most so many records of a drawn unit take part.
    """

    records: int
    batch: int
    per_unit: int = 1

    def __post_init__(self) -> None:
        normalise_numbers(self)
        require_within("the number of training records (or units)", self.records, 2, MOST_RECORDS)
        require_within("batch", self.batch, 1, self.records, " (the training records)")
        require_within("per_unit", self.per_unit, 1)

    @property
    def rate(self) -> float:
        """q = B/N, the probability of each record (or unit) to take part in a step."""
        return self.batch / self.records


@dataclass(frozen=True)
class Bounding:
    """How one record's influence on a step's sum is bounded.

    Args:
        group_size: S, expected records (or units) in a group; public ones that join it do not count.
        clip_norm: C, largest L2 norm of what the method clips, such as one group's gradient.
        method_name: one of `dpfed.privacy.method.METHODS`; ``none``: no clipping, no noise, no privacy.
        options: the method's own public numbers.
        max_group_size: a group keeps at most so many of its own records; ``None`` keeps all.
        max_batch: at most so many of the drawn records take part, where the method needs such a cap; otherwise ``None``.
        clipping: ``fixed``: longer gradients are clipped to C; ``automatic``: every one is normalised to C; ``adaptive``: they
            are clipped to a threshold that follows a quantile of their norms and starts at C, and are sent in units of it.
        stability: added to the norm by which a gradient is normalised; 0 with other rules.
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
        require(fits, f"stability must be positive with clipping = 'automatic', and 0 otherwise, got {self.stability}")

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
            f"every record forms its own group with method '{name}': group_size must be 1, and there is no max_group_size",
        )
        require(
            not self.method.whole_batch or self.max_group_size is None,
            f"max_group_size is for groups, and method '{name}' has none",
        )

    @property
    def method(self) -> Method:
        """The method itself."""
        return method_named(self.method_name)

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
        return self.clip_norm if self.method.private else math.inf

    def require_measured(self, wanted: str) -> None:
        """Refuses a setting that is proven for groups with a clipped gradient each, where the method has none."""
        measured = [name for name in METHODS if method_named(name).supports_metrics]
        require(self.method.private, f"{wanted} has nothing to do without privacy (method '{self.method_name}'): leave it out")
        require(
            self.method.supports_metrics,
            f"{wanted} is proven for the methods {', '.join(measured)}, whose groups have a clipped gradient each, and not for "
            f"'{self.method_name}'",
        )

    def refuse_unmeant(self) -> None:
        """Refuses a clip norm or a stability that nobody means, of new plans only: that of a file is taken as it is.

        Raises:
            UserError: saying what it may be, and what to begin with.
        """
        wrong = wrong_clip_norm(self.clip_norm)
        require(not wrong, f"clip_norm: {wrong}; got {self.clip_norm:g}")
        wrong = wrong_stability(self.stability) if self.clipping == "automatic" else ""
        require(not wrong, f"stability: {wrong}; got {self.stability:g}")


@dataclass(frozen=True)
class NoiseScale:
    """How much noise is added to a step's sum, once, and of which kind.

    Args:
        multiplier: sigma, the noise's standard deviation over the sum's sensitivity; 0 without privacy.
        kind: ``gaussian``, in floating point, or ``discrete``, exact on a grid (`dpfed.privacy.noise`).
    """

    multiplier: float
    kind: NoiseKind = "gaussian"

    def __post_init__(self) -> None:
        normalise_numbers(self, "noise_")
        sigma, most = self.multiplier, accounting.MOST_NOISE
        require(
            sigma == 0 or sigma >= accounting.LEAST_NOISE,
            f"noise_multiplier must be at least {accounting.LEAST_NOISE} (less leaves no promise), got {sigma}",
        )
        require(sigma <= most, f"noise_multiplier must be at most {most:g} (more leaves nothing to learn), got {sigma}")
        require(self.kind in ("gaussian", "discrete"), f"noise must be 'gaussian' or 'discrete', got {self.kind!r}")
        require(
            self.kind == "gaussian" or sigma <= _MOST_DISCRETE,
            f"with noise = 'discrete' noise_multiplier must be at most {_MOST_DISCRETE:g} (the grid grows with it, and "
            f"rounding would cost more than 3 %), got {sigma}",
        )


@dataclass(frozen=True)
class PrivateProgress:
    """What is released of the groups beside their gradients, in the same sum (`dpfed.privacy.group_statistics`).

    Args:
        share: of a step's 1 / sigma^2, in (0, 1).
        quantile: of the gradients' norms, which is followed, in (0, 1).
        loss_range: a loss per record above it counts as it.
        phase: steps whose figures are averaged; ``None``: as many as their noise asks for.
    """

    share: float
    quantile: float
    loss_range: float
    phase: int | None

    def __post_init__(self) -> None:
        normalise_numbers(self, "progress.")
        for name, value in (("share", self.share), ("quantile", self.quantile)):
            require(0 < value < 1, f"progress.{name} must lie strictly between 0 and 1, got {value}")
        require(positive(self.loss_range), f"progress.loss_range must be positive, got {self.loss_range}")
        if self.phase is not None:
            require_within("progress.phase", self.phase, 1)
