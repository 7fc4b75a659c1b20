"""Noise: how much, as a value of the plan, and the one way in which any party adds it.

The noise is a pseudo-random function of a secret key, of public context, of the step, and of the clean numbers themselves. The
same numbers, as in an exact replay, get the same noise. Numbers that differ in their last bit get independent noise: with the
same noise the two could be subtracted from each other.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

from dpfed.errors import UserError
from dpfed.privacy.discrete_gaussian import Coins, discrete_gaussian

if TYPE_CHECKING:  # torch takes seconds to import, and a plan is refused without it
    from torch import Tensor

    from dpfed.privacy.randomness import Randomness


NoiseKind = Literal["gaussian", "discrete"]
_BITS = 31  # of the discrete noise: 2^31 steps of its grid are one standard deviation
_ROUNDING = 1 << 16  # steps by which rounding a vector may move neighbours apart: the square root of the most numbers in it
_SCALE_DIGITS = 29  # binary ones, so that the product with a float32 (24) has 53, and is exact in float64
_ROOT_DIGITS = 60  # binary ones behind the point, of the square root of a number of parties
_FARTHEST = 2**62  # steps
_CHUNK = 1 << 17  # numbers at a time: bounds the workspace


class Noise(Protocol):
    """What is added to every released vector. Objects are values: frozen, hashable, without secrets."""

    @property
    def std(self) -> float:
        """The least standard deviation of a number's noise; 0: there is none."""
        ...

    @property
    def said(self) -> str:
        """What kind it is, in words."""
        ...

    def require_fit(self, count: int) -> None:
        """Refuses a sum of so many numbers, if that is too many for the noise: a `UserError`."""
        ...

    def add_(self, values: Tensor, randomness: Randomness, purpose: str, step: int, owner: int, context: str) -> None:
        """Adds it in place; the arguments behind `values` are the key, see `Randomness.add_normal_`."""
        ...


@dataclass(frozen=True)
class GaussianNoise:
    """Independent noise of one standard deviation on every number."""

    std: float
    said = "Gaussian, in floating point"

    def __post_init__(self) -> None:
        if not 0 <= self.std < math.inf:
            raise ValueError(f"noise has a standard deviation of 0 or more, and a finite one; got {self.std}")

    def require_fit(self, count: int) -> None:
        """See `Noise`: any number will do."""

    def add_(self, values: Tensor, randomness: Randomness, purpose: str, step: int, owner: int, context: str) -> None:
        """See `Noise`."""
        randomness.add_normal_(values, self.std, purpose, step, owner, context)

    def add_together_(self, values: Tensor, words: Tensor) -> None:
        """Adds to every row what `add_` adds by the bits of its key's stream: on a GPU in a few launches for all rows.

        Args:
            values: ``(rows, n)`` float32 or float64, n even.
            words: ``(rows, n)`` int64, these bits.
        """
        from dpfed.privacy.randomness import box_muller

        if words.shape != values.shape:  # fewer would be repeated
            raise ValueError(f"expected bits of shape {tuple(values.shape)}, got {tuple(words.shape)}")
        noise = box_muller(words.to(values.device, non_blocking=True))
        values.copy_(values.double().add_(noise, alpha=self.std))


