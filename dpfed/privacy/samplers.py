"""Defines samplers, which draw the participants of a step and state the privacy cost of these draws.

Only the sampler knows how records are drawn. `participants` (or `draw`) draws them, `relation` states between which data sets
the promise holds, and `poisson_steps` (or `event`) states the event that accounting composes. Sampling, accounting, plan and
privacy card follow from the sampler object. A new sampler needs a subclass of `Sampler` and a proof.

The module also defines the neighbouring relations between data sets.
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
    """A neighbouring relation: two data sets that differ in one record, or in one unit with all its records.

    Args:
        verb: Words for the change of this record or unit, such as ``add or remove``.
        known: Name of the relation in dp_accounting.
    """

    verb: str
    known: str

    @property
    def of_accountants(self) -> dp_accounting.NeighboringRelation:
        """The relation in the form that dp_accounting's accountants expect."""
        import dp_accounting

        return dp_accounting.NeighboringRelation[self.known]

    def describe(self, protected: str, unit: bool) -> str:
        """Returns the relation in words, for the privacy card.

        Args:
            protected: Word for the record or unit that is protected, such as ``record`` or ``patient``.
            unit: Whether a unit is protected, whose records are added or removed together.
        """
        return f"{self.verb} one {protected}" + (" with all its records" if unit else "")


ADD_OR_REMOVE = Relation("add or remove", "ADD_OR_REMOVE_ONE")
REPLACE = Relation("replace", "REPLACE_ONE")


class Sampler(ABC):
    """The way in which the records (or units) of a step are drawn. Samplers are immutable, hashable and without secrets.

    A subclass overrides `draw`, which draws each step separately, or `participants`. It states the cost of its draws by
    `poisson_steps`, or by `event` if Poisson samples cannot bound that cost.

    Attributes:
        relation: Neighbouring relation for which the cost holds.
    """

    relation: ClassVar[Relation]

    @property
    @abstractmethod
    def participation(self) -> float:
        """Probability that a record takes part in a step, on average over the steps."""

    @property
    def accounted(self) -> Sampler:
        """Sampler that accounting uses in place of this one: the same for all samplers whose draws have equal probabilities."""
        return self

    def draw(self, randomness: Randomness, step: int, keys: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
        """Draws the participants of a step.

        Args:
            randomness: Secret randomness of the workers, for draws beyond `uniforms`.
            step: Training step.
            keys: Keys of the records (or units), ``(n,)`` uint64.
            uniforms: Uniform numbers, one for each key, ``(n,)`` float64 in [0, 1); drawn anew in each step. Each depends on
                the secret randomness, the step and its own key, and on no other record.

        Returns:
            Positions of the participants among the n keys, ascending. With Poisson sampling and its variants, the participation
            of a record depends on its own key and draws alone.

        Raises:
            TypeError: If the sampler overrides neither this method nor `participants`.
        """
        raise TypeError(f"{type(self).__name__} draws no records: override draw or participants")

    def participants(
        self, randomness: Randomness, keys: np.ndarray, mask: RowMask | None = None
    ) -> Callable[[int], np.ndarray]:
        """Returns a function that takes a step, and returns the positions of its participants among the keys, ascending.

        Args:
            randomness: Secret randomness of the workers.
            keys: Keys of the records (or units), ``(n,)`` uint64.
            mask: Function of two positions, `first` and `end`, that returns which of the keys from `first` to `end` (excluded)
                may take part at all, ``(end - first,)`` bool; ``None`` if all of them may.
        """
        places = None if mask is None else np.flatnonzero(mask(0, len(keys)))
        keys = keys if places is None else keys[places]

        def drawn(step: int) -> np.ndarray:
            chosen = self.draw(randomness, step, keys, randomness.per_record("sample", step, keys, 1)[:, 0])
            return chosen if places is None else places[chosen]

        return drawn

    @abstractmethod
    def describe(self, protected: str) -> str:
        """Returns the sampling in words, for the privacy card; `protected` is what is drawn, such as ``record``."""

    def poisson_steps(self, steps: int) -> tuple[float, int] | None:
        """Returns rate and number of Poisson-sampled steps that cost at least as much as `steps` steps of this sampler.

        The result is ``None`` if `event` states the cost.
        """
        return None

    def event(self, release: dp_accounting.DpEvent, steps: int) -> dp_accounting.DpEvent:
        """Returns dp_accounting's event of `steps` steps, each with one `release` of its sample.

        Raises:
            TypeError: If the sampler overrides neither this method nor `poisson_steps`.
        """
        raise TypeError(f"{type(self).__name__} states no cost: override poisson_steps or event")


@dataclass(frozen=True)
class PoissonSampler(Sampler):
    """Poisson sampling: every record is drawn independently in every step.

    The sampler draws the gaps between the steps in which a record takes part (`dpfed.privacy.geometric_skips`).

    Args:
        rate: Probability with which a record takes part in a step, q.
        block: Number of steps whose draws are made together.
    """

    rate: float
    block: int = 1
    relation = ADD_OR_REMOVE

    @property
    def participation(self) -> float:
        """Probability that a record takes part in a step, see `Sampler.participation`."""
        return self.rate

    @property
    def accounted(self) -> Sampler:
        """The sampler without its block length, which changes no probability; see `Sampler.accounted`."""
        return dataclasses.replace(self, block=1)

    def participants(
        self, randomness: Randomness, keys: np.ndarray, mask: RowMask | None = None
    ) -> Callable[[int], np.ndarray]:
        """Returns a function from a step to its participants, see `Sampler.participants`."""
        if self.rate >= 1:  # every record takes part in every step
            places = np.arange(len(keys)) if mask is None else np.flatnonzero(mask(0, len(keys)))
            return lambda step: places
        return GeometricSkips(self.rate, self.block, randomness, keys, mask)

    def poisson_steps(self, steps: int) -> tuple[float, int]:
        """Returns rate and number of steps, see `Sampler.poisson_steps`."""
        return self.rate, steps

    def describe(self, protected: str) -> str:
        """Returns the sampling in words, see `Sampler.describe`."""
        return f"none: every {protected} takes part" if self.rate == 1 else f"Poisson: every {protected} is drawn independently"


@dataclass(frozen=True)
class FixedSizeSampler(Sampler):
    """Sampling of a fixed number of records, without replacement (Wang et al. 2019).

    Neighbouring data sets have equally many records.

    Args:
        records: Number of records, N.
        batch: Number of records in each step, B.
    """

    records: int
    batch: int
    relation = REPLACE

    @property
    def participation(self) -> float:
        """Probability that a record takes part in a step, see `Sampler.participation`."""
        return self.batch / self.records

    def draw(self, randomness: Randomness, step: int, keys: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
        """Draws the records with the smallest uniform numbers, see `Sampler.draw`."""
        return np.sort(np.argpartition(uniforms, self.batch - 1)[: self.batch])

    def event(self, release: dp_accounting.DpEvent, steps: int) -> dp_accounting.DpEvent:
        """Returns dp_accounting's event of the steps, see `Sampler.event`."""
        import dp_accounting

        step = dp_accounting.SampledWithoutReplacementDpEvent(self.records, self.batch, release)
        return dp_accounting.SelfComposedDpEvent(step, steps)

    def describe(self, protected: str) -> str:
        """Returns the sampling in words, see `Sampler.describe`."""
        return f"fixed size: {self.batch:,} {protected}s without replacement"
