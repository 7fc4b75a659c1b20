"""Describes a run's mechanism (its sampler and its noise), and converts it to an event of dp_accounting for the accountants."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpfed.privacy.samplers import Sampler

if TYPE_CHECKING:  # dp_accounting takes a second to import
    import dp_accounting


@dataclass(frozen=True)
class Mechanism:
    """The facts about a run that accounting needs.

    Args:
        sampler: Sampler that draws the participants of each step.
        noise_multiplier: Standard deviation of the noise divided by the sensitivity of a release, sigma.
        releases: Number of releases from each step's sample, each with this noise multiplier.
        shares: Fraction of 1 / sigma^2 that each step takes, if the steps are parts of one Gaussian mechanism with this noise
            multiplier; every record then takes part in each step. Empty if every step has this noise multiplier.

    Raises:
        ValueError: If the sampler's participation is not in (0, 1], or if `shares` is not empty and a record may be
            absent from a step.
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
            raise ValueError(
                "shares divide 1 / sigma^2 among steps in which every record takes part, but here a record takes part with "
                f"probability {self.sampler.participation}: leave shares empty"
            )

    def event(self, steps: int) -> dp_accounting.DpEvent:
        """Returns dp_accounting's event, which describes all releases in `steps` steps."""
        import dp_accounting

        poisson = self.poisson_steps(steps)
        if poisson is None:
            # The published accounting of DPCL, which is not sound: every release counts as if it had its own sample.
            return self.sampler.event(dp_accounting.GaussianDpEvent(self.noise_multiplier), steps * self.releases)
        multiplier, rate, count = poisson
        step = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(multiplier))
        return dp_accounting.SelfComposedDpEvent(step, count)

    def poisson_steps(self, steps: int) -> tuple[float, float, int] | None:
        """Returns noise multiplier, rate and number of Poisson-sampled releases that cost at least as much as `steps` steps.

        The result is ``None`` if the sampler's cost cannot be bounded in this way.

        The m (`releases`) releases of one sample cost as much as one Gaussian release with multiplier sigma / sqrt(m). To count
        them as releases of m independent samples would understate the cost. If steps differ in cost (`shares`), the largest
        shares are summed, so the result holds whichever steps were taken. Shares may be summed because 1 / sigma^2 adds up over
        Gaussian releases on all records, even if a release is chosen adaptively from the results of another.
        """
        if self.shares:
            rounds, rest = divmod(steps, len(self.shares))
            taken = rounds * math.fsum(self.shares) + math.fsum(sorted(self.shares, reverse=True)[:rest])
            return (self.noise_multiplier / math.sqrt(taken), 1.0, 1) if steps else (self.noise_multiplier, 1.0, 0)
        same = self.sampler.poisson_steps(steps)
        return None if same is None else (self.noise_multiplier / math.sqrt(self.releases), *same)
