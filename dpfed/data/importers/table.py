"""CSV and TSV tables of image files and captions, as open_clip reads them."""

from __future__ import annotations

import csv
import os
import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from dpfed.data.importers.access import Access
from dpfed.data.importers.classes import class_of, number_classes, without_class
from dpfed.data.importers.folder import TABLES, captions_advice, table_command
from dpfed.data.importers.listing import Listing, list_files, suffix
from dpfed.data.importers.source import (
    SPLIT_NAMES,
    FileRecord,
    Importer,
    Item,
    Source,
    Unreadable,
    known_columns,
    not_utf8,
    unit_column,
    unit_of,
)
from dpfed.data.importers.splits import split_of
from dpfed.data.store.record import SPLITS
from dpfed.errors import UserError, nearest

# The first is open_clip's name; it wins. The others are what people write instead.
_FILES = ("filepath", "image", "image_path", "file", "path", "img", "filename")
_TITLES = ("title", "caption", "captions", "text", "sentence", "sentences", "description", "alt_text", "alt")


@dataclass
class _Row:
    table: Path
    line: int
    split: str
    label: str | None
    unit: str | None
    titles: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Columns:
    file: str
    title: str | None
    split: str | None
    label: str | None
    unit: str | None
    unit_name: str | None
    unused: tuple[str, ...]


@dataclass
class _Tables:
    """What some tables say together.

    Attributes:
        rows: by file.
        columns: of each table.
        nameless: rows that name no file.
        classes: as the tables write them.
    """

    rows: dict[str, _Row] = field(default_factory=dict)
    columns: list[_Columns] = field(default_factory=list)
    nameless: list[Unreadable] = field(default_factory=list)
    classes: set[str] = field(default_factory=set)


class TableImporter(Importer):
    """A table with the columns ``filepath`` and optionally ``title``, ``split``, ``label`` and ``unit``; or several.

    Rows with the same file are the captions of one record. Paths are relative to the table; the path is the record's id.
    Other usual names, such as ``Image Path`` and ``caption``, are understood where only one column can be meant. Cells are
    separated by tabs, commas or semicolons: the header decides. A folder is one data set if its tables are named by split:
    ``train.tsv``, ``val.tsv``, ``test.tsv``.
    """

    name = "table"
    layout = (
        "a .csv or .tsv table with the columns filepath and title (optional: split, label, unit), or a folder with such tables "
        "named train, val or test"
    )

    def recognises(self, path: Path, access: Access | None = None) -> bool:
        """Whether it is a .csv or .tsv file, or a folder with such files that are named by split and name image files."""
        if not path.is_dir():
            return path.is_file() and suffix(path) in TABLES
        tables = _tables_of(path)
        access = access or Access.to(path)
        return bool(tables) and all(split_of(Path(table.name)) and _names_files(table, access) for table in tables)

    def open(self, path: Path, access: Access | None = None) -> Source:
        """Reads the table or tables (not the images) and streams the records."""
        access = access or Access.to(path)
        if not path.is_dir():
            return self.open_tables([path], access)
        tables = _tables_of(path)
        if not tables:
            raise UserError(f"there are no .csv or .tsv tables in {path}; expected {self.layout}.")
        unnamed = [table for table in tables if split_of(Path(table.name)) is None]
        if unnamed:
            each = table_command(path, unnamed if len(unnamed) < len(tables) else tables)
            raise UserError(
                f"{path} holds the table {unnamed[0].name}, and its name speaks of no split; name it after train, val or test, "
                f"move it away, or import what you mean: `{each}`."
            )
        training_first = sorted(tables, key=lambda table: SPLITS.index(split_of(Path(table.name)) or "train"))
        return self.open_tables(training_first, access, list_files(path, access))

    def open_tables(self, paths: Sequence[Path], access: Access, listing: Listing | None = None) -> Source:
        """Reads some tables of one folder (not the images) and streams the records.

        Args:
            paths: the tables. Where there are several, each row belongs to the split that its table's name speaks of, or else
                to the one in its column ``split``.
            access: what may be read.
            listing: what lies in the folder, if that is what is imported.

        Raises:
            UserError: when a table cannot be read, two disagree, or none of a folder's tables names any of its images.
        """
        folder = paths[0].parent
        if any(path.parent != folder for path in paths):
            raise UserError("the tables of one import must lie in one folder, which their paths are relative to; move them.")
        tables = _Tables()
        for path in paths:
            _read(path, split_of(Path(path.name)) if len(paths) > 1 or listing else None, tables, access, self.layout)
        if len({(columns.title is None, columns.unit_name) for columns in tables.columns}) > 1:
            raise UserError(
                f"some tables of {folder} have a column of captions or of units that others lack; all must have it."
            )
        numbers, names = number_classes(tables.classes)

        def records() -> Iterator[Item]:
            yield from tables.nameless
            for filepath, row in tables.rows.items():
                labels = {"label": numbers[row.label]} if row.label is not None else {}
                yield FileRecord(filepath, folder / filepath, tuple(row.titles), labels, row.split, row.unit)

        unread, passed_over = _beside(listing, paths, tables) if listing else ([], {})
        return Source(
            kind="image-text" if tables.columns[0].title else "image",
            records=records(),
            label_names={"label": names} if names else {},
            splits=frozenset(row.split for row in tables.rows.values()),
            total=len(tables.rows) + len(tables.nameless),
            unit_name=tables.columns[0].unit_name,
            unused=tuple(dict.fromkeys(name for columns in tables.columns for name in columns.unused)),
            unread=unread,
            passed_over=passed_over,
            notice=without_class("label", tables.classes),
        )


