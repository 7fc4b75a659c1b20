"""Finds out what the columns of Parquet files hold. All files are looked at together, so their order does not matter."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dpfed.data.importers.classes import class_of, number_classes, without_class
from dpfed.data.importers.conversions import table_of_parquet
from dpfed.data.importers.source import CONTENT, FILE_COLUMNS, Unreadable, known_columns, plain, spaced, unit_column
from dpfed.errors import UserError

TEXT_FIELDS = ("raw", "text", "caption")  # fields of a struct; the first that holds something counts
_IMAGES = ("image", "img", "jpg", "jpeg", "png", "webp", "image_bytes", "bytes", "image_encoded", "image_raw")
_CAPTION = re.compile(r"(text|txt|(?:image)?captions?|sentences?|description|title|alt|alttext)\d*")
# Columns that name records; the first one that all files have is used. The choice follows from the schemas alone: one row more
# or less must not change the names of all records.
_IDS = ("id", "image_id", "record_id", "sample_id", "uid", "uuid", "key", "filename", "filepath", "image_path", "path", "file")
_LABELS = ("label", "labels", "fine_label", "coarse_label", "cls", "image_class_label")


@dataclass(frozen=True)
class Classes:
    """The classes of a label, as one file writes them.

    Attributes:
        names: Names of the classes that the numbers in the cells stand for, from the metadata of this file or, if these give no
            names, from those of the other files; ``None``: the cells themselves are the classes.
        numeric: Whether the cells are numbers.
        numbers: Number of each class in the store, the same for all files.
    """

    names: tuple[str, ...] | None
    numeric: bool
    numbers: dict[str, int]

    def number(self, cell: object) -> int | None:
        """Returns the number that the class of a cell has in the store; -1: the cell has no class; ``None``: unknown class."""
        name = _named(cell, self.names, self.numeric)
        return -1 if name is None else self.numbers.get(name)


@dataclass(frozen=True)
class Columns:
    """The roles of the columns of one file.

    Attributes:
        image: Column of the images.
        captions: Columns of the captions.
        unit: Column of the units; ``None``: there are none.
        labels: Classes of each column of labels.
        id: Column of the records' names; ``None``: each record is named by a hash of what it holds.
        split: Column of the splits; ``None``: the names of files and folders give the splits.
        given: Hive partition columns, name -> value: the folder ``label=cat`` sets the column ``label`` to ``cat`` in all rows
            of the file. ``None`` is a missing value.
    """

    image: str
    captions: list[str]
    unit: str | None
    labels: dict[str, Classes]
    id: str | None
    split: str | None = None
    given: dict[str, str | None] = field(default_factory=dict)

    def all(self) -> list[str]:
        """Returns all columns that have a role."""
        return list(dict.fromkeys([self.image, *self.captions, *filter(None, (self.unit, self.id, self.split)), *self.labels]))

    def used(self) -> list[str]:
        """Returns the columns with a role that are in the file itself, and not given by the names of folders."""
        return [name for name in self.all() if name not in self.given]


@dataclass
class ColumnAssignment:
    """The roles of the columns of all files of a data set.

    Attributes:
        columns: Roles of the columns of each file.
        captioned: Whether the records have captions.
        label_names: For each label name, the names of its classes in the order of their numbers.
        unit_name: Name of the kind of unit, such as ``"person"``; ``None``: there are no units.
        unused: Columns without a role.
        unread: Columns of labels that cannot be read, with the reasons.
        notice: Sentences that the user who imports should know; empty: there are none.
    """

    columns: list[Columns] = field(default_factory=list)
    captioned: bool = False
    label_names: dict[str, list[str]] = field(default_factory=dict)
    unit_name: str | None = None
    unused: tuple[str, ...] = ()
    unread: list[Unreadable] = field(default_factory=list)
    notice: str = ""


@dataclass(frozen=True)
class _File:
    path: Path
    schema: pa.Schema  # with the columns that folders give
    given: dict[str, str | None]

    @classmethod
    def of(cls, path: Path, schema: pa.Schema, given: dict[str, str | None]) -> _File:
        added = {name: cell for name, cell in given.items() if name not in schema.names}
        for name in added:
            schema = schema.append(pa.field(name, pa.string()))
        return cls(path, schema, added)

    def type(self, name: str) -> pa.DataType | None:
        """Returns the type of the values in the first column of a given name; ``None``: there is no such column."""
        return _bare(self.schema.types[self.schema.names.index(name)]) if name in self.schema.names else None


def assign_columns(
    files: Sequence[tuple[Path, pa.Schema, dict[str, str | None]]], id: str | None, one_split: bool = False
) -> ColumnAssignment:
    """Finds out what the columns of the given files hold.

    Args:
        files: Files of one data set: path, schema, and the cells that folders give to all rows of the file.
        id: Column of the records' names, or ``"content"`` for a hash of each record; ``None``: the first known column of names
            that all files have, otherwise a hash.
        one_split: Whether all files have the same split by their names. A column ``split``, if there is one, then gives the
            splits.

    Raises:
        UserError: If two files disagree, a file has no images, a needed column occurs twice, the classes of a label are not
            clear, or the column `id` cannot name the records.
        OSError, pyarrow.ArrowException, UnicodeDecodeError: If a file is damaged.
    """
    given = [_File.of(*file) for file in files]
    names = list(dict.fromkeys(name for file in given for name in file.schema.names))
    assigned = ColumnAssignment()
    image = _image_column(given, names)
    captions = _columns_of(given, [name for name in names if _CAPTION.fullmatch(plain(name))], _holds_texts, "texts")
    unit, assigned.unit_name = _unit_column(given)
    named = _id_column(given, id)
    labels = _labels(given, names, assigned)
    split = next(iter(known_columns(names, ["split"])), None) if one_split else None
    if split is not None and not all(split in file.schema.names and _is_text(file.type(split)) for file in given):
        raise UserError(
            f"not every file of {given[0].path.parent} has a column {split!r} of texts: write the splits as texts in all "
            "files, or rename the column. [parquet-split]"
        )
    assigned.captioned = bool(captions)
    for file in given:
        held = [name for name in captions if name in file.schema.names]
        missing = [name for name in (image, *captions[:1]) if name not in file.schema.names and (name == image or not held)]
        if missing:
            raise UserError(
                f"{file.path} lacks the column {missing[0]!r} that other files have; all files must have it. [parquet-column]"
            )
        classes = {name: by_file[file.path] for name, by_file in labels.items() if file.path in by_file}
        assigned.columns.append(Columns(image, held, unit, classes, named, split, file.given))
    used = {name for columns in assigned.columns for name in columns.all()}
    for file in given:
        if twice := next((name for name in file.schema.names if file.schema.names.count(name) > 1 and name in used), None):
            raise UserError(f"{file.path} has several columns {twice!r}; rename those that are not meant. [parquet-twice]")
    assigned.unused = tuple(name for name in names if name not in used)
    return assigned


def _columns_of(files: Sequence[_File], names: Sequence[str], holds: Callable[[pa.DataType], bool], what: str) -> list[str]:
    """Returns the columns that hold a certain kind of values.

    Args:
        files: Files of one data set.
        names: Columns to choose from.
        holds: Function that says whether a column of a type holds the values.
        what: Name of the values, for messages.

    Raises:
        UserError: If a column holds such values in one file, and other values in another file.
    """
    columns = []
    for name in names:
        types = {file.path: of for file in files if (of := file.type(name)) is not None and not pa.types.is_null(of)}
        fitting = [path for path, of in types.items() if holds(of)]
        other = next((path for path in types if path not in fitting), None)
        if fitting and other is not None:
            raise UserError(f"column {name!r}: {what} in {fitting[0]}, {types[other]} in {other}; use one type. [parquet-type]")
        columns += [name] if fitting else []
    return columns


def _image_column(files: Sequence[_File], names: Sequence[str]) -> str:
    column = next((name for name in known_columns(names, _IMAGES) if _columns_of(files, [name], _holds_images, "images")), None)
    if column is None:
        raise UserError(
            f"{files[0].path} has no column of images, only {', '.join(f'{f.name} ({f.type})' for f in files[0].schema)}; "
            f"expected 'image' as struct<bytes, path> or binary.{_as_table(files[0].path, names)} [parquet-no-images]"
        )
    return column


def _as_table(file: Path, names: Sequence[str]) -> str:
    """Returns advice for a Parquet file that lists image files, as metadata.parquet does; empty if it lists no files.

    Args:
        file: Path of the Parquet file.
        names: Columns of all files of the data set.
    """
    if not known_columns(names, FILE_COLUMNS):
        return ""
    return f" This file lists the paths of image files: {table_of_parquet(file)}"


def _unit_column(files: Sequence[_File]) -> tuple[str | None, str | None]:
    """Returns the column of units, and the name of the kind of unit; both are ``None`` if there are no units.

    Raises:
        UserError: If the files have different columns of units or different types of units, or one file lacks the column.
    """
    columns = {unit_column(file.schema.names): file for file in files}
    if len(columns) > 1:
        wanted = next(name for name, _ in columns if name is not None)
        lacking = next(file for (name, _), file in columns.items() if name != wanted)
        raise UserError(
            f"{lacking.path} lacks the column {wanted!r} that other files have; all files must have it. [parquet-unit-column]"
        )
    column, unit_name = next(iter(columns))
    if column is not None:  # b"p1" and "p1" would be two units
        _columns_of(files, [column], _holds_classes, "texts or numbers")
    return column, unit_name


def _id_column(files: Sequence[_File], id: str | None) -> str | None:
    """Returns the column of the records' names; ``None``: a hash of what a record holds names it.

    Args:
        files: Files of one data set.
        id: Column that the user names, or ``"content"`` for a hash; ``None``: the first known column of names in all files.

    Raises:
        UserError: If a file has no such column, has it twice, or has it only from the names of folders; or if the column holds
            neither texts nor whole numbers.
    """
    if id == CONTENT:
        return None
    if id is None:
        shared = [name for name in files[0].schema.names if all(_names_records(file, name) for file in files)]
        return next(iter(known_columns(shared, _IDS)), None)
    for file in files:
        if not _names_records(file, id):
            raise UserError(f"{file.path}{_why_no_name(file, id)}; correct --id. [parquet-id]")
    return id


def _names_records(file: _File, name: str) -> bool:
    if file.schema.names.count(name) != 1 or name in file.given:
        return False
    type = file.type(name)
    return pa.types.is_integer(type) or _is_text(type)


def _why_no_name(file: _File, name: str) -> str:
    """Returns why a column cannot name the records of a file, as the continuation of the file's name."""
    if name not in file.schema.names:
        return f" has no column {name!r}, only {', '.join(file.schema.names)}"
    if name in file.given:
        why = "comes from the names of folders"
    elif file.schema.names.count(name) > 1:
        why = "occurs twice"
    else:
        why = "holds neither texts nor whole numbers"
    return f": the column {name!r} cannot name records, because it {why}"


