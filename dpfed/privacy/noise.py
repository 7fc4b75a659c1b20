"""Defines the noise: its kind and scale, which are part of the plan, and the only way in which a party adds noise.

The noise is a pseudo-random function of a secret key, of public context, of the step, and of the clean numbers themselves. The
same numbers get the same noise, as an exact replay requires. Numbers that differ, if only in the last bit, get independent
noise. Otherwise the difference of two noisy sums would reveal the exact difference.
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
    """The noise on every released vector. Objects of this type are immutable, hashable and without secrets."""

    @property
    def std(self) -> float:
        """Lower bound on the standard deviation of the noise on each number; 0 if there is no noise."""
        ...

    @property
    def unit(self) -> float:
        """Length of a grid step of the exact sums, in units of the released vector."""
        ...

    @property
    def said(self) -> str:
        """Kind of the noise, in words."""
        ...

    def steps(self, values: Tensor, randomness: Randomness, purpose: str, step: int, rank: int, context: str) -> Tensor:
        """Returns exact sums plus their noise, in steps of the noise's own grid.

        Args:
            values: Exact sums, flat, int64, in steps of the sum's grid; not modified.
            randomness: Secret randomness of the party; it and the following arguments form the key of the noise.
            purpose: Purpose of the noise, see `Randomness.add_normal_`.
            step: Training step.
            rank: Rank of the process or client that draws the noise.
            context: Further part of the key; with another context, the noise is independent.

        Returns:
            The noisy sums, int64, in steps of `step_length`.
        """
        ...

    @property
    def step_length(self) -> float:
        """Length of a step of the noise's own grid, in units of the released vector."""
        ...


@dataclass(frozen=True)
class GaussianNoise:
    """Gaussian noise that is independent on every number, with the same standard deviation.

    Args:
        std: Standard deviation, finite, 0 or more.
        unit: Length of a grid step of exact sums.

    Raises:
        ValueError: If the standard deviation is negative or not finite.
    """

    std: float
    unit: float = 1.0
    said = "Gaussian, in floating point"

    def __post_init__(self) -> None:
        if not 0 <= self.std < math.inf:
            raise ValueError(f"the standard deviation of the noise must be finite, and 0 or more, got {self.std}")

    @property
    def step_length(self) -> float:
        """Length of a step of the noise's own grid, see `Noise.step_length`."""
        return self.unit

    def steps(self, values: Tensor, randomness: Randomness, purpose: str, step: int, rank: int, context: str) -> Tensor:
        """Returns exact sums plus their noise, which is rounded down to whole grid steps; see `Noise.steps`."""
        return randomness.normal_steps(values, self.std / self.unit, purpose, step, rank, context)

    def steps_of(self, values: Tensor, words: Tensor) -> Tensor:
        """Returns every row plus the noise that `steps` adds, computed from given random bits.

        A GPU needs only a few launches for all rows together.

        Args:
            values: Exact sums, ``(rows, n)`` int64, n even.
            words: Random bits, from the stream of each row's key, ``(rows, n)`` int64.

        Returns:
            The noisy sums, ``(rows, n)`` int64.

        Raises:
            ValueError: If the shape of the bits differs from that of the sums.
        """
        from dpfed.privacy.randomness import box_muller

        if words.shape != values.shape:  # fewer bits would be repeated
            raise ValueError(f"expected bits of shape {tuple(values.shape)}, got {tuple(words.shape)}")
        noise = box_muller(words.to(values.device, non_blocking=True))
        return values + noise.mul_(self.std / self.unit).floor_().long()

    def add_(self, values: Tensor, randomness: Randomness, purpose: str, step: int, rank: int, context: str) -> None:
        """Adds noise in place to flat float32 or float64 numbers; the other arguments form the key, as in `steps`."""
        randomness.add_normal_(values, self.std, purpose, step, rank, context)