@dataclass(frozen=True)
class DiscreteGaussianNoise:
    """The sum is rounded to a grid, and integers are added to it: what is promised holds for the bits that are released.

    docs/guarantee.md has the proof (Noise to the last bit). The grid follows from the numbers of the plan, and from how many
    parties share the noise, alone.

    Args:
        sensitivity: most that one record moves the sum, L2.
        multiplier: sigma.
        shares: how many parties' noise together is sigma times the sensitivity; each adds the same.
    """

    sensitivity: float
    multiplier: float
    shares: int = 1

    @functools.cached_property
    def scale(self) -> float:
        """Steps of the grid in a unit: the finest grid on which 2^31 steps of one party's noise are its part of sigma times the
        sensitivity, rounding included.

        One step less than 2^31 is asked for, which leaves room for the difference between discrete and continuous.
        """
        exact = ((2**_BITS - 1) / Fraction(self.multiplier) - _ROUNDING) / Fraction(self.sensitivity)
        root = Fraction(math.isqrt(self.shares << 2 * _ROOT_DIGITS), 1 << _ROOT_DIGITS)  # of the number of shares, or less
        return _shortened(Fraction(_shortened(exact)) * root)

    @property
    def std(self) -> float:
        """See `Noise`; of one party."""
        return 2**_BITS / self.scale

    @property
    def rounded_sensitivity(self) -> float:
        """Most that one record moves the rounded sum, L2."""
        return self.sensitivity + _ROUNDING / self.scale

    @property
    def said(self) -> str:
        """See `Noise`."""
        whose = "The sum" if self.shares == 1 else "Each party's sum"
        return (
            f"discrete Gaussian, drawn exactly, on multiples of {1 / self.scale:.3g}. {whose} is rounded to these first. A "
            f"record then moves it by up to {self.rounded_sensitivity:.9g}, and the noise goes by that"
        )

    def require_fit(self, count: int) -> None:
        """See `Noise`: the rounding of all numbers together has its room."""
        if count > _ROUNDING**2:
            raise UserError(
                f"privacy.noise = 'discrete' is for up to {_ROUNDING**2:,} trained numbers, got {count:,}: train fewer, or set "
                "privacy.noise = 'gaussian'. [noise-many-numbers]"
            )

    def add_(self, values: Tensor, randomness: Randomness, purpose: str, step: int, owner: int, context: str) -> None:
        """See `Noise`; the values are float32."""
        import torch

        for start, steps in self.noisy_steps(values, randomness, purpose, step, owner, context):
            values[start : start + len(steps)].copy_(torch.from_numpy((steps / self.scale).astype(np.float32)))

    def noisy_steps(
        self, values: Tensor, randomness: Randomness, purpose: str, step: int, owner: int, context: str
    ) -> Iterator[tuple[int, np.ndarray]]:
        """What `add_` makes of the values, as integers: chunk by chunk, where it begins, and ``(n,)`` int64 steps of the grid.

        Args:
            values: flat float32; left as they are.
            randomness: see `Noise.add_`, also for the others.
            purpose: of the noise.
            step: training step.
            owner: the party's number.
            context: what keys it besides.
        """
        import torch

        if values.dtype != torch.float32:
            raise TypeError(f"discrete noise is for sums in float32, got {values.dtype}")
        self.require_fit(values.numel())
        coins = Coins(randomness.stream(purpose, step, owner, context))
        for start in range(0, values.numel(), _CHUNK):
            part = values[start : start + _CHUNK]
            steps = self.rounded(part.cpu().numpy())
            steps += discrete_gaussian(coins, len(steps), _BITS)
            yield start, steps

    def rounded(self, values: np.ndarray) -> np.ndarray:
        """The nearest points of the grid, as integers; no further away from zero than 2^62.

        Args:
            values: ``(n,)`` float32.

        Returns:
            ``(n,)`` int64.
        """
        return np.rint(values.astype(np.float64) * self.scale).clip(-_FARTHEST, _FARTHEST).astype(np.int64)


def _shortened(exact: Fraction) -> float:
    """The largest number of 29 binary digits that is not above another."""
    exponent = math.frexp(float(exact))[1] - _SCALE_DIGITS
    return math.ldexp(math.floor(exact / Fraction(2) ** exponent), exponent)


class KeyedNoise:
    """The noise that one party adds for one purpose, keyed by what it hides.

    Args:
        noise: how much.
        randomness: the party's secret.
        purpose: what the noise is on, such as ``noise`` for the sum; different purposes are independent.
        context: public, such as the fingerprint of the plan.
        owner: the party's number.
        letters: of the digest, 4 bits each.
    """

    def __init__(
        self, noise: Noise, randomness: Randomness, purpose: str, context: str, owner: int = 0, letters: int = 32
    ) -> None:
        self.noise = noise
        self._randomness, self._purpose, self._context = randomness, purpose, context
        self._owner, self._letters = owner, letters

    def add_(self, values: Tensor, step: int, of: Tensor | None = None) -> Tensor:
        """Adds the noise of a step in place, and returns the values.

        Args:
            values: float32 or float64, contiguous.
            step: training step.
            of: the numbers that key the noise, where `values` are these in another type; default: `values` themselves.
        """
        self.noise.add_(values.view(-1), *self._key(step, values if of is None else of))
        return values

    def noisy_steps(self, values: Tensor, step: int) -> Iterator[tuple[int, np.ndarray]]:
        """The values with the noise of a step on them, see `DiscreteGaussianNoise.noisy_steps`: of such noise only."""
        if not isinstance(self.noise, DiscreteGaussianNoise):
            raise TypeError(f"only discrete noise has steps, this is {self.noise}")
        return self.noise.noisy_steps(values.view(-1), *self._key(step, values))

    def _key(self, step: int, of: Tensor) -> tuple[Randomness, str, int, int, str]:
        context = f"{self._context}/{digest_of(of, self._letters)}"
        return self._randomness, self._purpose, step, self._owner, context


def digest_of(vector: Tensor, letters: int = 32) -> str:
    """A hash of a tensor's bits.

    Args:
        vector: contiguous.
        letters: hexadecimal ones that are kept.
    """
    # SHA-256: the fastest where the processor has instructions for it.
    return hashlib.sha256(vector.detach().cpu().numpy().data).hexdigest()[:letters]
