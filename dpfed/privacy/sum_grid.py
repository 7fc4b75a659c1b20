"""The public grid on which sums are exact.

Before a part of a sum (a group's clipped gradient, a record's moments) is added, it becomes a vector of whole numbers, steps of
a grid: what is behind the point is cut off. That makes no vector longer, so a part of length C has R steps at most. Whole
numbers below 2^63 are added without rounding, in any order and in any number of pieces. So neighbours' sums differ by exactly
what one record adds, however many records and workers there are, and a sum has the same bits whoever adds it up.

The noise is added to the whole numbers. It is a number of steps, too: Gaussian noise is rounded down. For a whole number k,
``k + floor(n) = floor(k + n)``. So the noisy sum is post-processing of the Gaussian mechanism on the exact sum, as is all that
follows: the product with the length of a step, and the rounding to float32.

Discrete noise needs a step of its own length: m = 2^31 steps of the noise are one standard deviation, and each step of the sum
is a whole number of them. So R is chosen from sigma, and no noise is wasted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

LONGEST = 2.0**62  # steps of a sum, noise included
NOISE_BITS = 31  # of the discrete noise: its standard deviation is 2^31 steps
_DIGITS = 29  # binary ones of R, where it follows from sigma
_ROOT_DIGITS = 60  # binary ones behind the point, of the square root of a number of parties


@dataclass(frozen=True)
class SumGrid:
    """A grid.

    Args:
        radius: R, steps of the longest part of a sum.
        unit: what a step stands for: C / R.
        finer: how many steps of the discrete noise are one of the sum's.
    """

    radius: float
    unit: float
    finer: int = 1

    @classmethod
    def of(cls, bound: float, most: float) -> SumGrid:
        """The grid under Gaussian noise.

        Args:
            bound: C.
            most: R, a power of two.
        """
        return cls(most, bound / most)

    @classmethod
    def for_discrete(cls, bound: float, most: float, change: float, multiplier: float, shares: int = 1) -> SumGrid:
        """The finest grid on which 2^31 steps of a party's discrete noise are its part of sigma times the sensitivity, or more.

        One step less than 2^31 is asked for, which leaves room for the difference between discrete and continuous noise.

        Args:
            bound: C.
            most: that R may be.
            change: the sensitivity over C.
            multiplier: sigma.
            shares: how many parties' noise together is sigma times the sensitivity; each adds the same.
        """
        root = Fraction(math.isqrt(shares << 2 * _ROOT_DIGITS), 1 << _ROOT_DIGITS)  # of the number of shares, or less
        steps = (2**NOISE_BITS - 1) * root / (Fraction(multiplier) * Fraction(change))  # of the noise, that C may be long
        finer = max(1, math.ceil(steps / Fraction(most)))
        radius = _shortened(steps / finer)
        return cls(radius, bound / radius, finer)


def _shortened(exact: Fraction) -> float:
    """The largest number of 29 binary digits that is not above another."""
    exponent = math.frexp(float(exact))[1] - _DIGITS
    return math.ldexp(math.floor(exact / Fraction(2) ** exponent), exponent)
