"""Noise: how much, as a value of the plan, and the one way in which any party adds it.

The noise is a pseudo-random function of a secret key, of public context, of the step, and of the clean numbers themselves. The
same numbers, as in an exact replay, get the same noise. Numbers that differ in their last bit get independent noise: with the
same noise the two could be subtracted from each other.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from dpfed.privacy.discrete_gaussian import Coins, discrete_gaussian
from dpfed.privacy.sum_grid import NOISE_BITS

if TYPE_CHECKING:  # torch takes seconds to import, and a plan is refused without it
    from torch import Tensor

    from dpfed.privacy.randomness import Randomness


NoiseKind = Literal["gaussian", "discrete"]
_CHUNK = 1 << 17  # numbers at a time: bounds the workspace


class Noise(Protocol):
    """What is added to every released vector. Objects are values: frozen, hashable, without secrets."""

    @property
    def std(self) -> float:
        """The least standard deviation of a number's noise; 0: there is none."""
        ...

    @property
    def unit(self) -> float:
        """What a step of the sums stands for that it is added to."""
        ...

    @property
    def said(self) -> str:
        """What kind it is, in words."""
        ...

    def steps(self, values: Tensor, randomness: Randomness, purpose: str, step: int, rank: int, context: str) -> Tensor:
        """Exact sums with their noise, in steps of the noise's own grid.

        Args:
            values: flat, int64, in steps of the sum's grid; left as they are.
            randomness: the party's secret; with all that follows, the key: see `Randomness.add_normal_`.
            purpose: of the noise.
            step: training step.
            rank: the number of the process or client that draws it.
            context: what keys it besides.

        Returns:
            int64, in steps of `step_length`.
        """
        ...

    @property
    def step_length(self) -> float:
        """What one of these steps stands for."""
        ...


@dataclass(frozen=True)
class GaussianNoise:
    """Independent noise of one standard deviation on every number.

    Args:
        std: standard deviation.
        unit: what a grid step of exact sums stands for.
    """

    std: float
    unit: float = 1.0
    said = "Gaussian, in floating point"

    def __post_init__(self) -> None:
        if not 0 <= self.std < math.inf:
            raise ValueError(f"noise has a standard deviation of 0 or more, and a finite one; got {self.std}")

    @property
    def step_length(self) -> float:
        """See `Noise`."""
        return self.unit

    def steps(self, values: Tensor, randomness: Randomness, purpose: str, step: int, rank: int, context: str) -> Tensor:
        """See `Noise`; the noise is rounded down to whole grid steps."""
        return randomness.normal_steps(values, self.std / self.unit, purpose, step, rank, context)

    def steps_of(self, values: Tensor, words: Tensor) -> Tensor:
        """Every row with the noise that `steps` adds by the bits of its key's stream: on a GPU in a few launches for all rows.

        Args:
            values: ``(rows, n)`` int64, n even.
            words: ``(rows, n)`` int64, these bits.
        """
        from dpfed.privacy.randomness import box_muller

        if words.shape != values.shape:  # fewer would be repeated
            raise ValueError(f"expected bits of shape {tuple(values.shape)}, got {tuple(words.shape)}")
        noise = box_muller(words.to(values.device, non_blocking=True))
        return values + noise.mul_(self.std / self.unit).floor_().long()

    def add_(self, values: Tensor, randomness: Randomness, purpose: str, step: int, rank: int, context: str) -> None:
        """Adds it in place to float32 or float64 numbers; the arguments behind them are the key, as of `steps`."""
        randomness.add_normal_(values, self.std, purpose, step, rank, context)


@dataclass(frozen=True)
class DiscreteGaussianNoise:
    """Whole numbers are added to whole numbers: what is promised holds for the bits that are released.

    docs/guarantee.md has the proof (Noise to the last bit).

    Args:
        unit: what a grid step of exact sums stands for.
        finer: how many steps of the noise are one of these, so that 2^31 steps are one standard deviation
            (`dpfed.privacy.sum_grid`).
    """

    unit: float
    finer: int

    @property
    def step_length(self) -> float:
        """See `Noise`."""
        return self.unit / self.finer

    @property
    def std(self) -> float:
        """See `Noise`; of one party."""
        return 2.0**NOISE_BITS * self.step_length

    @property
    def said(self) -> str:
        """See `Noise`."""
        return f"discrete Gaussian, drawn exactly, in steps of {self.step_length:.3g}; sums are whole numbers of such steps"

    def steps(self, values: Tensor, randomness: Randomness, purpose: str, step: int, rank: int, context: str) -> Tensor:
        """See `Noise`."""
        import torch

        if values.dtype != torch.int64:
            raise TypeError(f"discrete noise is for whole numbers, got {values.dtype}")
        coins = Coins(randomness.stream(purpose, step, rank, context))
        noisy = values.cpu() * self.finer
        for part in noisy.split(_CHUNK):
            part += torch.from_numpy(discrete_gaussian(coins, part.numel(), NOISE_BITS))
        return noisy.to(values.device)


class KeyedNoise:
    """The noise that one party adds for one purpose, keyed by what it hides.

    Args:
        noise: how much.
        randomness: the party's secret.
        purpose: what the noise is on, such as ``noise`` for the sum; different purposes are independent.
        context: public, such as the fingerprint of the plan.
        rank: the number of the process or client that draws it.
        letters: of the digest, 4 bits each.
    """

    def __init__(
        self, noise: Noise, randomness: Randomness, purpose: str, context: str, rank: int = 0, letters: int = 32
    ) -> None:
        self.noise = noise
        self._randomness, self._purpose, self._context = randomness, purpose, context
        self._rank, self._letters = rank, letters

    def steps(self, values: Tensor, step: int) -> Tensor:
        """Exact sums, int64, with the noise of a step, see `Noise.steps`."""
        return self.noise.steps(values.view(-1), *self._key(step, values))

    def noisy(self, values: Tensor, step: int) -> Tensor:
        """The same as float32 numbers: what they stand for."""
        return in_floats(self.steps(values, step), self.noise)

    def add_(self, values: Tensor, step: int) -> Tensor:
        """Adds the noise of a step in place to contiguous float32 or float64 numbers, and returns them; Gaussian noise only."""
        if not isinstance(self.noise, GaussianNoise):
            raise TypeError(f"only Gaussian noise is added to numbers in floating point, this is {self.noise}")
        self.noise.add_(values.view(-1), *self._key(step, values))
        return values

    def _key(self, step: int, of: Tensor) -> tuple[Randomness, str, int, int, str]:
        context = f"{self._context}/{digest_of(of, self._letters)}"
        return self._randomness, self._purpose, step, self._rank, context


def in_floats(steps: Tensor, noise: Noise) -> Tensor:
    """``(n,)`` float32: what steps of a noise's grid stand for, rounded once. Never called before the noise is there."""
    return (steps.double() * noise.step_length).float()


def digest_of(vector: Tensor, letters: int = 32) -> str:
    """A hash of a tensor's bits.

    Args:
        vector: contiguous.
        letters: hexadecimal ones that are kept.
    """
    # SHA-256: the fastest where the processor has instructions for it.
    return hashlib.sha256(vector.detach().cpu().numpy().data).hexdigest()[:letters]
