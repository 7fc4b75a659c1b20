"""Who is drawn in a step, with probability q for each of N records: by dpfed, by Opacus and by jax_privacy.

Each is a function of a `Draw`, and of a number that it ignores; it returns a function that draws `steps` steps.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpfed.privacy.randomness import Randomness
from dpfed.privacy.renewals import Renewals, block_length

STEPS = 100_000  # T of the run


@dataclass(frozen=True)
class Draw:
    """One cell.

    Attributes:
        records: N.
        batch: B.
    """

    records: int
    batch: int

    @property
    def rate(self) -> float:
        """q."""
        return self.batch / self.records

    @property
    def keys(self) -> np.ndarray:
        """``(N,)`` uint64."""
        return np.random.default_rng(0).integers(0, 2**64, self.records, np.uint64)


class Drawing:
    """Draws steps one after the other.

    Args:
        draw: who is drawn in a step, by its number.
        steps: of one call.

    Attributes:
        steps: of one call.
        drawn: how many records the latest call drew in a step, on average.
    """

    def __init__(self, draw: Callable[[int], Any], steps: int) -> None:
        self._draw, self._numbers, self.steps, self.drawn = draw, itertools.count(), steps, 0.0

    def __call__(self) -> None:
        """The next steps."""
        self.drawn = sum(len(self._draw(next(self._numbers))) for _ in range(self.steps)) / self.steps


def gaps(draw: Draw, at_once: int) -> Drawing:
    """dpfed's: a block of steps at a time, of which all are taken out."""
    length = block_length(draw.rate, STEPS)
    return Drawing(Renewals(draw.rate, length, Randomness.from_seed(0), draw.keys), length)


def opacus(draw: Draw, at_once: int) -> Drawing:
    """Opacus' sampler, which its Poisson data loader uses."""
    from opacus.utils.uniform_sampler import UniformWithReplacementSampler

    batches = iter(UniformWithReplacementSampler(num_samples=draw.records, sample_rate=draw.rate, steps=STEPS))
    return Drawing(lambda _: next(batches), 1)


def jax_privacy(draw: Draw, at_once: int) -> Drawing:
    """jax_privacy's sampler; it shuffles the records once, before its first step."""
    from jax_privacy.batch_selection import CyclicPoissonSampling, PartitionType

    sampling = CyclicPoissonSampling(draw.rate, STEPS, partition_type=PartitionType.INDEPENDENT)
    batches = sampling.batch_iterator(draw.records, rng=0)
    next(batches)
    return Drawing(lambda _: next(batches), 50)
