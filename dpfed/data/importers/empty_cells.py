"""Recognises words that stand for an empty cell, such as ``nan``, which pandas' ``astype(str)`` writes for an empty cell.

The same words count in captions, classes and units.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from dpfed.data.importers.source import Unreadable
from dpfed.data.store.record import RecordInput

# Words that pandas reads as an empty cell, with the capitals that pandas expects.
EMPTY = frozenset({"#N/A", "#NA", "<NA>", "-NaN", "-nan", "N/A", "NA", "NULL", "NaN", "NaT", "None", "n/a", "nan", "null"})


def stands_for_empty(text: str) -> bool:
    """Returns whether a text consists only of a word that stands for an empty cell, such as ``nan``."""
    return unicodedata.normalize("NFC", text).strip() in EMPTY


def counted(words: Mapping[str, int]) -> str:
    """Returns a text of words and how often each occurs, the most frequent word first: ``'nan' (12), 'None' (3)``.

    Args:
        words: Number of occurrences of each word.
    """
    ordered = sorted(words.items(), key=lambda word: (-word[1], word[0]))
    return ", ".join(f"{word!r} ({count:,})" for word, count in ordered)


class EmptyCells:
    """Removes captions that stand for an empty cell, and counts such words among captions and units.

    A unit whose name is such a word is kept. If the word is a person's name after all, the person's records stay together, and
    the guarantee is no weaker.
    """

    def __init__(self) -> None:
        self._captions: Counter[str] = Counter()
        self._units: Counter[str] = Counter()

    def read(self, record: RecordInput) -> RecordInput | Unreadable:
        """Removes from a record the captions that only mark an empty cell, and returns the record.

        If the record has such captions and no others, it is returned as unreadable.
        """
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
        """Returns a sentence about captions that were removed, and a sentence about units whose names stand for an empty cell.

        A sentence is left out if there is nothing to say.

        Args:
            unit_name: Name of the kind of unit, such as ``"person"``; ``None``: there are no units.
        """
        said = []
        if self._captions:
            said.append(f"captions: {counted(self._captions)} count as empty; if such a word is a real caption, reword it.")
        if self._units:
            said.append(
                f"{unit_name}: each of the words {counted(self._units)} counts as the name of one {unit_name}; leave these "
                f"cells empty if they name no {unit_name}."
            )
        return said
