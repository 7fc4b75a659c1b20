"""Who takes part in a step: samplers, as values that draw and that say what their draws cost.

A sampler is the one place that knows how records are drawn. `participants` (or `draw`) draws them, `relation` says between
which data sets the promise holds, and `poisson_steps` (or `event`) says what accounting composes. Sampling, accounting, plan
and card follow from the object. To add a sampler: a class like these, and its proof.

Also here: between which data sets a promise holds.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from dpfed.privacy.geometric_skips import GeometricSkips, RowMask

if TYPE_CHECKING:
    import dp_accounting

    from dpfed.privacy.randomness import Randomness


@dataclass(frozen=True)
class Relation:
    """Which two data sets are neighbours: they differ in one record, or in one unit with all its records.

    Args:
        verb: what happens to it, such as ``add or remove``.
        known: the name that dp_accounting has for this relation.
    """

    verb: str
    known: str

    @property
    def of_accountants(self) -> dp_accounting.NeighboringRelation:
        """As accountants expect it."""
        import dp_accounting

        return dp_accounting.NeighboringRelation[self.known]

    def describe(self, protected: str, unit: bool) -> str:
        """For the privacy card.

        Args:
            protected: what one of them is called, such as ``record`` or ``patient``.
            unit: whether all records that share one come and go together.
        """
        return f"{self.verb} one {protected}" + (" with all its records" if unit else "")


ADD_OR_REMOVE = Relation("add or remove", "ADD_OR_REMOVE_ONE")
REPLACE = Relation("replace", "REPLACE_ONE")


class Sampler(ABC):
    """How the records (or units) of a step are drawn. Objects are values: frozen, hashable, without secrets.

    Who takes part is said by `draw` for each step by itself, or by `participants`. What the draws cost is said by
    `poisson_steps`, or by `event` where no number of Poisson samples costs as much.

    Attributes:
        relation: which data sets are neighbours.
    """

    relation: ClassVar[Relation]

    @property
    @abstractmethod
    def participation(self) -> float:
        """The probability of a record to take part in a step, on average over the steps."""

    @property
    def accounted(self) -> Sampler:
        """A sampler that costs the same, for all that differ in how the same draws are made."""
        return self

    def draw(self, randomness: Randomness, step: int, keys: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
        """Who takes part in a step.

        Args:
            randomness: the workers' secret, for draws beside `uniforms`.
            step: training step.
            keys: ``(n,)`` uint64 keys of the records (or units).
            uniforms: ``(n,)`` float64 in [0, 1), fresh in each step; a function of step and key alone.

        Returns:
            Places among the n, ascending. With Poisson-like samplers each is a function of the record's own key and draws.
        """
        raise TypeError(f"{type(self).__name__} draws nobody: override draw or participants")

    def participants(
        self, randomness: Randomness, keys: np.ndarray, mask: RowMask | None = None
    ) -> Callable[[int], np.ndarray]:
        """Who takes part in any step: a function of the step.

        Args:
            randomness: the workers' secret.
            keys: ``(n,)`` uint64 keys of the records (or units).
            mask: which of them take part at all; ``None``: all.
        """
        places = None if mask is None else np.flatnonzero(mask(0, len(keys)))
        keys = keys if places is None else keys[places]

        def drawn(step: int) -> np.ndarray:
            chosen = self.draw(randomness, step, keys, randomness.per_record("sample", step, keys, 1)[:, 0])
            return chosen if places is None else places[chosen]

        return drawn

    @abstractmethod
    def describe(self, protected: str) -> str:
        """For the privacy card; `protected` is what is drawn, such as ``record``."""

    def poisson_steps(self, steps: int) -> tuple[float, int] | None:
        """Rate and number of Poisson-sampled steps that cost a record at least as much; ``None``: `event` says the cost."""
        return None

    def event(self, release: dp_accounting.DpEvent, steps: int) -> dp_accounting.DpEvent:
        """The cost of `steps` steps, each of which makes one `release` of a sample, as dp_accounting composes it."""
        raise TypeError(f"{type(self).__name__} states no cost: override poisson_steps or event")


@dataclass(frozen=True)
class PoissonSampler(Sampler):
    """Every record is drawn independently, by the gaps between its draws (`dpfed.privacy.geometric_skips`).

    Args:
        rate: q, the probability of each.
        block: steps that are drawn at a time.
    """

    rate: float
    block: int = 1
    relation = ADD_OR_REMOVE

    @property
    def participation(self) -> float:
        """See `Sampler`."""
        return self.rate

    @property
    def accounted(self) -> Sampler:
        """See `Sampler`: the length of the blocks changes no probability."""
        return dataclasses.replace(self, block=1)

    def participants(
        self, randomness: Randomness, keys: np.ndarray, mask: RowMask | None = None
    ) -> Callable[[int], np.ndarray]:
        """See `Sampler`."""
        if self.rate >= 1:  # every record takes part in every step
            places = np.arange(len(keys)) if mask is None else np.flatnonzero(mask(0, len(keys)))
            return lambda step: places
        return GeometricSkips(self.rate, self.block, randomness, keys, mask)

    def poisson_steps(self, steps: int) -> tuple[float, int]:
        """See `Sampler`."""
        return self.rate, steps

    def describe(self, protected: str) -> str:
        """See `Sampler`."""
        return f"none: every {protected} takes part" if self.rate == 1 else f"Poisson: every {protected} is drawn independently"


@dataclass(frozen=True)
class FixedSizeSampler(Sampler):
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

    def event(self, release: dp_accounting.DpEvent, steps: int) -> dp_accounting.DpEvent:
        """See `Sampler`."""
        import dp_accounting

        step = dp_accounting.SampledWithoutReplacementDpEvent(self.records, self.batch, release)
        return dp_accounting.SelfComposedDpEvent(step, steps)

    def describe(self, protected: str) -> str:
        """See `Sampler`."""
        return f"fixed size: {self.batch:,} {protected}s without replacement"
