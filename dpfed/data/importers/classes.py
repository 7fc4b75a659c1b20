"""Reads classes as sources write them: decides which cells name the same class, and gives each class a number."""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from dpfed.data.importers.empty_cells import EMPTY, counted
from dpfed.errors import UserError

_MOST_NUMBERED = 10_000  # integers below this are taken for class numbers as they are
_NO_CLASS = EMPTY | {"", "-1"}  # -1 is what many data sets write for "no class"
_TRUTH = {"True": "1", "False": "0"}
_WHOLE = re.compile(r"([+-]?\d+)\.0*")
_NUMBER = re.compile(r"[+-]?\d+([.,]\d+)?")  # some countries write 1,5


def class_of(value: object) -> str | None:
    """Returns the class that a cell names, in one spelling: 1, 1.0 and ``"1.0"`` all become ``"1"``.

    Returns:
        The class; ``None`` for a cell without a class: an empty cell, NaN, infinity, -1, or a word that pandas reads as an
        empty cell.
    """
    if isinstance(value, float) and not value.is_integer():
        value = f"{value:.7g}" if math.isfinite(value) else None  # 0.1 is one class, in 32 bits and in 64 bits
    text = _text(value)
    return None if text in _NO_CLASS else text


def number_classes(values: Iterable[object]) -> tuple[dict[str, int], list[str]]:
    """Gives each class a number that depends on the set of classes only.

    Args:
        values: Cells of the label, as `class_of` takes them.

    Returns:
        The number of each class, and the names of the classes in the order of the numbers. If all classes are integers from 0
        to 9,999, each class keeps its number, and the names include all integers below the largest class, also those that no
        cell has.

    Raises:
        UserError: If two classes are the same number in two spellings; or if some classes are truth values, others are numbers,
            and there are also classes other than true, false, 0 and 1.
    """
    present = {written for value in values if (written := class_of(value)) is not None}
    same = _truth_as_numbers(present)
    present = {same.get(name, name) for name in present}
    values_of = {name: float(name.replace(",", ".")) for name in sorted(filter(_NUMBER.fullmatch, present))}
    by_value: dict[float, str] = {}
    for name, number in values_of.items():
        if (other := by_value.setdefault(number, name)) != name:
            raise UserError(
                f"the classes {other!r} and {name!r} are the same number in two spellings: use one spelling in the whole data "
                "set. [class-one-number]"
            )
    if all(len(name) < len(str(_MOST_NUMBERED)) and name.isdecimal() and str(int(name)) == name for name in present):
        names = [str(number) for number in range(max(map(int, present), default=-1) + 1)]
    else:
        names = sorted(present, key=values_of.__getitem__ if len(values_of) == len(present) else str)
    numbers = {name: place for place, name in enumerate(names) if name in present}
    return numbers | {name: numbers[other] for name, other in same.items()}, names


def alike(names: Iterable[str]) -> list[str]:
    """Returns those names of classes that differ from another name only in capitals, spaces or the Unicode form of a letter."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(" ".join(unicodedata.normalize("NFKC", name).casefold().split()), []).append(name)
    return [name for group in groups.values() if len(group) > 1 for name in group]


def without_class(label: str, values: Mapping[Any, int]) -> str:
    """Returns a sentence about words, such as ``None`` or -1, that count as no class although the user may mean a class.

    Args:
        label: Label to which the classes belong.
        values: For each content of a cell, the number of rows with this content.

    Returns:
        The sentence; empty if there are no such words.
    """
    words: Counter[str] = Counter()
    for value, count in values.items():
        missing = isinstance(value, float) and math.isnan(value)  # a cell that is empty, and no word
        if not missing and (text := _text(value)) and text in _NO_CLASS:
            words[text] += count
    return f"{label}: {counted(words)} count as no class; if such a word names a class, rename the class." if words else ""


def _text(value: object) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = "" if value is None else unicodedata.normalize("NFC", str(value)).strip()
    if whole := _WHOLE.fullmatch(text):
        return whole[1]
    return text.capitalize() if text.lower() in ("true", "false") else text


def _truth_as_numbers(present: set[str]) -> dict[str, str]:
    """Maps the class True to 1 and the class False to 0, as far as they occur, if all other classes are 0 or 1.

    The result is empty if no class is a truth value, or none is a number.

    Raises:
        UserError: If some classes are truth values, others are numbers, and there are also classes other than true, false, 0
            and 1.
    """
    truths, numbers = present & _TRUTH.keys(), set(filter(_NUMBER.fullmatch, present))
    if not truths or not numbers:
        return {}
    if present - truths - {"0", "1"}:
        raise UserError(
            f"some classes are truth values ({', '.join(sorted(truths))}), others are numbers: write all classes as numbers, "
            "or all as words. [class-truth-mixed]"
        )
    return {truth: _TRUTH[truth] for truth in truths}