def _labels(files: Sequence[_File], names: Sequence[str], assigned: ColumnAssignment) -> dict[str, dict[Path, Classes]]:
    """Finds the columns of labels, and numbers their classes.

    Args:
        files: Files of one data set.
        names: Columns of all files.
        assigned: Roles of the columns, to which the names of the classes, unread labels and a notice are added.

    Returns:
        For each label name, the classes as each file writes them, by the file's path.

    Raises:
        UserError: If files call a label by different names, or it is not clear what class numbers mean.
    """
    metadata = {file.path: _class_labels(file.schema) for file in files}
    of_metadata = [name for name in names if any(name in named for named in metadata.values())]
    known = list(dict.fromkeys([*of_metadata, *known_columns(names, _LABELS)]))
    classes: dict[str, dict[Path, Classes]] = {}
    notices = []
    for name in known:
        having = [file for file in files if name in file.schema.names]
        if odd := [file for file in having if not _holds_classes(file.type(name))]:
            kind = f"labels of the type {odd[0].type(name)} are not read, only single numbers and texts"
            assigned.unread.append(Unreadable(f"{odd[0].path.name}, column {name}", kind))
            continue
        other = next((other for other in classes if plain(other) == plain(name) and not _both(files, name, other)), None)
        if other is not None:
            raise UserError(f"the column {other!r} is called {name!r} in {having[0].path}; use one name. [parquet-names]")
        classes[name], assigned.label_names[name], notice = _classes_of(name, having, metadata)
        notices.append(notice)
    assigned.notice = spaced(*notices)
    return classes


