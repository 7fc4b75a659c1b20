"""Parquet files in the convention of Hugging Face `datasets`."""

from __future__ import annotations

import functools
import itertools
import json
import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dpfed.data.importers.access import Access
from dpfed.data.importers.listing import suffix
from dpfed.data.importers.naming import CONTENT
from dpfed.data.importers.source import (
    FileRecord,
    Importer,
    Item,
    Piece,
    Source,
    Unreadable,
    known_columns,
    number_classes,
    plain,
    unit_column,
    unit_of,
)
from dpfed.data.importers.splits import holds, split_files
from dpfed.data.store.record import RecordInput, record_key
from dpfed.data.views.pixels import EXTENSIONS
from dpfed.errors import UserError

_IMAGES = ("image", "img", "jpg", "jpeg", "png", "webp", "image_bytes", "bytes")
_CAPTION = re.compile(r"(text|txt|captions?|sentences?|description|title|alt|alttext)\d*")
_TEXT_FIELDS = ("raw", "text", "caption")  # of a struct, the first that holds something
# Columns that name a record, the first one that all files have. Whether one is used follows from the schema alone: a choice by
# what the rows hold could change for all records with one of them.
_IDS = ("id", "image_id", "record_id", "sample_id", "uid", "uuid", "key", "filename", "filepath", "image_path", "path", "file")
_LABELS = ("label", "labels", "fine_label", "coarse_label", "cls")
_ROWS_AT_ONCE = 256
_PIECE_BYTES = 16 << 20


@dataclass(frozen=True)
class _Columns:
    image: str
    captions: list[str]
    unit: str | None
    unit_name: str | None
    labels: dict[str, dict[object, int] | None]  # None: the stored integers are the class numbers
    id: str | None  # the column of the records' names; None: they are named by what they hold

    def needed(self) -> list[str]:
        return list(dict.fromkeys([self.image, *self.captions, *filter(None, (self.unit, self.id))]))


class ParquetImporter(Importer):
    """A Parquet file (training records), or a folder of them whose names start with, or lie in, train, validation or test.

    ``image`` is ``struct<bytes, path>`` or binary; ``label`` an integer (named by ClassLabel metadata) or text;
    ``text``, ``caption``, ``sentences``, ``alt_text`` and the like, numbered or not, hold texts, structs with a text in
    ``raw``, ``text`` or ``caption``, or lists of these: all of a row are captions of one record. ``unit``, ``person_id``,
    ``patient_id`` or ``pid`` is the unit. The id of a record is its split and what a column ``id``, ``file_name`` or the like
    says; without such a column, its split, the image's ``path`` if the schema has one, and a hash of what the record holds.
    """

    name = "parquet"
    layout = "a .parquet file, or a folder with train*.parquet and optionally validation*.parquet, test*.parquet"

    def recognises(self, path: Path, access: Access | None = None) -> bool:
        """Whether it is a Parquet file, or a folder with some and without archives, about which they may speak."""
        if path.is_dir():
            return holds(path, {".parquet"}, access) and not holds(path, {".tar"}, access)
        return path.is_file() and suffix(path) == ".parquet"

    def open(self, path: Path, access: Access | None = None, id: str | None = None) -> Source:
        """Reads the schemas (and the labels, where their classes are not named, and the names) and streams the records.

        Args:
            path: a file or folder.
            access: what may be read.
            id: the column of the records' names, or ``"content"``; ``None``: as the schema says.
        """
        found = split_files(path, ".parquet", self.layout, access or Access.to(path))
        files = found.files
        try:
            opened = [pq.ParquetFile(file) for _, file in files]
            columns, names = _columns([file.schema_arrow for file in opened], [file for _, file in files], id)
            used = {*columns.needed(), *columns.labels}
            unused = dict.fromkeys(name for file in opened for name in file.schema_arrow.names if name not in used)
            total = sum(file.metadata.num_rows for file in opened)
            if columns.id is not None:
                _refuse_repeated(files, columns.id)
            by_path = functools.cache(lambda: any(_lacks_bytes(file, columns.image) for file in opened))
            pieces = list(_pieces(files, columns))
            unread = found.unread(lambda file: suffix(file) in EXTENSIONS and by_path())
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise UserError(f"cannot read the Parquet files of {path} ({_first_line(error)}); are they complete?") from error
        return Source(
            kind="image-text" if columns.captions else "image",
            records=itertools.chain.from_iterable(piece.records() for piece in pieces),
            label_names=names,
            splits=frozenset(split for split, _ in files),
            total=total,
            unit_name=columns.unit_name,
            unused=tuple(unused),
            named=columns.id is not None,
            unread=unread,
            passed_over=found.passed_over,
            pieces=pieces,
        )


