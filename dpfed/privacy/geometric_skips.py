"""Poisson sampling by gaps: the process of a coin for every record in every step, at a cost that follows the batch.

A record that is drawn with probability q in each step independently is drawn after gaps that are geometric and independent.
So a record need not be asked in every step. Its gaps are drawn from a stream that is a function of its own key, for a block of
L steps at a time: a gap that leads beyond the block means that it is not drawn any more in it. The geometric distribution has
no memory, so the next block begins anew. With L = 1/q a step costs about 2 q N encryptions instead of N.

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

# Which of the keys between two places take part at all, as ``(end - first,)`` bool.
RowMask = Callable[[int, int], np.ndarray]

LONGEST = 1 << 16  # steps of a block: their numbers fit into 16 bits
_AT_ONCE = 1 << 20  # records whose gaps are drawn at a time, a power of 2: bounds the workspace to about 100 MB
_DIGITS = Context(prec=60)


def block_length(rate: float, steps: int) -> int:
    """L, the steps of a block: as many as a record waits on average, so that a block holds about as many draws as records.

    Args:
        rate: q.
        steps: T.
    """
    return max(1, min(math.ceil(1 / rate), steps, LONGEST))


class GeometricSkips:
    """Who takes part in which step. It keeps one block of L steps: about N q L numbers of 32 bits.

    Args:
        rate: q, below 1.
        length: L.
        randomness: the workers' secret.
        keys: ``(n,)`` uint64 keys of the records (or units). A million of them are read at a time.
        mask: which of them take part at all; ``None``: all.
    """

    def __init__(self, rate: float, length: int, randomness: Randomness, keys: np.ndarray, mask: RowMask | None = None) -> None:
        self._rate = rate
        self._length = length
        self._randomness = randomness
        self._keys = keys
        self._mask = mask
        self._block = -1
        self._parts: list[tuple[int, np.ndarray, np.ndarray]] = []  # (first record, places after it by step, where steps begin)

    def __call__(self, step: int) -> np.ndarray:
        """Who takes part in a step.

        Args:
            step: training step; any order, but a step of another block than the last one's costs that whole block.

        Returns:
            ``(m,)`` int64 places among the n, ascending.
        """
        block, within = divmod(step, self._length)
        if block != self._block:
            self._parts = []  # before the next ones are made: never two blocks at a time
            self._parts = [self._drawn(first, block) for first in range(0, len(self._keys), _AT_ONCE)]
            self._block = block
        drawn = [places[starts[within] : starts[within + 1]].astype(np.int64) + first for first, places, starts in self._parts]
        return np.concatenate(drawn) if drawn else np.zeros(0, np.int64)

    def _drawn(self, first: int, block: int) -> tuple[int, np.ndarray, np.ndarray]:
        """All draws of some records in a block, by step."""
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
    """How many thresholds are not above each word: ``np.searchsorted(thresholds, words, side="right")``, mostly without search.

    Args:
        words: ``(n,)`` uint64.
        thresholds: see `gap_thresholds`.
        leading: what the leading bits of a word say, see `gaps_by_leading_bits`.
    """
    gaps = leading[(words >> np.uint64(64 - (len(leading).bit_length() - 1))).astype(np.int64)]
    left_open = np.flatnonzero(gaps < 0)
    gaps[left_open] = np.searchsorted(thresholds, words[left_open], side="right")
    return gaps


@functools.lru_cache(maxsize=4)
def gaps_by_leading_bits(rate: float, length: int) -> np.ndarray:
    """What the leading bits of a word say of its gap.

    Args:
        rate: q, below 1.
        length: L.

    Returns:
        ``(2^16,)`` or, for long blocks, ``(2^20,)`` int32; -1 where the bits that follow decide.
    """
    bits = 16 if length <= 1 << 12 else 20  # so that few words are left open
    thresholds, step = gap_thresholds(rate, length), np.uint64(64 - bits)
    least = np.arange(1 << bits, dtype=np.uint64) << step
    low = np.searchsorted(thresholds, least, side="right")
    high = np.searchsorted(thresholds, least | ((np.uint64(1) << step) - np.uint64(1)), side="right")
    return np.where(low == high, low, -1).astype(np.int32)


@functools.lru_cache(maxsize=4)
def gap_thresholds(rate: float, length: int) -> np.ndarray:
    """What a uniform word of 64 bits is compared with: it is below entry g if fewer than g failures come before the success.

    Computed to 60 digits and rounded down to a multiple of 2^-64, so each of these probabilities is right to 2^-64.

    Args:
        rate: q, below 1.
        length: L.

    Returns:
        ``(L + 1,)`` uint64, ``floor(2^64 (1 - (1 - q)^g))``, ascending.
    """
    entries, none_yet, failure = [0], Decimal(1), _DIGITS.subtract(1, Decimal(rate))
    for _ in range(length):
        none_yet = _DIGITS.multiply(none_yet, failure)
        entries.append(min(int(_DIGITS.multiply(_DIGITS.subtract(1, none_yet), 1 << 64)), (1 << 64) - 1))
    return np.array(entries, np.uint64)