def _both(files: Sequence[_File], first: str, second: str) -> bool:
    return any({first, second} <= set(file.schema.names) for file in files)


def _classes_of(
    name: str, files: Sequence[_File], metadata: dict[Path, dict[str, tuple[str, ...]]]
) -> tuple[dict[Path, Classes], list[str], str]:
    """Numbers the classes of one label.

    The metadata of a file may name the classes for which the numbers in the file stand. A file without such names takes those
    of the other files, which must then all give the same names. If no file gives names, the numbers themselves are the classes.

    Args:
        name: Column of the label.
        files: Files that have the column.
        metadata: For each file and column, the names of the classes in the order of their numbers, from the file's metadata.

    Returns:
        The classes as each file writes them, the names of all classes in the order of their numbers, and a notice.

    Raises:
        UserError: If a file does not say what its class numbers mean, and other files do not agree.
    """
    lists = list(dict.fromkeys(metadata[file.path][name] for file in files if name in metadata[file.path]))
    agreed = lists[0] if len(lists) == 1 else None
    cells: dict[Path, Counter[object]] = {}
    written: dict[Path, tuple[tuple[str, ...] | None, bool]] = {}
    for file in files:
        type = file.type(name)
        class_names, numeric = metadata[file.path].get(name, agreed), not _is_text(type)
        if len(lists) > 1 and numeric and class_names is None and not pa.types.is_null(type):
            raise UserError(
                f"the numbers in {name!r} mean different classes in different files, and {file.path} does not say what they "
                "mean: write the names of the classes instead. [parquet-class-meaning]"
            )
        written[file.path] = class_names, numeric
        if class_names is None or not numeric:
            cells[file.path] = _distinct(file, name)
    met = [meant for path, counts in cells.items() for cell in counts if (meant := _named(cell, *written[path])) is not None]
    if lists:
        named = list(dict.fromkeys([*(entry for names in lists for entry in names), *sorted(met)]))
        numbers = {entry: number for number, entry in enumerate(named)}
    else:
        numbers, named = number_classes(met)
    notice = without_class(name, sum(cells.values(), Counter()))
    return {path: Classes(*form, numbers) for path, form in written.items()}, named, notice


