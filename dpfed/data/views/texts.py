"""Makes random views of captions (DP-GCL, appendix B.3).

Two sentences or neighbouring words may change places, and words may be left out. No word is replaced.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import numpy as np

from dpfed.data.options import TextViewsConfig

# The end of a sentence, with closing quotes or brackets and white space, or an empty line.
_END = re.compile(r"([.!?][\"')\]”’]*)\s+|\n\s*\n\s*")
# The full stop after a single letter ("e.g.", "J. Smith") or one of these abbreviations ends no sentence.
_ABBREVIATION = re.compile(r"(?:^|\W)(?:[^\W\d_]|approx|dr|figs?|mrs?|ms|no|vs)$", re.IGNORECASE)
_LONGEST = 8  # characters before a full stop that are searched for an abbreviation


class TextViews:
    """Turns captions into random views: sentence swap, then word swap, then word deletion.

    * Sentence swap: with the configured probability, two randomly drawn sentences change places.
    * Word swap: from left to right, the configured probability decides whether a word and the next word change places. After a
      swap, the next draw is for the word behind the pair.
    * Word deletion: each word is deleted with the configured probability, but at least half of the words stay. If more would
      be deleted, only the words with the smallest draws are deleted. The paper keeps a grammatical core instead, which would
      need a parser.

    If a swap or a deletion changes a caption, single spaces replace the white space between its sentences or words.

    Args:
        config: Probabilities.

    Attributes:
        active: Whether views can differ from their captions.
    """

    def __init__(self, config: TextViewsConfig) -> None:
        self.config = config
        self.active = config.sentence_swap > 0 or config.word_swap > 0 or config.word_delete > 0

    def __call__(self, captions: list[str], seeds: np.ndarray) -> list[list[str]]:
        """Makes V views of each caption.

        Args:
            captions: Captions, n texts.
            seeds: Seed of each view, ``(n, V)`` uint64. A view is a function of its caption, the configuration and its own seed
                alone.

        Returns:
            The views, n lists of V texts.

        Raises:
            ValueError: If there is not one row of seeds for each caption.
        """
        if seeds.ndim != 2 or len(seeds) != len(captions):
            raise ValueError(f"expected seeds of shape ({len(captions)}, V), got {seeds.shape}")
        if not self.active:
            return [[caption] * seeds.shape[1] for caption in captions]
        return [
            self._views(caption, [random.Random(seed) for seed in row])  # noqa: S311 (the seed is the secret)
            for caption, row in zip(captions, seeds.tolist(), strict=True)
        ]

    def _views(self, caption: str, generators: list[random.Random]) -> list[str]:
        config = self.config
        parts = sentences(caption) if config.sentence_swap else []
        views = []
        for generator in generators:
            draw, view = generator.random, caption
            if len(parts) > 1 and draw() < config.sentence_swap:
                view = " ".join(_swapped(parts, draw))
            if config.word_swap or config.word_delete:
                words = view.split()
                changed = _deleted(_neighbours_swapped(words, config.word_swap, draw), config.word_delete, draw)
                view = view if changed == words else " ".join(changed)
            views.append(view)
        return views


def sentences(text: str) -> list[str]:
    """Splits a text at full stops, question and exclamation marks followed by white space, and at empty lines.

    Two kinds of marks end a sentence only if an empty line follows: a mark after a single letter or a usual abbreviation, and a
    mark before a lower-case letter in a text that has capitals.
    """
    capitals = text != text.lower()
    parts, start = [], 0
    for end in _END.finditer(text):
        if end.group(1) and end.group().count("\n") < 2:
            goes_on = capitals and text[end.end() : end.end() + 1].islower()
            if goes_on or _ABBREVIATION.search(text[max(start, end.start() - _LONGEST) : end.start()]):
                continue
        parts.append(text[start : end.end()].strip())
        start = end.end()
    parts.append(text[start:].strip())
    return [part for part in parts if part]


def _swapped(parts: list[str], draw: Callable[[], float]) -> list[str]:
    first = int(draw() * len(parts))
    second = int(draw() * (len(parts) - 1))
    second += second >= first  # uniform over the others
    parts = list(parts)
    parts[first], parts[second] = parts[second], parts[first]
    return parts


def _neighbours_swapped(words: list[str], probability: float, draw: Callable[[], float]) -> list[str]:
    if not probability:
        return words
    words = list(words)
    place = 0
    while place < len(words) - 1:
        if draw() < probability:
            words[place], words[place + 1] = words[place + 1], words[place]
            place += 1
        place += 1
    return words


def _deleted(words: list[str], probability: float, draw: Callable[[], float]) -> list[str]:
    if not probability or not words:
        return words
    draws = [draw() for _ in words]
    bound = min(probability, sorted(draws)[len(words) // 2])  # at most half of the draws are below
    return [word for word, value in zip(words, draws, strict=True) if value >= bound]
