"""What an importer gives: a stream of records, and what must be known about them beforehand."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from dpfed.data.records import SPLITS
from dpfed.data.writing import RecordInput
from dpfed.errors import UserError

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

# Columns and keys that say which records belong together, the first one that is there: what their unit is called.
UNIT_NAMES = {"unit": "unit", "person_id": "person", "patient_id": "patient", "pid": "person"}

_SEPARATORS = re.compile(r"[\W_]+")


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
        unit_name: what the units that records share are called, such as ``"person"``; ``None``: records name none.
        unused: columns that hold nothing that was recognised, as they are called in the source; known for tables and Parquet.
    """

    kind: str
    records: Iterator[Item]
    label_names: dict[str, list[str]] = field(default_factory=dict)
    splits: frozenset[str] = frozenset({"train"})
    total: int | None = None
    unit_name: str | None = None
    unused: tuple[str, ...] = ()


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


def file_record(
    id: str, path: Path, captions: tuple[str, ...], labels: dict[str, int], split: str, unit: str | None = None
) -> Item:
    """The record of one image file, kept verbatim."""
    try:
        return RecordInput(id, path.read_bytes(), captions, labels, split, unit)
    except FileNotFoundError:
        return Unreadable(id, "file missing")
    except (OSError, ValueError) as error:  # ValueError: a path that cannot be one
        return Unreadable(id, getattr(error, "strerror", None) or str(error))


def not_utf8(path: Path) -> UserError:
    """The refusal of a text file in another encoding."""
    return UserError(f"{path} is not UTF-8; save it in the encoding UTF-8, and try again.")


def plain(name: str) -> str:
    """A column's name without capitals, spaces and punctuation: ``Image Path`` is ``image_path``."""
    return _SEPARATORS.sub("", name).lower()


def known_columns(names: Sequence[str], known: Iterable[str]) -> list[str]:
    """The columns that have known names, as `plain` compares them: their names in the source, in the order of `known`."""
    return [name for wanted in known for name in names if plain(name) == plain(wanted)]


def unit_column(names: Sequence[str]) -> tuple[str | None, str | None]:
    """The column that says which records belong together, and what their unit is called; both ``None`` without one."""
    found = ((name, called) for known, called in UNIT_NAMES.items() for name in known_columns(names, [known]))
    return next(found, (None, None))


def unit_of(value: object) -> str | None:
    """The unit that a cell names; ``None`` for an empty one.

    A whole number is one unit however it was written: a column with an empty cell comes as 1.0 where another file has 1, and
    one person must not become two.
    """
    if value is None or value != value:  # noqa: PLR0124 - not a number: pandas' empty cell
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = str(value).strip()
    return re.sub(r"^([+-]?\d+)\.0+$", r"\1", text) or None


def split_files(path: Path, suffix: str, layout: str) -> list[tuple[str, Path]]:
    """The files of one data set and their splits.

    A file belongs to the split that its name or, failing that, the nearest folder's name speaks of, such as
    ``data/train-00000.parquet`` or ``cc3m-validation-0000.tar``; when none does, all files are for training.

    Args:
        path: a file, which is for training, or a folder.
        suffix: such as ``".tar"``.
        layout: what was expected, for messages.

    Returns:
        (split, file) pairs in a fixed order, training files first.

    Raises:
        UserError: when there are no such files, a file belongs to no split or to several data sets.
    """
    if path.is_file():
        return [("train", path)]
    found = sorted(file for file in path.rglob(f"*{suffix}") if not file.name.startswith("."))
    if not found:
        raise UserError(f"there are no {suffix} files in {path}; expected {layout}.")
    splits: dict[Path, str | None] = {file: _split_of(file.relative_to(path)) for file in found}
    if not any(splits.values()):
        splits = dict.fromkeys(found, "train")
    placed: list[tuple[str, Path]] = []
    for file, split in splits.items():
        if split is None:
            raise UserError(f"{file} belongs to no split; start its name with train, validation or test, or move it away.")
        placed.append((split, file))
    configurations = {_configuration(file.relative_to(path)) for file in found}
    if len(configurations) > 1:
        raise UserError(f"{path} holds several data sets ({', '.join(sorted(configurations))}); choose one of these folders.")
    return sorted(placed, key=lambda entry: (SPLITS.index(entry[0]), entry[1]))


def _split_of(file: Path) -> str | None:
    for part in reversed(file.parts):
        named = {SPLIT_NAMES[word] for word in re.findall("[a-z]+", part.lower()) if word in SPLIT_NAMES}
        if len(named) == 1:
            return named.pop()
    return None


def _configuration(file: Path) -> str:
    return "/".join(part for part in file.parts[:-1] if part != "data" and part.lower() not in SPLIT_NAMES) or "."


def number_classes(values: Iterable[object]) -> tuple[dict[object, int], list[str]]:
    """Gives each class a number that depends on the set of classes only.

    Args:
        values: the distinct classes: text or integers; missing ones (``None``, ``""``, -1) are left out.

    Returns:
        Class -> number, and the names in the order of the numbers. Small non-negative integers keep their own number.
    """
    present = {value for value in values if value not in (None, "", -1, "-1")}
    integers = {value: number for value in present if (number := _integer(value)) is not None}
    if len(integers) == len(present):
        if all(0 <= number < _MOST_NUMBERED for number in integers.values()):
            return integers, [str(number) for number in range(max(integers.values(), default=-1) + 1)]
        ordered = sorted(present, key=integers.__getitem__)
    else:
        ordered = sorted(present, key=str)
    return {value: number for number, value in enumerate(ordered)}, [str(value) for value in ordered]


def _integer(value: object) -> int | None:
    if isinstance(value, int):
        return int(value)
    try:
        return number if isinstance(value, str) and str(number := int(value)) == value else None
    except ValueError:
        return None