def _named(cell: object, names: tuple[str, ...] | None, numeric: bool) -> str | None:
    """Returns the class that a cell means; ``None``: the cell has no class.

    In a column of numbers, a number that the metadata do not name becomes a text such as ``7 (no class)``.

    Args:
        cell: Cell.
        names: Names of the class numbers; ``None``: the cells themselves are the classes.
        numeric: Whether the column holds numbers.
    """
    if names is not None and not numeric and str(cell) in names:
        return str(cell)
    written = class_of(cell)
    if written is None or names is None:
        return written
    number = {"False": "0", "True": "1"}.get(written, written)
    within = number.isdecimal() and int(number) < len(names)
    return names[int(number)] if within else f"{written} (no class)" if numeric else written


def _class_labels(schema: pa.Schema) -> dict[str, tuple[str, ...]]:
    """Returns the class names that the schema's Hugging Face metadata give, by column; other columns are left out."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        classes = {name: feature["names"] for name, feature in features.items() if feature.get("_type") == "ClassLabel"}
        return {name: tuple(map(str, names)) for name, names in classes.items() if name in schema.names}
    except (KeyError, ValueError, TypeError, AttributeError):
        return {}


def _distinct(file: _File, name: str) -> Counter[object]:
    counts: Counter[object] = Counter()
    content = pq.ParquetFile(file.path)
    if name in file.given:
        counts[file.given[name]] = content.metadata.num_rows
        return counts
    for batch in content.iter_batches(columns=[name]):
        for entry in batch.column(0).value_counts():
            counts[entry["values"].as_py()] += entry["counts"].as_py()
    return counts


def _holds_images(type: pa.DataType) -> bool:
    type = _bare(type)
    if pa.types.is_struct(type):
        fields = map(type.field, range(type.num_fields))
        return any(field.name == "bytes" and _holds_images(field.type) for field in fields)
    return pa.types.is_binary(type) or pa.types.is_large_binary(type) or pa.types.is_binary_view(type)


def _is_text(type: pa.DataType) -> bool:
    return pa.types.is_string(type) or pa.types.is_large_string(type) or pa.types.is_string_view(type)


def _holds_texts(type: pa.DataType) -> bool:
    type = _bare(type)
    if pa.types.is_struct(type):
        fields = map(type.field, range(type.num_fields))
        return any(field.name in TEXT_FIELDS and _holds_texts(field.type) for field in fields)
    if _is_list(type):
        return not _is_list(_bare(type.value_type)) and _holds_texts(type.value_type)  # lists in a list are tokens
    return _is_text(type)


def _is_list(type: pa.DataType) -> bool:
    kinds = pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list, pa.types.is_list_view
    return any(is_kind(type) for is_kind in (*kinds, pa.types.is_large_list_view))


def _holds_classes(type: pa.DataType) -> bool:
    type = _bare(type)
    kinds = pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean, pa.types.is_null
    return any(is_kind(type) for is_kind in kinds) or _is_text(type)


def _bare(type: pa.DataType) -> pa.DataType:
    """Returns the Arrow type of the values themselves, if a type is a dictionary type or an extension type around it."""
    while pa.types.is_dictionary(type) or isinstance(type, pa.BaseExtensionType):
        type = type.value_type if pa.types.is_dictionary(type) else type.storage_type
    return type
