"""Computes the noise and the privacy cost of group statistics, which a step releases with its gradients for training curves.

Every group's clipped gradient is extended by m numbers, each in [-1/2, 1/2]. One number encodes the group's loss. Each of the
others encodes whether the norm of the group's gradient lies below a threshold. Gradient and numbers form one vector. These
vectors are added up over the groups, and the sum gets noise once.

Let C be the clip norm, so a group's gradient has a norm of at most C. If each of the m numbers is multiplied by w first, the
group's vector has a norm of at most C sqrt(1 + m w^2 / 4 C^2). For w = 2 C sqrt(p / ((1 - p) m)) this bound is C / sqrt(1 - p).
So the noise on the gradients grows by the factor 1 / sqrt(1 - p): of the step's privacy, measured as 1 / sigma^2, the fraction
p is spent on the statistics (docs/guarantee.md, Private progress).
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from dpfed.errors import UserError
from dpfed.privacy.parameters import MechanismParameters
from dpfed.privacy.plan_parts import Bounding, PrivateProgress, Sampling

BELOW, LOSS, WITHIN = "below", "loss", "within"
_FINE = 0.025  # wanted standard deviation of a phase's figure, as a fraction of its range
_MOST_PHASES, _LEAST_PHASES = 20, 4
_TELLING = 0.5  # largest useful standard deviation of a phase's figure, as a fraction of its range; above it, only noise shows


@dataclass(frozen=True)
class GroupStatistics:
    """Statistics of a step's groups, which are released together with the sum of the gradients. All fields are public.

    Args:
        names: Names of the numbers, in order: `BELOW` (whether the norm is below the threshold that follows a quantile),
            `LOSS`, and, with ``fixed`` clipping, `WITHIN` (whether the norm is at most the clip norm).
        progress: Settings of the statistics in the plan.
        phase: Number of steps over which figures are averaged.
        unit: Width w that a number's range has in the sum: a number in [-1/2, 1/2] is multiplied by w before it is added up.
            The width is on the scale of the gradients, like the clip norm.
        groups: Expected number of groups that have a gradient in a step.
        groups_std: Standard deviation of the number of groups that have a gradient in a step, or an upper bound on it.
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
        """Returns the statistics that a plan with these parts releases.

        Args:
            progress: Settings of the statistics.
            sampling: Sampling of records (or units) in a step.
            bounding: Clipping of a group's gradient.
            given: Public numbers of the mechanism.
            noise_std: Standard deviation of the noise on each number of the sum.
        """
        names = (BELOW, LOSS, WITHIN) if bounding.clipping == "fixed" else (BELOW, LOSS)
        share = progress.share
        unit = 2 * given.clip_norm * math.sqrt(share / ((1 - share) * len(names)))
        groups, groups_std = _groups(sampling, bounding, given.groups)
        statistics = cls(names, progress, progress.phase or given.steps, unit, groups, groups_std)
        if progress.phase:
            return statistics
        # A phase has enough steps for its figures to stand out from the noise.
        fine = (statistics.error(noise_std) / _FINE) ** 2
        phase = math.ceil(min(max(fine, given.steps / _MOST_PHASES), given.steps / _LEAST_PHASES))
        return dataclasses.replace(statistics, phase=phase)

    def error(self, noise_std: float, steps: int = 1) -> float:
        """Returns the standard deviation of an averaged figure, as a fraction of the figure's range.

        The figure varies because of the noise, and because the number of groups that have a gradient is random.

        Args:
            noise_std: Standard deviation of the noise on each number of the sum.
            steps: Number of steps over which the figure is averaged.
        """
        return math.hypot(noise_std / self.unit, self.groups_std / 2) / (self.groups * math.sqrt(steps))

    def refuse_noise_alone(self, noise_std: float) -> None:
        """Refuses statistics if the noise would hide them entirely.

        Raises:
            UserError: If the error of a figure that is averaged over a phase exceeds half its range; the message suggests
                settings.
        """
        error = self.error(noise_std, self.phase)
        if not error <= _TELLING:
            raise UserError(
                f"diagnostics = 'private' would release noise alone: a figure averaged over {self.phase:,} steps has an error "
                f"of {error:.3g} times its range. Raise progress.share (now {self.progress.share:g}) or progress.phase, have "
                "more groups (privacy.batch / bounding.group_size), or set diagnostics = 'none'. [noise-alone]"
            )


def _groups(sampling: Sampling, bounding: Bounding, groups: int) -> tuple[float, float]:
    """Returns the expected number of groups that have a gradient, and that number's standard deviation, from public numbers.

    If every drawn record forms a group of its own, an upper bound on the standard deviation is returned.

    A group needs two records for a gradient. One drawn record together with public records suffices, and so does one unit of
    several records.
    """
    if bounding.method.public_records:  # every drawn record forms a group of its own
        return sampling.batch, math.sqrt(sampling.batch)
    rate = sampling.rate / groups
    empty = math.exp(sampling.records * math.log1p(-rate)) if rate < 1 else 0.0
    single = sampling.records * rate / (1 - rate) * empty if rate < 1 else 0.0
    there = 1 - empty - (single if sampling.per_unit == 1 else 0.0)  # a unit may bring several records
    return groups * there, math.sqrt(groups * there * (1 - there))
