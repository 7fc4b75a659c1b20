"""Defines the public grid on which sums are exact.

Before a contribution to a sum (a group's clipped gradient, a record's moments) is added, it becomes a vector of whole numbers
of grid steps, rounded towards zero. The rounding increases no vector's norm. So if a grid step is C / R, a contribution with a
norm of at most C has a norm of at most R grid steps. Whole numbers below 2^63 are added without rounding, in any order and in
any number of pieces. So the sums of neighbouring data sets differ by exactly what one record changes, for any number of records
and workers, and a sum has the same bits whichever workers compute it.

The noise is added to the whole numbers. It is a whole number of grid steps, too: Gaussian noise is rounded down. For a whole
number k, ``k + floor(n) = floor(k + n)``. So the noisy sum is post-processing of the Gaussian mechanism on the exact sum. The
later operations are post-processing, too: the product with the length of a grid step, and the rounding to float32.

Discrete noise has a grid of its own: one standard deviation is m = 2^31 steps of the noise's grid, and each step of the sum's
grid is a whole number of these steps. R is chosen from sigma so that this holds with hardly more noise than promised.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

LONGEST = 2.0**62  # limit on the norm of a sum with its noise, in steps of the noise's grid
NOISE_BITS = 31  # the standard deviation of discrete noise is 2^31 steps
_DIGITS = 29  # binary digits of R, where it follows from sigma
_ROOT_DIGITS = 60  # binary digits after the point, of the square root of a number of parties


@dataclass(frozen=True)
class SumGrid:
    """The grid of a sum: a real number on it is a whole number of grid steps.

    Args:
        radius: Largest L2 norm of a contribution to a sum, in grid steps, R.
        unit: Length of a grid step, C / R.
        finer: Number of steps of the discrete noise's grid in one step of this grid; 1 for Gaussian noise.
    """

    radius: float
    unit: float
    finer: int = 1

    @classmethod
    def of(cls, bound: float, most: float) -> SumGrid:
        """Makes the grid for Gaussian noise.

        Args:
            bound: Largest L2 norm of a contribution to the sum, C.
            most: Largest L2 norm of a contribution in grid steps, R, a power of two.
        """
        return cls(most, bound / most)

    @classmethod
    def for_discrete(cls, bound: float, most: float, change: float, multiplier: float, parties: int = 1) -> SumGrid:
        """Makes the grid for discrete noise: the finest on which each party adds at least its part of the promised noise.

        Discrete noise has a standard deviation of 2^31 steps of its own grid. The sum's grid is computed as if these were one
        step fewer: the spare step covers the difference between discrete and continuous noise.

        Args:
            bound: Largest L2 norm of a contribution to the sum, C.
            most: Largest allowed L2 norm R of a contribution, in grid steps.
            change: Sensitivity of the sum, divided by C.
            multiplier: Noise multiplier, sigma.
            parties: Number of parties whose equal noises add up to standard deviation sigma times the sensitivity.
        """
        root = Fraction(math.isqrt(parties << 2 * _ROOT_DIGITS), 1 << _ROOT_DIGITS)  # square root of `parties`, rounded down
        steps = (2**NOISE_BITS - 1) * root / (Fraction(multiplier) * Fraction(change))  # largest C in steps of the noise
        finer = max(1, math.ceil(steps / Fraction(most)))
        radius = _shortened(steps / finer)
        return cls(radius, bound / radius, finer)


def _shortened(exact: Fraction) -> float:
    """Rounds a number down to 29 binary digits."""
    exponent = math.frexp(float(exact))[1] - _DIGITS
    return math.ldexp(math.floor(exact / Fraction(2) ** exponent), exponent)
