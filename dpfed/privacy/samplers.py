"""Who takes part in a step: samplers, as values that draw and that say what their draws cost.

A sampler is the one place that knows how records are drawn. `draw` draws them, `relation` says between which data sets the
promise holds, `event` is what accounting composes, and `poisson_steps` is the same cost in Poisson-sampled steps, where there
is one. Sampling, accounting, plan and card follow from the object. To add a sampler: a class like these, and its proof.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from dpfed.privacy.relation import ADD_OR_REMOVE, REPLACE, Relation

if TYPE_CHECKING:  # it takes a second to import
    import dp_accounting

    from dpfed.privacy.randomness import Randomness


class Sampler(Protocol):
    """How the records (or units) of a step are drawn. Objects are values: frozen, hashable, without secrets."""

    @property
    def relation(self) -> Relation:
        """Which data sets are neighbours."""
        ...

    @property
    def participation(self) -> float:
        """The probability of a record to take part in a step, on average over the steps."""
        ...

    def draw(self, randomness: Randomness, step: int, keys: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
        """Who takes part in a step.

        Args:
            randomness: the owner's secret, for draws beside `uniforms`.
            step: training step.
            keys: ``(n,)`` uint64 keys of the records (or units).
            uniforms: ``(n,)`` float64 in [0, 1), fresh in each step; a function of step and key alone.

        Returns:
            Places among the n, ascending. With Poisson-like samplers each is a function of the record's own key and draws.
        """
        ...

    def poisson_steps(self, steps: int) -> tuple[float, int] | None:
        """Rate and number of Poisson-sampled steps that cost a record at least as much; ``None``: accounted for otherwise."""
        ...

    def event(self, release: dp_accounting.DpEvent, steps: int) -> dp_accounting.DpEvent:
        """The cost of `steps` steps, each of which makes one `release` of its sample, as dp_accounting composes it."""
        ...

    def describe(self, protected: str) -> str:
        """For the privacy card; `protected` is what is drawn, such as ``record``."""
        ...


@dataclass(frozen=True)
class PoissonSampler:
    """Every record is drawn independently.

    Args:
        rate: q, the probability of each.
    """

    rate: float
    relation = ADD_OR_REMOVE

    @property
    def participation(self) -> float:
        """See `Sampler`."""
        return self.rate

    def draw(self, randomness: Randomness, step: int, keys: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
        """See `Sampler`."""
        return np.flatnonzero(uniforms < self.rate)

    def poisson_steps(self, steps: int) -> tuple[float, int]:
        """See `Sampler`."""
        return self.rate, steps

    def event(self, release: dp_accounting.DpEvent, steps: int) -> dp_accounting.DpEvent:
        """See `Sampler`."""
        return poisson_event(release, *self.poisson_steps(steps))

    def describe(self, protected: str) -> str:
        """See `Sampler`."""
        return f"Poisson: every {protected} is drawn independently"


@dataclass(frozen=True)
class FixedSizeSampler:
    """So many of the records, without replacement; neighbours have equally many (Wang et al. 2019).

    Args:
        records: N.
        batch: B.
    """

    records: int
    batch: int
    relation = REPLACE

    @property
    def participation(self) -> float:
        """See `Sampler`."""
        return self.batch / self.records

    def draw(self, randomness: Randomness, step: int, keys: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
        """See `Sampler`; those of the least draws."""
        return np.sort(np.argpartition(uniforms, self.batch - 1)[: self.batch])

    def poisson_steps(self, steps: int) -> None:
        """See `Sampler`."""
        return

    def event(self, release: dp_accounting.DpEvent, steps: int) -> dp_accounting.DpEvent:
        """See `Sampler`."""
        import dp_accounting

        step = dp_accounting.SampledWithoutReplacementDpEvent(self.records, self.batch, release)
        return dp_accounting.SelfComposedDpEvent(step, steps)

    def describe(self, protected: str) -> str:
        """See `Sampler`."""
        return f"fixed size: {self.batch:,} {protected}s without replacement"


def poisson_event(release: dp_accounting.DpEvent, rate: float, steps: int) -> dp_accounting.DpEvent:
    """`steps` releases, each of a Poisson sample of its own."""
    import dp_accounting

    return dp_accounting.SelfComposedDpEvent(dp_accounting.PoissonSampledDpEvent(rate, release), steps)
