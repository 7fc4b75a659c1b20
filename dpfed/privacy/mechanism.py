"""The mechanism of a run, as data: who is drawn, and how noisy each release is. All accounting follows from its event."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpfed.privacy.samplers import Sampler, poisson_event

if TYPE_CHECKING:  # it takes a second to import
    import dp_accounting


@dataclass(frozen=True)
class Mechanism:
    """One value, of which accounting knows nothing more.

    Args:
        sampler: who takes part in each step.
        noise_multiplier: sigma, standard deviation of the noise over the sensitivity of what is released.
        releases: of a step, each accounted for at that multiplier.
    """

    sampler: Sampler
    noise_multiplier: float
    releases: int = 1

    def event(self, steps: int) -> dp_accounting.DpEvent:
        """All that `steps` steps release, as dp_accounting composes it."""
        import dp_accounting

        release = dp_accounting.GaussianDpEvent(self.noise_multiplier)
        if (same := self.poisson_steps(steps)) is not None:
            return poisson_event(release, *same)
        return self.sampler.event(release, steps * self.releases)

    def poisson_steps(self, steps: int) -> tuple[float, int] | None:
        """Rate and number of Poisson-sampled releases that cost at least as much; ``None``: it is accounted for otherwise."""
        same = self.sampler.poisson_steps(steps)
        return None if same is None else (same[0], same[1] * self.releases)
