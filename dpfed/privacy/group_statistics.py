"""Figures of the groups that are released with their gradients, so that a user sees a curve: how noisy, and what they cost.

Every clipped gradient gets a few further numbers, each in [-1/2, 1/2]: the group's loss, and on which side of a threshold its
norm is. They are one vector with the gradient: it is added up as one, and gets one noise. In units in which each of the m
numbers has range w, a group's vector lies within C sqrt(1 + m w^2 / 4 C^2) of zero, where its gradient lies within C. With
w = 2 C sqrt(p / (1 - p) m) that is C / sqrt(1 - p): the noise on the gradients grows by that factor, and p is the share of
1 / sigma^2 that the figures get (docs/guarantee.md, Private progress).
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from dpfed.errors import UserError
from dpfed.privacy.parameters import MechanismParameters
from dpfed.privacy.plan_parts import Bounding, PrivateProgress, Sampling

BELOW, LOSS, WITHIN = "below", "loss", "within"
_FINE = 0.025  # standard deviation of a phase's figure, as a part of its range, that is wanted
_MOST_PHASES, _LEAST_PHASES = 20, 4
_TELLING = 0.5  # standard deviation of a phase's figure, as a part of its range, above which there is nothing to see


@dataclass(frozen=True)
class GroupStatistics:
    """What is released of the groups beside their gradients. All of it is public.

    Args:
        names: of the numbers, in order: `BELOW` (the norm is below the threshold that follows a quantile), `LOSS`, and `WITHIN`
            (the norm is within C), where C is not such a threshold itself.
        progress: the plan's.
        phase: steps whose figures are averaged.
        unit: what the range of a figure is in the sum.
        groups: how many groups have a gradient in a step, expected.
        groups_std: the standard deviation of their number, or a bound of it.
    """

    names: tuple[str, ...]
    progress: PrivateProgress
    phase: int
    unit: float
    groups: float
    groups_std: float

    @classmethod
    def of(
        cls, progress: PrivateProgress, sampling: Sampling, bounding: Bounding, given: MechanismParameters, noise_std: float
    ) -> GroupStatistics:
        """What a plan with these parts releases.

        Args:
            progress: what is asked for.
            sampling: who takes part in a step.
            bounding: how a group's gradient is clipped.
            given: the numbers of the mechanism.
            noise_std: of the noise on each number of the sum.
        """
        names = (BELOW, LOSS, WITHIN) if bounding.clipping == "fixed" else (BELOW, LOSS)
        share = progress.share
        unit = 2 * given.clip_norm * math.sqrt(share / ((1 - share) * len(names)))
        groups, groups_std = _groups(sampling, bounding, given.groups)
        statistics = cls(names, progress, progress.phase or given.steps, unit, groups, groups_std)
        if progress.phase:
            return statistics
        # As many steps as make a phase whose figures can be distinguished.
        fine = (statistics.error(noise_std) / _FINE) ** 2
        phase = math.ceil(min(max(fine, given.steps / _MOST_PHASES), given.steps / _LEAST_PHASES))
        return dataclasses.replace(statistics, phase=phase)

    def error(self, noise_std: float, steps: int = 1) -> float:
        """Standard deviation of a figure that is averaged over steps, as a part of its range: noise, and the groups' number.

        Args:
            noise_std: of the noise on each number of the sum.
            steps: that are averaged.
        """
        return math.hypot(noise_std / self.unit, self.groups_std / 2) / (self.groups * math.sqrt(steps))

    def refuse_noise_alone(self, noise_std: float) -> None:
        """Refuses figures of which one could see nothing.

        Raises:
            UserError: saying what would help.
        """
        error = self.error(noise_std, self.phase)
        if not error <= _TELLING:
            raise UserError(
                f"diagnostics = 'private' would release noise alone: a figure of a phase of {self.phase:,} steps has an error "
                f"of {error:.3g} times its range. Raise progress.share (now {self.progress.share:g}) or progress.phase, have "
                "more groups, or set diagnostics = 'none'. [noise-alone]"
            )


def _groups(sampling: Sampling, bounding: Bounding, groups: int) -> tuple[float, float]:
    """Expected number of groups with at least two records, and its standard deviation; functions of public numbers."""
    if bounding.method.public_records:  # every drawn record makes one
        return sampling.batch, math.sqrt(sampling.batch)
    rate = sampling.rate / groups
    none = math.exp(sampling.records * math.log1p(-rate)) if rate < 1 else 0.0
    one = sampling.records * rate / (1 - rate) * none if rate < 1 else 0.0
    there = 1 - none - (one if sampling.per_unit == 1 else 0.0)  # a unit may bring several records
    return groups * there, math.sqrt(groups * there * (1 - there))
