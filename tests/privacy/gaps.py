"""An oracle of draws by gaps."""

from fractions import Fraction

import numpy as np

from dpfed.privacy.randomness import Randomness


def drawn_by_hand(randomness: Randomness, rate: float, length: int, key: np.ndarray, steps: int) -> np.ndarray:
    """Who is drawn, ``(steps, n)`` bool, from each record's words alone, gap by gap, in exact arithmetic."""
    failure = 1 - Fraction(rate)
    table = np.zeros((steps, len(key)), bool)
    for place, one in enumerate(key):
        for block in range(-(-steps // length)):
            words = (
                int(word)
                for number in range(length)
                for word in randomness.words("gaps", block, np.array([one], np.uint64), number)[0]
            )
            step = -1
            while step < length:
                word, gap, none_yet = next(words), 0, failure
                while gap < length and word >= int((1 - none_yet) * 2**64):
                    gap, none_yet = gap + 1, none_yet * failure
                step += gap + 1
                if step < length and block * length + step < steps:
                    table[block * length + step, place] = True
    return table
