"""Parquet files in the convention of Hugging Face `datasets`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dpfed.data.importers.source import (
    Importer,
    Item,
    Source,
    Unreadable,
    file_record,
    known_columns,
    number_classes,
    plain,
    split_files,
    unit_column,
    unit_of,
)
from dpfed.data.writing import RecordInput
from dpfed.errors import UserError

_IMAGES = ("image", "img", "jpg", "jpeg", "png", "webp", "image_bytes", "bytes")
_CAPTION = re.compile(r"(text|txt|captions?|sentences?|description|title|alt|alttext)\d*")
_TEXT_FIELDS = ("raw", "text", "caption")  # of a struct, the first that holds something
_LABELS = ("label", "labels", "fine_label", "coarse_label", "cls")
_ROWS_AT_ONCE = 256


@dataclass(frozen=True)
class _Columns:
    image: str
    captions: list[str]
    unit: str | None
    unit_name: str | None
    labels: dict[str, dict[object, int] | None]  # None: the stored integers are the class numbers

    def needed(self) -> list[str]:
        return [self.image, *self.captions, *([self.unit] if self.unit else [])]


class ParquetImporter(Importer):
    """A Parquet file (training records), or a folder of them whose names start with, or lie in, train, validation or test.

    ``image`` is ``struct<bytes, path>`` or binary; ``label`` an integer (named by ClassLabel metadata) or text;
    ``text``, ``caption``, ``sentences``, ``alt_text`` and the like, numbered or not, hold texts, structs with a text in
    ``raw``, ``text`` or ``caption``, or lists of these: all of a row are captions of one record. ``unit``, ``person_id``,
    ``patient_id`` or ``pid`` is the unit. The id of a record is its split and row.
    """

    name = "parquet"
    layout = "a .parquet file, or a folder with train*.parquet and optionally validation*.parquet, test*.parquet"

    def recognises(self, path: Path) -> bool:
        """Whether it is a Parquet file or a folder with some."""
        if path.is_dir():
            return next(path.rglob("*.parquet"), None) is not None
        return path.is_file() and path.suffix.lower() == ".parquet"

    def open(self, path: Path) -> Source:
        """Reads the schemas (and the labels, where their classes are not named) and streams the records."""
        files = split_files(path, ".parquet", self.layout)
        try:
            opened = [pq.ParquetFile(file) for _, file in files]
            columns, names = _columns([file.schema_arrow for file in opened], [file for _, file in files])
            used = {*columns.needed(), *columns.labels}
            unused = dict.fromkeys(name for file in opened for name in file.schema_arrow.names if name not in used)
            total = sum(file.metadata.num_rows for file in opened)
        except (pa.ArrowException, OSError) as error:
            raise UserError(f"cannot read the Parquet files of {path} ({_first_line(error)}); are they complete?") from error
        return Source(
            kind="image-text" if columns.captions else "image",
            records=_records(files, columns),
            label_names=names,
            splits=frozenset(split for split, _ in files),
            total=total,
            unit_name=columns.unit_name,
            unused=tuple(unused),
        )


def _columns(schemas: list[pa.Schema], files: list[Path]) -> tuple[_Columns, dict[str, list[str]]]:
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
    columns = _Columns(image, captions, unit, unit_name, labels)
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
        return {name: list(map(str, feature["names"])) for name, feature in classes.items() if name in schema.names}
    except (KeyError, ValueError, TypeError, AttributeError):
        return {}


def _distinct(files: list[Path], name: str) -> set[object]:
    found: set[object] = set()
    for file in files:
        found.update(pc.unique(pq.read_table(file, columns=[name])[name]).to_pylist())
    return found


def _records(files: list[tuple[str, Path]], columns: _Columns) -> Iterator[Item]:
    rows = dict.fromkeys((split for split, _ in files), 0)
    for split, path in files:
        try:
            file = pq.ParquetFile(path)
            present = [name for name in (*columns.needed(), *columns.labels) if name in file.schema_arrow.names]
            for batch in file.iter_batches(_ROWS_AT_ONCE, columns=present):
                for row in batch.to_pylist():
                    yield _record(f"{split}/{rows[split]}", row, columns, split, path.parent)
                    rows[split] += 1
        except (pa.ArrowException, OSError) as error:
            raise UserError(f"{path} is damaged after row {rows[split]:,} of {split} ({_first_line(error)}).") from error


def _record(id: str, row: dict[str, Any], columns: _Columns, split: str, folder: Path) -> Item:
    captions = tuple(dict.fromkeys(text for name in columns.captions for text in _texts(row[name])))
    unit = unit_of(row[columns.unit]) if columns.unit else None
    labels = {}
    for name, numbers in columns.labels.items():
        value = row.get(name)
        number = value if numbers is None else numbers.get(value, -1)
        labels[name] = -1 if number is None else number
    image = row[columns.image]
    if isinstance(image, dict):
        if image.get("bytes") is None and image.get("path"):
            return file_record(id, folder / image["path"], captions, labels, split, unit)
        image = image.get("bytes")
    return Unreadable(id, "no image") if image is None else RecordInput(id, image, captions, labels, split, unit)


def _texts(cell: object) -> list[str]:
    if isinstance(cell, dict):
        return next((texts for name in _TEXT_FIELDS if (texts := _texts(cell.get(name)))), [])
    if isinstance(cell, list):
        return [text for part in cell for text in _texts(part)]
    return [cell] if isinstance(cell, str) and cell else []


def _holds_images(type: pa.DataType) -> bool:
    if pa.types.is_struct(type):
        return any(type.field(number).name == "bytes" for number in range(type.num_fields))
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
