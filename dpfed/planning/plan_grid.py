"""Plans beside the configured one, and how far each goes along the gradient.

One noisy step goes in the gradient's direction with a cosine of r / sqrt(1 + r^2), where r is signal over noise
(`gradient_signal.py`). The optimizers of private training normalise their steps, so T noisy steps go about as far along
the gradient as T cosines of steps without noise: the reach of the plan. It orders plans; it does not measure accuracy
(docs/results.md holds it against runs).
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

_LONGER = 2.0  # times as long as configured: as long as the best of the grid may take
_ROUNDS = 4  # of a search for sigma


@dataclass(frozen=True)
class Row:
    """One plan of the grid.

    Attributes:
        what: differs from the configuration.
        plan: with its sigma.
        noise_over_gradient: of one step, by their lengths.
        reach: how many steps without noise the whole run is worth.
        seconds: that it takes on this machine.
        numbers: P.
    """

    what: str
    plan: PrivacyPlan
    noise_over_gradient: float
    reach: float
    seconds: float
    numbers: int

    @classmethod
    def of(cls, what: str, plan: PrivacyPlan, signal: Signal) -> Row:
        """What a plan comes to, with the gradient of its groups."""
        noise = plan.noise_std / plan.divisor
        length = noise * math.sqrt(signal.numbers)
        over = length / signal.length if signal.length else math.inf
        ratio = signal.response / noise
        reach = plan.steps * ratio / math.hypot(1.0, ratio)
        return cls(what, plan, over, reach, signal.seconds * plan.sampling.batch * plan.steps, signal.numbers)

    def facts(self) -> dict[str, Any]:
        """For JSON."""
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
    """Plans that differ in one number, and the best of all combinations that do not take much longer.

    Args:
        plan: as configured.
        signals: by group size, the configured one first.
        warmup: steps that a run has at least.
        epsilon: of the plan.
        seconds: that the plan takes.
    """
    given = plan.sampling.batch
    batches = [batch for batch in (given // 2, 2 * given, 4 * given) if 2 <= batch <= plan.sampling.records]
    steps = [count for count in (plan.steps // 2, 2 * plan.steps) if count > warmup]
    own = signals[plan.bounding.group_size]
    for size in list(signals)[1:]:
        yield Row.of(f"group size {size}", plan.replace(group_size=size), signals[size])
    noisy = {(given, plan.steps): plan}
    for batch, count in itertools.product([given, *batches], [plan.steps, *steps]):
        if (batch, count) not in noisy and (found := same_promise(plan, batch, count)) is not None:
            noisy[batch, count] = found
    for batch in batches:
        if (found := noisy.get((batch, plan.steps))) is not None:
            yield Row.of(f"batch {batch:,}", found, own)
    for count in steps:
        if (found := noisy.get((given, count))) is not None:
            yield Row.of(f"{count:,} steps", found, own)
    for factor in (0.5, 2.0):
        if (found := same_promise(plan, given, plan.steps, factor)) is not None:
            yield Row.of(f"epsilon {round_up(epsilon * factor)}", found, own)
    together = [
        Row.of("", found.replace(group_size=size), signals[size])
        for (batch, _), found in noisy.items()
        for size in signals
        if size <= batch
    ]
    best = max((row for row in together if row.seconds <= _LONGER * seconds * 1.01), key=lambda row: row.reach)
    batch, size, count = best.plan.sampling.batch, best.plan.bounding.group_size, best.plan.steps
    yield dataclasses.replace(best, what=f"best: B {batch:,}, S {size}, T {count:,}")


def same_promise(plan: PrivacyPlan, batch: int, steps: int, factor: float = 1.0) -> PrivacyPlan | None:
    """The plan with another batch, other steps or `factor` times its epsilon, and about the sigma that this needs.

    Renyi accounting is the quick one: sigma is searched for at which it says what it says of the plan itself.

    Returns:
        The plan; ``None``: there is no such sigma.
    """
    wanted = plan.epsilon(accountant="rdp") * factor
    target, size = plan.promise.target_epsilon, min(plan.bounding.group_size, batch)
    target = None if target is None else target * factor
    draft = plan.replace(batch=batch, group_size=size, steps=steps, target_epsilon=target)
    # The central limit of subsampled Gaussians: q^2 T (exp(1 / sigma^2) - 1) stays what it is.
    scale = (plan.sampling.rate / draft.sampling.rate) ** 2 * plan.steps / steps * factor**2
    sigma = math.log1p(math.expm1(min(plan.noise.multiplier**-2, 500.0)) * scale) ** -0.5
    slope, last = -1.0, None
    try:
        for _ in range(_ROUNDS):
            sigma = min(max(sigma, accounting.LEAST_NOISE), accounting.MOST_NOISE)
            found = draft.replace(noise_multiplier=sigma)
            here = (math.log(sigma), math.log(found.epsilon(accountant="rdp") / wanted))
            if last is not None and here[0] != last[0]:
                slope = min(-0.2, (here[1] - last[1]) / (here[0] - last[0]))
            if abs(here[1]) < 0.01:
                return found
            last, sigma = here, math.exp(here[0] - here[1] / slope)
    except (UserError, ValueError, OverflowError):
        return None
    return found


def finite(value: float) -> float | None:
    """The value, for JSON; ``None`` where it is infinite."""
    return value if math.isfinite(value) else None
