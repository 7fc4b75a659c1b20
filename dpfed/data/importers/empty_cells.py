"""Words that stand for an empty cell, as pandas' ``astype(str)`` writes one: one rule for captions, classes and units."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from dpfed.data.importers.source import Unreadable
from dpfed.data.store.record import RecordInput

# What pandas reads as an empty cell, in its capitals.
EMPTY = frozenset({"#N/A", "#NA", "<NA>", "-NaN", "-nan", "N/A", "NA", "NULL", "NaN", "NaT", "None", "n/a", "nan", "null"})


def stands_for_empty(text: str) -> bool:
    """Returns whether a text is a word for an empty cell and nothing else."""
    return unicodedata.normalize("NFC", text).strip() in EMPTY


def counted(words: Mapping[str, int]) -> str:
    """Words with how often each was met, the most frequent first: ``'nan' (12), 'None' (3)``."""
    ordered = sorted(words.items(), key=lambda word: (-word[1], word[0]))
    return ", ".join(f"{word!r} ({count:,})" for word, count in ordered)


class EmptyCells:
    """Takes such words for the empty cells that they stand for, and counts them.

    As a unit such a word stays what it is. If it is a person after all, the records stay together, and no promise is weaker.
    """

    def __init__(self) -> None:
        self._captions: Counter[str] = Counter()
        self._units: Counter[str] = Counter()

    def read(self, record: RecordInput) -> RecordInput | Unreadable:
        """The record without such captions; unreadable if it had no other."""
        if record.unit and stands_for_empty(record.unit):
            self._units[record.unit.strip()] += 1
        words = [text.strip() for text in record.captions if stands_for_empty(text)]
        if not words:
            return record
        self._captions.update(words)
        left = tuple(text for text in record.captions if not stands_for_empty(text))
        if any(text.strip() for text in left):
            return replace(record, captions=left)
        return Unreadable(record.called, f"no caption but {words[0]!r}, which stands for an empty cell")

    def notices(self, unit_name: str | None) -> list[str]:
        """A sentence about the captions that were left out, and one about units."""
        said = []
        if self._captions:
            said.append(f"captions: {counted(self._captions)} count as empty; reword such a caption if it is one.")
        if self._units:
            said.append(
                f"{unit_name}: {counted(self._units)} count as one {unit_name} each; leave these cells empty if they name none."
            )
        return said
