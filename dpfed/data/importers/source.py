"""What an importer gives: a stream of records, and what must be known about them beforehand."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from dpfed.data.writing import RecordInput

_MOST_NUMBERED = 10_000  # integers up to this are taken for class numbers as they are

SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
    "testing": "test",
}


@dataclass(frozen=True)
class Unreadable:
    """A record whose image is missing or unreadable at the source."""

    id: str
    reason: str


Item = RecordInput | Unreadable


@dataclass(frozen=True)
class Source:
    """An opened source.

    Attributes:
        kind: ``"image"`` or ``"image-text"``.
        records: the records, read one after the other and only once.
        label_names: label name -> what its numbers mean.
        splits: the splits that the source itself defines.
        total: number of records, where it is known beforehand.
    """

    kind: str
    records: Iterator[Item]
    label_names: dict[str, list[str]] = field(default_factory=dict)
    splits: frozenset[str] = frozenset({"train"})
    total: int | None = None


class Importer(ABC):
    """Reads one family of data sets from local files.

    Attributes:
        name: what the user calls it.
        layout: what the source must look like, in a few words.
    """

    name: ClassVar[str]
    layout: ClassVar[str]

    @abstractmethod
    def recognises(self, path: Path) -> bool:
        """Whether `path` looks like this family; cheap."""

    @abstractmethod
    def open(self, path: Path) -> Source:
        """Opens a source.

        Raises:
            UserError: when `path` is not laid out as expected.
        """


def file_record(id: str, path: Path, captions: tuple[str, ...], labels: dict[str, int], split: str) -> Item:
    """The record of one image file, kept verbatim."""
    try:
        return RecordInput(id, path.read_bytes(), captions, labels, split)
    except FileNotFoundError:
        return Unreadable(id, "file missing")
    except OSError as error:
        return Unreadable(id, error.strerror or str(error))


def number_classes(values: Iterable[object]) -> tuple[dict[object, int], list[str]]:
    """Gives each class a number that depends on the set of classes only.

    Args:
        values: the distinct classes: text or integers; missing ones (``None``, ``""``, -1) are left out.

    Returns:
        Class -> number, and the names in the order of the numbers. Small non-negative integers keep their own number.
    """
    present = {value for value in values if value not in (None, "", -1, "-1")}
    integers = {value: _integer(value) for value in present}
    if None not in integers.values():
        if all(0 <= number < _MOST_NUMBERED for number in integers.values()):
            return integers, [str(number) for number in range(max(integers.values(), default=-1) + 1)]
        ordered = sorted(present, key=integers.__getitem__)
    else:
        ordered = sorted(present, key=str)
    return {value: number for number, value in enumerate(ordered)}, [str(value) for value in ordered]


def _integer(value: object) -> int | None:
    try:
        return int(value) if isinstance(value, int) or str(int(value)) == value else None
    except (TypeError, ValueError):
        return None
