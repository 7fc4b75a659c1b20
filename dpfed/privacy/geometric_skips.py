"""Draws Poisson samples by gaps, at a cost proportional to the batch; the draws are as if a coin were thrown for every record.

If a record is drawn with probability q in each step independently, the gaps between its draws are independent and geometric.
So no coin has to be thrown for every record in every step. A record's gaps are drawn from a stream that is a function of the
record's own key, for a block of L steps at a time: a gap that leads beyond the block means that the record is not drawn again
in this block. The geometric distribution is memoryless, so the next block begins anew. With L = 1/q a step costs about 2 q N
encryptions instead of N.

**Claim.** The draws of all records in all steps are independent Bernoulli variables of probability q.

**Proof.** A record's stream is AES of (its key, the word's number) under a key of the block, so streams are independent between
records and blocks. Look at one record in one block. Let G1, G2, .. be independent with P(G = g) = q (1 - q)^g. The record is
drawn in the steps G1, G1 + 1 + G2, .. below L. A pattern of L bits with m ones, at s1 < .. < sm, has probability
q (1 - q)^s1 * q (1 - q)^(s2 - s1 - 1) * .. * (1 - q)^(L - 1 - sm), the last factor for a gap that leads beyond the block. That
is q^m (1 - q)^(L - m). QED
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from decimal import Context, Decimal
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from dpfed.privacy.randomness import Randomness

# Function of two positions among the keys, `first` and `end`. The function returns which of the keys from `first` to `end`
# (excluded) take part at all, ``(end - first,)`` bool.
RowMask = Callable[[int, int], np.ndarray]

LONGEST = 1 << 16  # largest number of steps of a block: step numbers fit into 16 bits
_AT_ONCE = 1 << 20  # records whose gaps are drawn at a time, a power of 2: bounds the workspace to about 100 MB
_DIGITS = Context(prec=60)


def block_length(rate: float, steps: int) -> int:
    """Returns L, the number of steps of a block: about 1/q, the mean gap.

    A block then holds about as many draws as there are records.

    Args:
        rate: Sampling probability, q.
        steps: Number of steps, T; L is at most T, and at most `LONGEST`.
    """
    return max(1, min(math.ceil(1 / rate), steps, LONGEST))


class GeometricSkips:
    """The participants of each step: the records (or units) that are drawn.

    The object keeps the draws of one block of L steps, about n q L numbers of 32 bits.

    Args:
        rate: Sampling probability, q, below 1.
        length: Number of steps of a block, L.
        randomness: Secret randomness of the workers.
        keys: Keys of the records (or units), ``(n,)`` uint64. A million of them are read at a time.
        mask: Function of two positions, `first` and `end`, that returns which of the keys from `first` to `end` (excluded) may
            take part at all, ``(end - first,)`` bool; ``None`` if all of them may.
    """

    def __init__(self, rate: float, length: int, randomness: Randomness, keys: np.ndarray, mask: RowMask | None = None) -> None:
        self._rate = rate
        self._length = length
        self._randomness = randomness
        self._keys = keys
        self._mask = mask
        self._block = -1
        # (position of the first record, positions relative to it ordered by step, offset at which each step begins)
        self._parts: list[tuple[int, np.ndarray, np.ndarray]] = []

    def __call__(self, step: int) -> np.ndarray:
        """Returns the participants of a step.

        Args:
            step: Training step. Steps may come in any order, but if a step lies outside the block of the previous call, all
                draws of the step's block have to be made.

        Returns:
            Positions of the participants among the n keys, ``(m,)`` int64, ascending.
        """
        block, within = divmod(step, self._length)
        if block != self._block:
            self._parts = []  # freed first, so that two blocks are never in memory at once
            self._parts = [self._drawn(first, block) for first in range(0, len(self._keys), _AT_ONCE)]
            self._block = block
        drawn = [places[starts[within] : starts[within + 1]].astype(np.int64) + first for first, places, starts in self._parts]
        return np.concatenate(drawn) if drawn else np.zeros(0, np.int64)

    def _drawn(self, first: int, block: int) -> tuple[int, np.ndarray, np.ndarray]:
        """Returns all draws in a block, of up to `_AT_ONCE` records from record `first` on.

        The result is an item of `_parts`: `first`, the drawn positions counted from it, sorted by step, and where each step
        begins.
        """
        thresholds, leading = gap_thresholds(self._rate, self._length), gaps_by_leading_bits(self._rate, self._length)
        keys = self._keys[first : first + _AT_ONCE]
        places = np.arange(len(keys)) if self._mask is None else np.flatnonzero(self._mask(first, first + len(keys)))
        next_step, number, drawn = np.zeros(len(places), np.int64), 0, []
        while len(places):
            pairs = self._randomness.words("gaps", block, keys[places], number)
            words, later = pairs[:, 0], pairs[:, 1]
            for last in (False, True):
                within = np.flatnonzero(words < thresholds[self._length - next_step])
                places, next_step, words = places[within], next_step[within], words[within]
                next_step += _gaps(words, thresholds, leading)
                drawn.append((next_step - 1) * _AT_ONCE + places)
                if not last:
                    words = later[within]
            number += 1
        ordered = np.sort(np.concatenate(drawn)) if drawn else np.zeros(0, np.int64)
        starts = np.searchsorted(ordered, np.arange(self._length + 1) * _AT_ONCE)
        return first, (ordered & (_AT_ONCE - 1)).astype(np.uint32), starts


def _gaps(words: np.ndarray, thresholds: np.ndarray, leading: np.ndarray) -> np.ndarray:
    """Counts the thresholds that are not above each word, as ``np.searchsorted(..., side="right")``, mostly by a table.

    Args:
        words: Uniform words, ``(n,)`` uint64.
        thresholds: Thresholds of the gaps, see `gap_thresholds`.
        leading: Gaps by a word's leading bits, see `gaps_by_leading_bits`.
    """
    gaps = leading[(words >> np.uint64(64 - (len(leading).bit_length() - 1))).astype(np.int64)]
    left_open = np.flatnonzero(gaps < 0)
    gaps[left_open] = np.searchsorted(thresholds, words[left_open], side="right")
    return gaps


@functools.lru_cache(maxsize=4)
def gaps_by_leading_bits(rate: float, length: int) -> np.ndarray:
    """Returns a table that maps the leading bits of a uniform word to the gap to which the whole word is converted.

    Args:
        rate: Sampling probability, q, below 1.
        length: Number of steps of a block, L.

    Returns:
        The table, ``(2^16,)`` or, for long blocks, ``(2^20,)`` int32; -1 where the leading bits do not determine the gap.
    """
    bits = 16 if length <= 1 << 12 else 20  # enough that few words need a search
    thresholds, step = gap_thresholds(rate, length), np.uint64(64 - bits)
    least = np.arange(1 << bits, dtype=np.uint64) << step
    low = np.searchsorted(thresholds, least, side="right")
    high = np.searchsorted(thresholds, least | ((np.uint64(1) << step) - np.uint64(1)), side="right")
    return np.where(low == high, low, -1).astype(np.int32)


@functools.lru_cache(maxsize=4)
def gap_thresholds(rate: float, length: int) -> np.ndarray:
    """Returns thresholds for uniform words of 64 bits: a word below entry g means a success after fewer than g failures.

    The probabilities are computed to 60 digits and rounded down to a multiple of 2^-64, so each is accurate to 2^-64.

    Args:
        rate: Sampling probability, q, below 1.
        length: Number of steps of a block, L.

    Returns:
        The thresholds ``floor(2^64 (1 - (1 - q)^g))``, ``(L + 1,)`` uint64, ascending.
    """
    entries, none_yet, failure = [0], Decimal(1), _DIGITS.subtract(1, Decimal(rate))
    for _ in range(length):
        none_yet = _DIGITS.multiply(none_yet, failure)
        entries.append(min(int(_DIGITS.multiply(_DIGITS.subtract(1, none_yet), 1 << 64)), (1 << 64) - 1))
    return np.array(entries, np.uint64)
