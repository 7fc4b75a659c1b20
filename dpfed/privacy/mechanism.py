"""The mechanism of a run, as data: who is drawn, and how noisy each release is. All accounting follows from its event."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpfed.privacy.samplers import Sampler

if TYPE_CHECKING:  # it takes a second to import
    import dp_accounting


@dataclass(frozen=True)
class Mechanism:
    """One value, of which accounting knows nothing more.

    Args:
        sampler: who takes part in each step.
        noise_multiplier: sigma, standard deviation of the noise over the sensitivity of what is released.
        releases: of each step's sample, every one at that multiplier.
        shares: of 1 / sigma^2, what each step takes, where the whole run is one Gaussian mechanism at that multiplier whose
            steps are its parts, and every record takes part in each; empty: every step is at that multiplier.
    """

    sampler: Sampler
    noise_multiplier: float
    releases: int = 1
    shares: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.sampler.participation <= 1:
            raise ValueError(
                f"a record takes part with probability {self.sampler.participation}: expected more than 0, at most 1"
            )
        if self.shares and self.sampler.participation != 1:
            raise ValueError("shares of a Gaussian mechanism are for steps in which every record takes part")

    def event(self, steps: int) -> dp_accounting.DpEvent:
        """All that `steps` steps release, as dp_accounting composes it."""
        import dp_accounting

        poisson = self.poisson_steps(steps)
        if poisson is None:
            # As DPCL was published, which is not sound: every release counts as if it had a sample of its own.
            return self.sampler.event(dp_accounting.GaussianDpEvent(self.noise_multiplier), steps * self.releases)
        multiplier, rate, count = poisson
        step = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(multiplier))
        return dp_accounting.SelfComposedDpEvent(step, count)

    def poisson_steps(self, steps: int) -> tuple[float, float, int] | None:
        """Noise multiplier, rate and number of Poisson-sampled releases that cost at least as much; ``None``: none do.

        m releases of one sample are one Gaussian release at multiplier sigma / sqrt(m). They are not m releases of m samples,
        which would cost less. Of steps with shares, the largest ones count, whichever were taken: Gaussian releases that see
        all records add up 1 / sigma^2, also where one was chosen from another.
        """
        if self.shares:
            rounds, rest = divmod(steps, len(self.shares))
            taken = rounds * math.fsum(self.shares) + math.fsum(sorted(self.shares, reverse=True)[:rest])
            return (self.noise_multiplier / math.sqrt(taken), 1.0, 1) if steps else (self.noise_multiplier, 1.0, 0)
        same = self.sampler.poisson_steps(steps)
        return None if same is None else (self.noise_multiplier / math.sqrt(self.releases), *same)