@dataclass(frozen=True)
class DiscreteGaussianNoise:
    """Discrete Gaussian noise: integers that are added to sums of integers, so that the promise holds for the released bits.

    docs/guarantee.md has the proof (Noise to the last bit).

    Args:
        unit: Length of a grid step of exact sums.
        finer: Number of steps of the noise's grid in one step of the sum's grid, chosen so that 2^31 steps of the noise's grid
            are one standard deviation (`dpfed.privacy.sum_grid`).
    """

    unit: float
    finer: int

    @property
    def step_length(self) -> float:
        """Length of a step of the noise's own grid, see `Noise.step_length`."""
        return self.unit / self.finer

    @property
    def std(self) -> float:
        """Standard deviation of one party's noise, see `Noise.std`."""
        return 2.0**NOISE_BITS * self.step_length

    @property
    def said(self) -> str:
        """Kind of the noise, in words, see `Noise.said`."""
        return f"discrete Gaussian, drawn exactly, in steps of {self.step_length:.3g}; sums are whole numbers of such steps"

    def steps(self, values: Tensor, randomness: Randomness, purpose: str, step: int, rank: int, context: str) -> Tensor:
        """Returns exact sums plus their noise, see `Noise.steps`.

        Raises:
            TypeError: If the sums are not int64.
        """
        import torch

        if values.dtype != torch.int64:
            raise TypeError(f"discrete noise is added to whole numbers: expected int64, got {values.dtype}")
        coins = Coins(randomness.stream(purpose, step, rank, context))
        noisy = values.cpu() * self.finer
        for part in noisy.split(_CHUNK):
            part += torch.from_numpy(discrete_gaussian(coins, part.numel(), NOISE_BITS))
        return noisy.to(values.device)


class KeyedNoise:
    """The noise that one party adds for one purpose; its key depends on the numbers that it hides.

    Args:
        noise: Kind and scale of the noise.
        randomness: Secret randomness of the party.
        purpose: Purpose of the noise, such as ``noise`` for the sum; noise of different purposes is independent.
        context: Public context, such as the fingerprint of the plan.
        rank: Rank of the process or client that draws the noise.
        letters: Number of hexadecimal digits, of 4 bits each, in the digest of the numbers; the digest is part of the key.
    """

    def __init__(
        self, noise: Noise, randomness: Randomness, purpose: str, context: str, rank: int = 0, letters: int = 32
    ) -> None:
        self.noise = noise
        self._randomness, self._purpose, self._context = randomness, purpose, context
        self._rank, self._letters = rank, letters

    def steps(self, values: Tensor, step: int) -> Tensor:
        """Returns int64 exact sums plus the noise of a step, in steps of the noise's grid; see `Noise.steps`."""
        return self.noise.steps(values.view(-1), *self._key(step, values))

    def noisy(self, values: Tensor, step: int) -> Tensor:
        """Returns int64 exact sums plus the noise of a step, as float32 real values, no longer in grid steps."""
        return in_floats(self.steps(values, step), self.noise)

    def add_(self, values: Tensor, step: int) -> Tensor:
        """Adds the noise of a step in place to contiguous float32 or float64 numbers, and returns them.

        Raises:
            TypeError: If the noise is not Gaussian.
        """
        if not isinstance(self.noise, GaussianNoise):
            raise TypeError(f"only Gaussian noise can be added to floating-point numbers, got {self.noise}")
        self.noise.add_(values.view(-1), *self._key(step, values))
        return values

    def _key(self, step: int, of: Tensor) -> tuple[Randomness, str, int, int, str]:
        context = f"{self._context}/{digest_of(of, self._letters)}"
        return self._randomness, self._purpose, step, self._rank, context


def in_floats(steps: Tensor, noise: Noise) -> Tensor:
    """Converts noisy sums ``(n,)``, in steps of a noise's grid, to float32 real values, with one rounding."""
    return (steps.double() * noise.step_length).float()


def digest_of(vector: Tensor, letters: int = 32) -> str:
    """Returns a SHA-256 hash of a tensor's bits.

    Args:
        vector: Contiguous tensor.
        letters: Number of hexadecimal digits to keep.
    """
    # SHA-256 is the fastest hash where the processor has instructions for it.
    return hashlib.sha256(vector.detach().cpu().numpy().data).hexdigest()[:letters]
