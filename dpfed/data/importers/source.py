"""Defines the interface of an importer: a stream of records, and facts that must be known before the first record.

This module also gives names to the records that have no names at their source. Such a name is a hash of what the record holds,
and of nothing else.

A record's key, its worker, its site and whether it is held out follow from its name, or from the name of its unit. Row numbers
cannot be names: with one row less, all later records would have other names, and therefore other workers.
"""

from __future__ import annotations

import ast
import codecs
import contextlib
import hashlib
import json
import re
import shlex
import warnings
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

# Columns and keys that say which records belong together -> what the unit is called. The first one that is there counts.
UNIT_NAMES = {"unit": "unit", "person_id": "person", "patient_id": "patient", "pid": "person"}

# Names of a column of image files. OTHER_FILES counts only where no column has a name of FILES.
FILES = ("filepath", "image", "image_path", "file", "path", "img", "filename")
OTHER_FILES = ("image_name", "image_file", "img_path", "img_name")
FILE_COLUMNS = FILES + OTHER_FILES

_LONGEST_LIST = 100_000  # characters
_SEPARATORS = re.compile(r"[\W_]+")


@dataclass(frozen=True)
class Unreadable:
    """A record, a file or a column that cannot be read at the source.

    Attributes:
        id: Name of the record, path of the file, or file and name of the column.
        reason: Reason, in a few words.
    """

    id: str
    reason: str


@dataclass(frozen=True)
class FileRecord:
    """The record of one image file, which is read only when the record is stored.

    Attributes:
        path: Path of the image file. For the other attributes, see `RecordInput`.
    """

    id: str
    path: Path
    captions: tuple[str, ...]
    labels: dict[str, int]
    split: str
    unit: str | None = None
    place: str | None = None

    def read(self, access: Access) -> RecordInput | Unreadable:
        """Returns the record with its image, or the reason why the file is not read."""
        try:
            image = access.read(self.path)
        except NotRead as error:
            return Unreadable(self.place or self.id, str(error))
        return RecordInput(self.id, image, self.captions, self.labels, self.split, self.unit, self.place)


Item = RecordInput | FileRecord | Unreadable


@dataclass(frozen=True)
class Source:
    """An opened source: its records, and facts about all of them.

    Attributes:
        kind: ``"image"`` or ``"image-text"``.
        records: Iterator over the records, which are read one after the other, and only once.
        label_names: For each label name, the names of its classes in the order of their numbers.
        splits: Splits that the records have at the source, before any records are held out.
        total: Number of records, including those that cannot be read; ``None``: the number is not known beforehand.
        unit_name: Name of the kind of unit, such as ``"person"``; ``None``: the records name no units.
        unused: Columns, or kinds of files in the samples of archives, that the import ignores and reports, as the source names
            them.
        named: Whether the ids are the records' names at the source. If not, each id is a prefix, to which the import appends a
            hash of what the record holds (`content_hash`).
        unread: Files, folders and columns that may hold records, but cannot be read. The import is refused, unless the user
            allows that they are left out.
        passed_over: Files and folders, below the source or in its archives, that hold no records: their names, or kinds such as
            ``"hidden files and folders"``, with their counts.
        advice: Advice for the user if files were not read; empty: there is none.
        doubtful: Whether files beside the records make the detected format doubtful. The import then leaves files out only if
            the user also names the format.
        notice: Sentences that the user who imports must know; empty: there are none.
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
        options: Options of `import_records` that `open` takes as further keyword arguments.
    """

    name: ClassVar[str]
    layout: ClassVar[str]
    options: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def recognises(self, path: Path, access: Access | None = None) -> bool:
        """Returns whether `path` looks like this family of data sets. Every importer is asked, so the check should be cheap.

        Args:
            path: File or folder.
            access: Paths that the import may read; ``None``: what lies below `path` or, if `path` is a file, below the folder
                that holds the file.

        Raises:
            UserError: If `path` is a folder that cannot be read.
        """

    @abstractmethod
    def open(self, path: Path, access: Access | None = None) -> Source:
        """Opens a source. If possible, images are read later, when the records are stored.

        Args:
            path: File or folder.
            access: Paths that the import may read; ``None``: what lies below `path` or, if `path` is a file, below the folder
                that holds the file.

        Raises:
            UserError: If `path` is not laid out as expected, or cannot be read.
        """


