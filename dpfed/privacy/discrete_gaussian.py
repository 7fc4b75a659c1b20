"""Draws from the discrete Gaussian exactly, by integers and coins only, without logarithms and without rounding.

P(z) is proportional to exp(-z^2 / (2 m^2)) over all integers z, with m = 2^bits. Every probability below is exact if the random
bits are uniform. No draw depends on private numbers, so the time that rejections take reveals nothing about them.

Sources: coins of probability exp(-x) from a von Neumann series (Canonne, Kamath and Steinke 2020, algorithm 1); a whole and a
fractional number of standard deviations, drawn one after the other (Karney 2016, algorithm D).

**Lemma.** Let s be a vector of integers, and X a vector of independent draws of parameter m. Then s + X is a post-processed
continuous Gaussian N(s, a^2), where a^2 = m^2 - b^2, up to a factor of 1 + theta in the probability of each number, where
|theta| <= theta_b = 2.01 exp(-2 pi^2 b^2). For b = 4, theta_b is 1e-136, and a >= m - 1.

**Proof.** Draw T from N(s, a^2) in each coordinate, and round it at random: Y = z with probability proportional to
exp(-(z - T)^2 / 2 b^2). By Poisson summation the sum of these weights over all integers z is sqrt(2 pi) b (1 + theta) with
|theta| <= theta_b, whatever T is. So, with phi the density of N(0, m^2),

    P(Y = z) = int N(t; s, a^2) exp(-(z - t)^2 / 2 b^2) / (sqrt(2 pi) b (1 + theta)) dt = phi(z - s) / (1 + theta').

The integers s + X have P(s + X = z) = phi(z - s) / (1 + theta''), with |theta''| smaller still. QED
"""

from __future__ import annotations

import bisect
import decimal
import functools
import math
from collections.abc import Callable

import numpy as np

MOST_BITS = 31  # squares of fractions have 2 * bits + 1 binary digits, and must fit into 64
_DIGITS = 64  # binary digits that are drawn at a time, for comparison with a probability


class Coins:
    """Source of uniform integers and of biased coins, many at a time. A coin is a random truth value.

    Args:
        stream: Function that returns the given number of uniform random bytes, and never returns the same byte of its stream
            twice.
    """

    def __init__(self, stream: Callable[[int], bytes]) -> None:
        self._stream = stream

    def uniform(self, count: int, bits: int) -> np.ndarray:
        """Draws ``(count,)`` uniform unsigned integers below 2^bits; `bits` is at most 64."""
        kind = np.dtype(np.uint8 if bits <= 8 else np.uint32 if bits <= 32 else np.uint64)
        words = np.frombuffer(self._stream(count * kind.itemsize), kind)
        return words >> kind.type(8 * kind.itemsize - bits)

    def one_in(self, count: int, sides: int) -> np.ndarray:
        """Draws ``(count,)`` coins that are true with probability 1 / sides, sides < 2^32.

        They come from uniform words; words that would cause bias are drawn again.
        """
        bits = 8 if sides <= 256 else 64
        usable = (1 << bits) // sides * sides  # outcomes from here on would make some faces likelier than others
        thrown = self.uniform(count, bits)
        while usable < 1 << bits and len(again := np.flatnonzero(thrown >= usable)):
            thrown = thrown.copy()
            thrown[again] = self.uniform(len(again), bits)
        return thrown < usable // sides

    def exponential(self, tops: np.ndarray, bits: int) -> np.ndarray:
        """Draws coins that are true with probability exp(-x), for x = tops / 2^bits in [0, 1].

        Coins of probability x/1, x/2, x/3, ... are thrown until one fails. More than n are thrown with probability x^n / n!, so
        their number is odd with probability 1 - x + x^2/2! - ... = exp(-x).

        Args:
            tops: Numerators of x, ``(n,)`` unsigned, at most 2^bits.
            bits: Binary logarithm of the denominator, at most 64.

        Returns:
            The outcomes, ``(n,)`` bool.
        """
        heads = self.uniform(len(tops), bits) < tops
        odd, going, thrown = ~heads, np.flatnonzero(heads), 2
        while len(going):
            heads = self.uniform(len(going), bits) < tops[going]
            heads &= self.one_in(len(going), thrown)
            going, thrown = going[heads], thrown + 1
            odd[going] = thrown % 2 == 1
        return odd

    def all_exponential(self, times: np.ndarray, tops: np.ndarray, bits: int) -> np.ndarray:
        """Draws coins that are true with probability exp(-times * tops / 2^bits).

        Such a coin is true if all of `times` coins of `exponential` are true.

        Args:
            times: Numbers of coins, ``(n,)`` integers, 0 or more.
            tops: Numerators, see `exponential`.
            bits: Binary logarithm of the denominator, see `exponential`.

        Returns:
            The outcomes, ``(n,)`` bool.
        """
        kept, thrown = np.ones(len(tops), dtype=bool), 0
        going = np.flatnonzero(times > 0)
        while len(going):
            heads = self.exponential(tops[going], bits)
            kept[going[~heads]] = False
            going, thrown = going[heads], thrown + 1
            going = going[times[going] > thrown]
        return kept

    def deviations(self, count: int) -> np.ndarray:
        """Draws ``(count,)`` int64 whole numbers k >= 0 of probability proportional to exp(-k^2 / 2).

        A uniform number is drawn, at first 64 binary digits of it. It lies between two cumulative probabilities, which give k.
        If these digits equal those of a cumulative probability, further digits of both decide.
        """
        digits = self.uniform(count, _DIGITS)
        cuts = np.array(_cumulative(_DIGITS), dtype=np.uint64)
        below = np.searchsorted(cuts, digits)  # no digits are above the last one
        for place in np.flatnonzero(cuts[below] == digits):
            below[place] = self._resolved(int(digits[place]))
        return below

    def _resolved(self, number: int) -> int:
        """Returns k for a uniform number whose first digits equal those of a cumulative probability, from further digits."""
        known = _DIGITS
        while True:
            number = number << _DIGITS | int(self.uniform(1, _DIGITS)[0])
            known += _DIGITS
            cuts = _cumulative(known)
            if number not in cuts:
                return bisect.bisect_left(cuts, number)