def _columns(schemas: list[pa.Schema], files: list[Path], id: str | None) -> tuple[_Columns, dict[str, list[str]]]:
    """Which columns hold what, and the names of the classes; later files may lack labels, as many test splits do."""
    schema = schemas[0]
    image = next((name for name in known_columns(schema.names, _IMAGES) if _holds_images(schema.field(name).type)), None)
    if image is None:
        raise UserError(
            f"{files[0]} has no column of images, only {', '.join(schema.names)}; "
            "expected 'image' as struct<bytes, path> or binary."
        )
    captions = [field.name for field in schema if _CAPTION.fullmatch(plain(field.name)) and _holds_texts(field.type)]
    unit, unit_name = unit_column(schema.names)
    named = _class_labels(schema)
    labels: dict[str, dict[object, int] | None] = {name: None for name in named}
    for name in known_columns(schema.names, _LABELS):
        if name not in named and _holds_classes(schema.field(name).type):
            having = [file for file, other in zip(files, schemas, strict=True) if name in other.names]
            labels[name], named[name] = number_classes(_distinct(having, name))
    columns = _Columns(image, captions, unit, unit_name, labels, _id_column(schemas, files, id))
    for other, file in zip(schemas, files, strict=True):
        for needed in columns.needed():
            if needed not in other.names:
                raise UserError(f"{file} lacks the column {needed!r} that {files[0]} has; all files must have it.")
    return columns, named


def _class_labels(schema: pa.Schema) -> dict[str, list[str]]:
    """Integer columns whose class names stand in the Hugging Face metadata."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        classes = {name: feature for name, feature in features.items() if feature.get("_type") == "ClassLabel"}
        columns = [name for name in classes if schema.names.count(name) == 1 and pa.types.is_integer(schema.field(name).type)]
        return {name: list(map(str, classes[name]["names"])) for name in columns}
    except (KeyError, ValueError, TypeError, AttributeError):
        return {}


def _distinct(files: list[Path], name: str) -> set[object]:
    found: set[object] = set()
    for file in files:
        found.update(pc.unique(pq.ParquetFile(file).read(columns=[name])[name]).to_pylist())
    return found


def _id_column(schemas: list[pa.Schema], files: list[Path], id: str | None) -> str | None:
    """The column of the records' names: the one that was asked for, or the first known one that all files have."""
    if id == CONTENT:
        return None
    if id is None:
        shared = [name for name in schemas[0].names if all(_names_records(schema, name) for schema in schemas)]
        return next(iter(known_columns(shared, _IDS)), None)
    for schema, file in zip(schemas, files, strict=True):
        if not _names_records(schema, id):
            why = "whose type is no text or number" if id in schema.names else f"only {', '.join(schema.names)}"
            raise UserError(f"{file} has no column {id!r} that could name its records, {why}; correct --id.")
    return id


def _names_records(schema: pa.Schema, name: str) -> bool:
    return schema.names.count(name) == 1 and _holds_classes(schema.field(name).type)


def _refuse_repeated(files: list[tuple[str, Path]], column: str) -> None:
    """Refuses a column of names in which one occurs twice.

    Raises:
        UserError: with a name that does.
    """
    for split in dict.fromkeys(split for split, _ in files):
        keys = array("Q")
        for name in _names(files, split, column):
            keys.append(record_key(name))
        found, counts = np.unique(np.frombuffer(keys, np.uint64), return_counts=True)
        if (counts > 1).any():
            key = int(found[counts > 1][0])
            twice = next(name for name in _names(files, split, column) if record_key(name) == key)
            raise UserError(
                f"the column {column!r} has {int((counts > 1).sum()):,} names that several {split} records share, such as "
                f"{twice!r}, and a record needs a name of its own: name another column with `dpfed data import --id COLUMN`, "
                f"or take a hash of what each row holds with `--id {CONTENT}`; each row is then a record."
            )


def _names(files: list[tuple[str, Path]], split: str, column: str) -> Iterator[str]:
    for file in (file for of, file in files if of == split):
        for batch in pq.ParquetFile(file).iter_batches(columns=[column]):
            yield from filter(None, map(unit_of, batch.column(0).to_pylist()))


def _lacks_bytes(file: pq.ParquetFile, image: str) -> bool:
    """Whether some images are given by their path alone.

    The footer counts such rows, too. But where it is damaged, pyarrow ends the process when it is asked for a column's entry.
    """
    if not pa.types.is_struct(file.schema_arrow.field(image).type):
        return False
    batches = file.iter_batches(_ROWS_AT_ONCE, columns=[f"{image}.bytes"])
    return any(pc.struct_field(batch.column(0), "bytes").null_count for batch in batches)