def spaced(*sentences: str) -> str:
    """Joins the sentences that are not empty, with spaces between them."""
    return " ".join(filter(None, sentences))


def captions_in(text: str) -> list[str]:
    """Returns the captions in a cell: the entries if the text is a list of strings in JSON or Python, otherwise the whole text.

    A list that is empty, or has 100,000 characters or more, counts as one text.
    """
    if text.startswith("[") and text.endswith("]") and len(text) < _LONGEST_LIST:
        for read in (json.loads, ast.literal_eval):
            with (
                contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError),
                warnings.catch_warnings(action="ignore"),  # Python's warnings quote what the caption holds
            ):
                if isinstance(captions := read(text), list) and captions and all(isinstance(part, str) for part in captions):
                    return captions
    return [text]


def not_utf8(path: Path) -> UserError:
    """Returns the error for a text file that is not UTF-8, with the command that converts it.

    A byte order mark shows UTF-16, which Excel calls Unicode text. Other encodings cannot be distinguished from each other; for
    them, the command converts from Windows-1252, which Excel writes in Western Europe and America.
    """
    utf16 = False
    with contextlib.suppress(OSError), path.open("rb") as file:
        utf16 = file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    encoding, said = ("UTF-16", "It is") if utf16 else ("WINDOWS-1252", "If it comes from Excel, it may be")
    there, made = (shlex.quote(str(file)) for file in (path, path.with_name(f"{path.stem}-utf8{path.suffix}")))
    return UserError(
        f"{path} is not UTF-8. {said} {encoding}. Convert it with `iconv -f {encoding} -t UTF-8 {there} > {made}`, "
        "and use the new file in its place. [file-not-utf8]"
    )


def plain(name: str) -> str:
    """Returns a column's name in small letters, without spaces and punctuation: ``Image Path`` is ``imagepath``."""
    return _SEPARATORS.sub("", name).lower()


def known_columns(names: Sequence[str], known: Iterable[str]) -> list[str]:
    """Returns those columns whose names are known; capitals, spaces and punctuation do not count (`plain`).

    Args:
        names: Names of the columns.
        known: Known names.

    Returns:
        Names of columns as the source writes them, in the order of `known`.
    """
    return [name for wanted in known for name in names if plain(name) == plain(wanted)]


def unit_column(names: Sequence[str]) -> tuple[str | None, str | None]:
    """Returns the column that names the unit of each record, and the name of the kind of unit, such as ``"person"``.

    Both are ``None`` if no column has a name of `UNIT_NAMES`.
    """
    matches = ((name, called) for known, called in UNIT_NAMES.items() for name in known_columns(names, [known]))
    return next(matches, (None, None))


def unit_of(value: object) -> str | None:
    """Returns the unit that a cell names; ``None`` for an empty cell.

    1 and 1.0 name the same unit, because one person must not become two units: pandas writes 1.0 in place of 1 if the column
    has an empty cell, and 1 in another file of the data set, where the column has none.
    """
    if value is None or value != value:  # noqa: PLR0124 - not a number: pandas' empty cell
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = str(value).strip()
    return re.sub(r"^([+-]?\d+)\.0+$", r"\1", text) or None


CONTENT = "content"  # value of --id that names records by a hash of what they hold; other values are names of columns


def content_hash(record: RecordInput, label_names: Mapping[str, Sequence[str]]) -> str:
    """Returns a hash of what a record holds: its image as the source has it, its captions, labels and unit.

    Labels enter by the names of their classes, because class numbers may depend on the classes of other records.

    Args:
        record: Record whose image is an encoded file or an array.
        label_names: For each label name, the names of its classes in the order of their numbers.

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
    """Adds a part and its length to a hash, so that different lists of parts give different bytes."""
    digest.update(len(part).to_bytes(8, "little"))
    digest.update(part)