def _tables_of(folder: Path) -> list[Path]:
    """The tables that lie in a folder itself, in the order of their names."""
    return sorted(file for file in folder.iterdir() if suffix(file) in TABLES and not file.name.startswith("."))


def _names_files(table: Path, access: Access) -> bool:
    try:
        with access.file(table).open(encoding="utf-8-sig", newline="") as file:
            return bool(known_columns(_reader(file).fieldnames or [], _FILES))
    except (OSError, UserError, csv.Error, UnicodeDecodeError):
        return False


def _beside(listing: Listing, paths: Sequence[Path], tables: _Tables) -> tuple[list[Unreadable], dict[str, int]]:
    """What lies in the tables' folder and is named by none: what would be lost, and what is passed over."""
    root = listing.root
    named = {root / filepath for filepath in tables.rows}
    images = set(listing.images())
    if images and not any(file in images or file.exists() for file in named):
        raise UserError(
            f"{root} holds images, and {', '.join(path.name for path in paths)} names none of them: paths are relative to the "
            f"table, as in {next(iter(tables.rows), 'images/1.jpg')!r}. Correct them, or say what you mean: "
            f"{captions_advice(listing)}"
        )
    unnamed = sum(file not in named for file in images)
    note = {"images that no table names": unnamed} if unnamed else {}
    return listing.others({*paths, *named, *images}), {**listing.passed_over, **note}


def _read(path: Path, split: str | None, tables: _Tables, access: Access, layout: str) -> None:
    """Adds the rows of a table, all of them in a split if it is given."""
    try:
        with access.file(path).open(encoding="utf-8-sig", newline="") as file:
            reader = _reader(file)
            columns = _columns(reader.fieldnames or [], path)
            tables.columns.append(columns)
            for cells in reader:
                _refuse_torn(cells, path, reader)
                given = _cell(cells, columns.file)
                if given:
                    _add(tables, _normal(given, path.parent), cells, columns, (path, reader.line_num), split)
                else:
                    tables.nameless.append(Unreadable(f"{path.name}:{reader.line_num}", f"no {columns.file}"))
    except UnicodeDecodeError as error:
        raise not_utf8(path) from error
    except (OSError, csv.Error) as error:
        raise UserError(f"cannot read the table {path}: {error}; expected {layout}.") from error


