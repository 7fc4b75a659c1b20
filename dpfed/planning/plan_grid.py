"""Computes alternatives to the configured plan and the reach of each, a measure of its progress along the gradient.

A noisy step has a cosine of r / sqrt(1 + r^2) with the gradient, where r is the ratio of signal to noise
(`gradient_signal.py`). The optimizers of private training normalise their steps. So T noisy steps make about as much progress
as fewer noiseless steps, namely T times this cosine. This number of noiseless steps is called the reach of the plan. The reach
tells which of two plans is better, but does not predict accuracy (docs/results.md compares reaches with runs).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dpfed.errors import UserError
from dpfed.planning.gradient_signal import Signal
from dpfed.privacy import accounting
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.promise import round_up

_LONGER = 2.0  # longest time of the best combination, relative to the configured plan
_ROUNDS = 4  # largest number of iterations of the search for sigma


@dataclass(frozen=True)
class Row:
    """One plan of the table of alternatives, with its figures.

    Attributes:
        what: Description of the difference from the configuration.
        plan: The plan itself, with its sigma.
        noise_over_gradient: Norm of one step's noise, divided by the norm of the mean clipped gradient; infinity if that is 0.
        reach: Number of noiseless steps that make as much progress as the whole run.
        seconds: Time of the run on this machine, in seconds.
        numbers: Number P of trained parameters.
    """

    what: str
    plan: PrivacyPlan
    noise_over_gradient: float
    reach: float
    seconds: float
    numbers: int

    @classmethod
    def of(cls, what: str, plan: PrivacyPlan, signal: Signal) -> Row:
        """Computes the row of a plan from the gradient signal of its groups."""
        noise = plan.noise_std / plan.divisor
        length = noise * math.sqrt(signal.numbers)
        over = length / signal.length if signal.length else math.inf
        ratio = signal.response / noise
        reach = plan.steps * ratio / math.hypot(1.0, ratio)
        return cls(what, plan, over, reach, signal.seconds * plan.sampling.batch * plan.steps, signal.numbers)

    def facts(self) -> dict[str, Any]:
        """Returns the row as values for JSON."""
        plan = self.plan
        return {
            "what": self.what,
            "batch": plan.sampling.batch,
            "group_size": plan.bounding.group_size,
            "steps": plan.steps,
            "epsilon": plan.promise.target_epsilon,
            "noise_multiplier": plan.noise.multiplier,
            "trained_numbers": self.numbers,
            "noise_over_gradient": finite(self.noise_over_gradient),
            "reach": self.reach,
            "seconds": self.seconds,
        }


def grid(plan: PrivacyPlan, signals: dict[int, Signal], warmup: int, epsilon: float, seconds: float) -> Iterator[Row]:
    """Yields the rows of plans that differ from the configured plan in one number, and then the row of the best plan.

    All combinations of the batches, group sizes and numbers of steps are compared at the configured epsilon. The best plan has
    the largest reach among those that take at most about twice as long as the configured plan.

    Args:
        plan: Configured plan.
        signals: Gradient signals by group size, the configured size first.
        warmup: Number of warm-up steps; plans that have no steps after the warm-up are left out.
        epsilon: Epsilon of the configured plan.
        seconds: Time of a run with the configured plan, in seconds.
    """
    given = plan.sampling.batch
    batches = [batch for batch in (given // 2, 2 * given, 4 * given) if 2 <= batch <= plan.sampling.records]
    steps = [count for count in (plan.steps // 2, 2 * plan.steps) if count > warmup]
    signal = signals[plan.bounding.group_size]
    for size in list(signals)[1:]:
        yield Row.of(f"group size {size}", plan.replace(group_size=size), signals[size])
    noisy = {(given, plan.steps): plan}
    for batch, count in itertools.product([given, *batches], [plan.steps, *steps]):
        if (batch, count) not in noisy and (other := same_promise(plan, batch, count)) is not None:
            noisy[batch, count] = other
    for batch in batches:
        if (other := noisy.get((batch, plan.steps))) is not None:
            yield Row.of(f"batch {batch:,}", other, signal)
    for count in steps:
        if (other := noisy.get((given, count))) is not None:
            yield Row.of(f"{count:,} steps", other, signal)
    for factor in (0.5, 2.0):
        if (other := same_promise(plan, given, plan.steps, factor)) is not None:
            yield Row.of(f"epsilon {round_up(epsilon * factor)}", other, signal)
    together = [
        Row.of("", other.replace(group_size=size), signals[size])
        for (batch, _), other in noisy.items()
        for size in signals
        if size <= batch
    ]
    best = max((row for row in together if row.seconds <= _LONGER * seconds * 1.01), key=lambda row: row.reach)
    batch, size, count = best.plan.sampling.batch, best.plan.bounding.group_size, best.plan.steps
    yield dataclasses.replace(best, what=f"best: B {batch:,}, S {size}, T {count:,}")


def same_promise(plan: PrivacyPlan, batch: int, steps: int, factor: float = 1.0) -> PrivacyPlan | None:
    """Returns the plan with another batch, number of steps or epsilon, and with about the sigma that this change requires.

    Sigma is found by Renyi accounting, which is fast, in a few iterations. The Renyi epsilon of the result is `factor` times
    the Renyi epsilon of the given plan, usually to within 1 %, at worst to within 5 %. A group size larger than the new batch
    is lowered to the batch.

    Args:
        plan: Given plan.
        batch: Batch of the new plan, B.
        steps: Steps of the new plan, T.
        factor: Epsilon of the new plan, divided by the epsilon of the given plan.

    Returns:
        The plan; ``None`` if no plan with this batch and these steps is possible, or the iterations find no sigma.
    """
    wanted = plan.epsilon(accountant="rdp") * factor
    target, size = plan.promise.target_epsilon, min(plan.bounding.group_size, batch)
    target = None if target is None else target * factor
    # The central limit of subsampled Gaussians: q^2 T (exp(1 / sigma^2) - 1) is multiplied by factor^2.
    scale = (plan.sampling.batch / batch) ** 2 * plan.steps / steps * factor**2
    sigma = math.log1p(math.expm1(min(plan.noise.multiplier**-2, 500.0)) * scale) ** -0.5
    slope, last = -1.0, None
    try:
        draft = plan.replace(batch=batch, group_size=size, steps=steps, target_epsilon=target)
        for _ in range(_ROUNDS):
            sigma = min(max(sigma, accounting.LEAST_NOISE), accounting.MOST_NOISE)
            changed = draft.replace(noise_multiplier=sigma)
            here = (math.log(sigma), math.log(changed.epsilon(accountant="rdp") / wanted))
            if last is not None and here[0] != last[0]:
                slope = min(-0.2, (here[1] - last[1]) / (here[0] - last[0]))
            if abs(here[1]) < 0.01:
                return changed
            last, sigma = here, math.exp(here[0] - here[1] / slope)
    except (UserError, ValueError, OverflowError):
        return None
    return changed if abs(here[1]) < 0.05 else None


def finite(value: float) -> float | None:
    """Returns the value, or ``None`` if it is not finite, because JSON has only finite numbers."""
    return value if math.isfinite(value) else None