@functools.cache
def _cumulative(digits: int) -> tuple[int, ...]:
    """Returns P(k < 1), P(k < 2), ... of `Coins.deviations`, truncated to `digits` binary digits, as integers of these digits.

    All digits of the last integer are ones.

    Python's decimal exponential is correctly rounded, so 30 extra decimal digits make the wanted digits certain.
    """
    with decimal.localcontext(decimal.Context(prec=digits // 3 + 40)) as context:
        weights = [(-decimal.Decimal(k * k) / 2).exp() for k in range(4 + math.isqrt(5 * context.prec))]
        doubt, whole, cuts = decimal.Decimal(10) ** -20, decimal.Decimal(1 << digits) / sum(weights), []
        for known in range(1, len(weights)):
            scaled = sum(weights[:known]) * whole
            if int(scaled - doubt) != int(scaled + doubt):
                break
            cuts.append(int(scaled))
            if cuts[-1] == (1 << digits) - 1:
                return tuple(cuts)
    raise AssertionError("a cumulative probability is too close to a number of few digits")


def discrete_gaussian(coins: Coins, count: int, bits: int = MOST_BITS) -> np.ndarray:
    """Draws exactly from the discrete Gaussian of parameter m = 2^bits.

    Args:
        coins: Source of random integers and coins.
        count: Number of draws.
        bits: Binary logarithm of m, 0 .. 31. The standard deviation is m, to within 2e-7 for m = 1 and 1e-30 for larger m.

    Returns:
        The draws, ``(count,)`` int64.
    """
    drawn, missing = [np.zeros(0, dtype=np.int64)], count
    while missing:
        drawn.append(_accepted(coins, 3 * missing // 2 + 16, bits)[:missing])
        missing -= len(drawn[-1])
    return np.concatenate(drawn)


def _accepted(coins: Coins, tries: int, bits: int) -> np.ndarray:
    """Makes `tries` draws, and returns the accepted draws, about seven in ten.

    A draw is a sign and a magnitude of k + x standard deviations: a whole number k, of probability proportional to exp(-k^2/2),
    and a fraction x = j / 2^bits with j uniform. The draw is accepted with probability exp(-x^2/2) exp(-x)^k. So an accepted
    draw has a probability proportional to exp(-(k + x)^2 / 2), for each sign. Zero is accepted with one sign only.
    """
    whole, word = coins.deviations(tries), coins.uniform(tries, bits + 1)
    one = word.dtype.type(1)
    negative, part = (word & one).astype(bool), (word >> one).astype(np.uint64)
    stays = coins.exponential(part * part, 2 * bits + 1)
    stays &= (whole > 0) | (word != one)  # a zero with a minus sign is rejected
    kept = np.flatnonzero(stays)
    kept = kept[coins.all_exponential(whole[kept], part[kept], bits)]
    value = (whole[kept] << bits) + part[kept].astype(np.int64)
    return np.where(negative[kept], -value, value)