def _refuse_torn(cells: dict[str | None, Any], path: Path, reader: csv.DictReader[str]) -> None:
    """Refuses a row whose texts were divided at a separator, or that swallowed the next rows: words would be lost."""
    if any(map(str.strip, cells.get(None) or ())):
        raise UserError(
            f"{path}:{reader.line_num} has more cells than the header; put texts with a separator in quotation marks."
        )
    if reader.reader.dialect.delimiter == "\t" and any(
        "\t" in (cell or "") for name, cell in cells.items() if name is not None
    ):
        raise UserError(f"{path}:{reader.line_num} holds a cell with tabs; is there a quotation mark too many before it?")


def _reader(file: TextIO) -> csv.DictReader[str]:
    """Reads the rows of a table that is open; its header decides what separates the cells."""
    header = file.readline()
    file.seek(0)
    delimiter = "\t" if "\t" in header else max(",;", key=header.count)
    reader = csv.DictReader(file, delimiter=delimiter)
    reader.fieldnames = [name.strip() for name in reader.fieldnames or []]
    return reader


def _columns(names: Sequence[str], path: Path) -> _Columns:
    if not any(names):
        raise UserError(f"the table {path} is empty; it needs the columns filepath and title.")
    file, title = (_choose(names, known, path) for known in (_FILES, _TITLES))
    if file is None:
        raise UserError(
            f"the table {path} has no column of image files, only {', '.join(names)}; call it {_FILES[0]} "
            f"(optional: title, split, label, unit)."
        )
    split, label = (next(iter(known_columns(names, [known])), None) for known in ("split", "label"))
    unit, unit_name = unit_column(names)
    unused = tuple(name for name in names if name and name not in (file, title, split, label, unit))
    return _Columns(file, title, split, label, unit, unit_name, unused)


def _choose(names: Sequence[str], known: tuple[str, ...], path: Path) -> str | None:
    found = known_columns(names, known)
    if len(found) > 1 and len(known_columns(names, known[:1])) != 1:
        raise UserError(f"the table {path} has the columns {' and '.join(found)}; call the one that is meant {known[0]}.")
    return next(iter(found), None)


def _cell(cells: dict[str, str | None], column: str | None) -> str:
    return (cells[column] or "").strip() if column else ""


def _add(
    tables: _Tables,
    filepath: str,
    cells: dict[str, str | None],
    columns: _Columns,
    place: tuple[Path, int],
    of_table: str | None,
) -> None:
    where = f"{place[0]}:{place[1]}"
    given = _cell(cells, columns.split).lower() or of_table or "train"
    if given not in SPLIT_NAMES:
        raise UserError(f"{where}: unknown split {given!r}; {nearest(given, SPLIT_NAMES)}")
    split = SPLIT_NAMES[given]
    if of_table is not None and split != of_table:
        raise UserError(f"{where}: the column {columns.split} says {split}, and the table's name says {of_table}; correct one.")
    tables.classes.add(written := _cell(cells, columns.label))
    label = class_of(written)
    unit = unit_of(cells[columns.unit]) if columns.unit else None
    row = tables.rows.setdefault(filepath, _Row(*place, split, label, unit))
    if (row.split, row.label, row.unit) != (split, label, unit):
        what = f"split, label or {columns.unit}" if columns.unit else "split or label"
        raise UserError(
            f"{where}: {filepath} has another {what} than in {row.table.name}, line {row.line}; rows of one file must agree."
        )
    if title := _cell(cells, columns.title):
        row.titles.append(title)


def _normal(given: str, folder: Path) -> str:
    """One spelling for each file: relative to the table where it lies below it."""
    if os.path.isabs(given) and Path(given).is_relative_to(folder.absolute()):
        given = Path(given).relative_to(folder.absolute()).as_posix()
    return posixpath.normpath(given)
