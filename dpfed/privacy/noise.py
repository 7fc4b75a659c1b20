"""Gaussian noise: how much, as a value of the plan, and the one way in which any party adds it.

The noise is a pseudo-random function of a secret key, of public context, of the step, and of the clean numbers themselves. The
same numbers, as in an exact replay, get the same noise. Numbers that differ in their last bit get independent noise: with the
same noise the two could be subtracted from each other.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # torch takes seconds to import, and a plan is refused without it
    from torch import Tensor

    from dpfed.privacy.randomness import Randomness


class Noise(Protocol):
    """What is added to every released vector. Objects are values: frozen, hashable, without secrets."""

    @property
    def std(self) -> float:
        """The least standard deviation of a number's noise; 0: there is none."""
        ...

    def add_(self, values: Tensor, randomness: Randomness, purpose: str, step: int, owner: int, context: str) -> None:
        """Adds it in place; the arguments behind `values` are the key, see `Randomness.add_normal_`."""
        ...


@dataclass(frozen=True)
class GaussianNoise:
    """Independent noise of one standard deviation on every number."""

    std: float

    def add_(self, values: Tensor, randomness: Randomness, purpose: str, step: int, owner: int, context: str) -> None:
        """See `Noise`."""
        randomness.add_normal_(values, self.std, purpose, step, owner, context)


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
        key = f"{self._context}/{digest_of(values if of is None else of, self._letters)}"
        self.noise.add_(values.view(-1), self._randomness, self._purpose, step, self._owner, key)
        return values


def digest_of(vector: Tensor, letters: int = 32) -> str:
    """A hash of a tensor's bits.

    Args:
        vector: contiguous.
        letters: hexadecimal ones that are kept.
    """
    # SHA-256: the fastest where the processor has instructions for it.
    return hashlib.sha256(vector.detach().cpu().numpy().data).hexdigest()[:letters]
