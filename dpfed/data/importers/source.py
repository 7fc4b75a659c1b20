"""What an importer gives: a stream of records, and what must be known about them beforehand.

Also here: names for records that have none of their own: a hash of what the record holds, and of nothing else.

A record's key, its worker, its site and whether it is held out follow from its name. A row number would not do: with one row
less, all later records would have other names, and with them other workers.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np

from dpfed.data.importers.access import Access, NotRead
from dpfed.data.store.record import RecordInput
from dpfed.errors import UserError

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

# Names of a column of image files; those of the second kind count where there is none of the first.
FILES = ("filepath", "image", "image_path", "file", "path", "img", "filename")
OTHER_FILES = ("image_name", "image_file", "img_path", "img_name")
FILE_COLUMNS = FILES + OTHER_FILES

_LONGEST_LIST = 100_000  # characters
_SEPARATORS = re.compile(r"[\W_]+")


@dataclass(frozen=True)
class Unreadable:
    """A record whose image is missing or unreadable at the source."""

    id: str
    reason: str


@dataclass(frozen=True)
class FileRecord:
    """The record of one image file, which is kept verbatim; see `RecordInput`.

    Attributes:
        path: The file, read when its turn comes.
    """

    id: str
    path: Path
    captions: tuple[str, ...]
    labels: dict[str, int]
    split: str
    unit: str | None = None
    place: str | None = None

    def read(self, access: Access) -> RecordInput | Unreadable:
        """The record with its image, as far as the file may and can be read."""
        try:
            image = access.read(self.path)
        except NotRead as error:
            return Unreadable(self.place or self.id, str(error))
        return RecordInput(self.id, image, self.captions, self.labels, self.split, self.unit, self.place)


Item = RecordInput | FileRecord | Unreadable


@dataclass(frozen=True)
class Source:
    """An opened source.

    Attributes:
        kind: ``"image"`` or ``"image-text"``.
        records: The records, read one after the other and only once.
        label_names: Label name -> what its numbers mean.
        splits: The splits that the source itself defines.
        total: Number of records, where it is known beforehand.
        unit_name: Name of a unit that records share, such as ``"person"``; ``None``: the records name no units.
        unused: Columns, or kinds of files of a sample, that the importer does not use, by their names in the source.
        named: Whether the ids are the records' own names. If not, they are beginnings, to which a hash of what the record holds
            is added (`dpfed.data.importers.source`).
        unread: Files below the source that would be lost; the import is refused unless broken records are left out.
        passed_over: Names of files and folders below the source that hold no records, with their counts.
        advice: Advice for the user if files were not read.
        doubtful: So much lies beside the records that the format must be given by name.
        notice: Facts that the importing user must know.
    """

    kind: str
    records: Iterator[Item]
    label_names: dict[str, list[str]] = field(default_factory=dict)
    splits: frozenset[str] = frozenset({"train"})
    total: int | None = None
    unit_name: str | None = None
    unused: tuple[str, ...] = ()
    named: bool = True
    unread: Sequence[Unreadable] = ()
    passed_over: Mapping[str, int] = field(default_factory=dict)
    advice: str = ""
    doubtful: bool = False
    notice: str = ""


class Importer(ABC):
    """Reads one family of data sets from local files.

    Attributes:
        name: Name of the format, as the user gives it.
        layout: Layout that the source must have, in a few words.
        options: Further keywords that `open` takes, out of the options of `import_records`.
    """

    name: ClassVar[str]
    layout: ClassVar[str]
    options: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def recognises(self, path: Path, access: Access | None = None) -> bool:
        """Returns whether `path` looks like this family; cheap.

        Args:
            path: A file or folder.
            access: Whether links that lead elsewhere are followed; ``None``: they are not.
        """

    @abstractmethod
    def open(self, path: Path, access: Access | None = None) -> Source:
        """Opens a source.

        Args:
            path: A file or folder.
            access: Paths that the import may read; ``None``: `path`, or its folder.

        Raises:
            UserError: When `path` is not laid out as expected.
        """


def spaced(*sentences: str) -> str:
    """Sentences in one line, but those that are empty."""
    return " ".join(filter(None, sentences))


def captions_in(text: str) -> list[str]:
    """The captions that a text holds: itself, or those of a list that was written as text, as pandas and JSON write one."""
    if text.startswith("[") and text.endswith("]") and len(text) < _LONGEST_LIST:
        for read in (json.loads, ast.literal_eval):
            with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError):
                if isinstance(found := read(text), list) and found and all(isinstance(part, str) for part in found):
                    return found
    return [text]


def not_utf8(path: Path) -> UserError:
    """The refusal of a text file in another encoding."""
    return UserError(f"{path} is not UTF-8; save it in the encoding UTF-8, and try again. [file-not-utf8]")


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


CONTENT = "content"  # what --id takes beside the name of a column


def content_hash(record: RecordInput, label_names: Mapping[str, Sequence[str]]) -> str:
    """A hash of all that is stored of a record: its image as it came, its captions, labels and unit.

    Labels count by the names of their classes: their numbers may depend on which classes other records have.

    Args:
        record: Record whose image is an encoded file or an array.
        label_names: Names of the class numbers of each label.

    Returns:
        32 hexadecimal digits.
    """
    digest = hashlib.blake2b(digest_size=16)
    image = record.image
    if not isinstance(image, bytes):
        pixels = np.asarray(image)
        _add(digest, f"{pixels.dtype}{pixels.shape}".encode())
        image = pixels.tobytes()
    _add(digest, image)
    for text in _texts(record, label_names):
        _add(digest, text.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _texts(record: RecordInput, label_names: Mapping[str, Sequence[str]]) -> Iterable[str]:
    yield str(len(record.captions))
    yield from record.captions
    for label, number in sorted(record.labels.items()):
        names = label_names.get(label, ())
        if number >= 0:
            yield label
            yield names[number] if number < len(names) else str(number)
    yield record.unit or ""


def _add(digest: hashlib.blake2b, part: bytes) -> None:
    """Adds a part with its length, so that no two lists of parts give the same bytes."""
    digest.update(len(part).to_bytes(8, "little"))
    digest.update(part)