@dataclass(frozen=True)
class _RowGroups(Piece):
    """Some row groups of a file.

    Attributes:
        split: that its rows belong to.
        columns: which column holds what.
        groups: numbers of the first row group, and of the one after the last.
        first: rows of the split before it.
    """

    split: str
    columns: _Columns
    groups: tuple[int, int]
    first: int

    @property
    def mark(self) -> object:
        """See `Piece`."""
        return [self.split, *self.groups, self.first]

    def records(self) -> Iterator[Item]:
        """See `Piece`."""
        row = self.first
        try:
            file = pq.ParquetFile(self.file)
            present = [name for name in (*self.columns.needed(), *self.columns.labels) if name in file.schema_arrow.names]
            for batch in file.iter_batches(_ROWS_AT_ONCE, range(*self.groups), columns=present):
                for cells in batch.to_pylist():
                    yield _record(f"{self.split}/{row}", cells, self.columns, self.split, self.file.parent)
                    row += 1
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise UserError(f"{self.file} is damaged after row {row:,} of {self.split} ({_first_line(error)}).") from error


def _pieces(files: list[tuple[str, Path]], columns: _Columns) -> Iterator[_RowGroups]:
    """The row groups of all files, some megabytes of them in a piece."""
    rows = dict.fromkeys((split for split, _ in files), 0)
    for split, path in files:
        metadata, size = pq.ParquetFile(path).metadata, path.stat().st_size
        each = max(1, _PIECE_BYTES * metadata.num_row_groups // max(size, 1))  # row groups of a file are of about one size
        for start in range(0, metadata.num_row_groups, each):
            end = min(start + each, metadata.num_row_groups)
            share = size * (end - start) // metadata.num_row_groups
            yield _RowGroups(path, share, split, columns, (start, end), rows[split])
            rows[split] += sum(metadata.row_group(group).num_rows for group in range(start, end))


def _record(place: str, row: dict[str, Any], columns: _Columns, split: str, folder: Path) -> Item:
    captions = tuple(dict.fromkeys(text for name in columns.captions for text in _texts(row[name])))
    unit = unit_of(row[columns.unit]) if columns.unit else None
    labels = {}
    for name, numbers in columns.labels.items():
        value = row.get(name)
        number = value if numbers is None else numbers.get(value, -1)
        labels[name] = -1 if number is None else number
    image, path = row[columns.image], ""
    if isinstance(image, dict):
        path = str(image.get("path") or "")
        image = image.get("bytes")
    if columns.id is None:
        id = f"{split}/{path}#" if path else f"{split}/"
    elif (named := unit_of(row[columns.id])) is None:
        return Unreadable(f"{place} (a row without a name)", f"no {columns.id}")
    else:
        id = place = f"{split}/{named}"
    if image is None and path:
        return FileRecord(id, folder / path, captions, labels, split, unit, place)
    return Unreadable(place, "no image") if image is None else RecordInput(id, image, captions, labels, split, unit, place)


def _texts(cell: object) -> list[str]:
    if isinstance(cell, dict):
        return next((texts for name in _TEXT_FIELDS if (texts := _texts(cell.get(name)))), [])
    if isinstance(cell, list):
        return [text for part in cell for text in _texts(part)]
    return [cell] if isinstance(cell, str) and cell else []


def _holds_images(type: pa.DataType) -> bool:
    if pa.types.is_struct(type):
        fields = map(type.field, range(type.num_fields))
        return any(field.name == "bytes" and _holds_images(field.type) for field in fields)
    return pa.types.is_binary(type) or pa.types.is_large_binary(type)


def _is_text(type: pa.DataType) -> bool:
    return pa.types.is_string(type) or pa.types.is_large_string(type)


def _holds_texts(type: pa.DataType) -> bool:
    if pa.types.is_struct(type):
        fields = map(type.field, range(type.num_fields))
        return any(field.name in _TEXT_FIELDS and _holds_texts(field.type) for field in fields)
    if _is_list(type):
        return not _is_list(type.value_type) and _holds_texts(type.value_type)  # lists in a list are tokens
    return _is_text(type)


def _is_list(type: pa.DataType) -> bool:
    return pa.types.is_list(type) or pa.types.is_large_list(type)


def _holds_classes(type: pa.DataType) -> bool:
    return pa.types.is_integer(type) or _is_text(type.value_type if pa.types.is_dictionary(type) else type)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
