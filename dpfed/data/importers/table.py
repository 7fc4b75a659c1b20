"""CSV and TSV tables of image files and captions, as open_clip reads them."""

from __future__ import annotations

import csv
import os
import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dpfed.data.importers.source import (
    SPLIT_NAMES,
    Importer,
    Item,
    Source,
    Unreadable,
    file_record,
    known_columns,
    not_utf8,
    number_classes,
    unit_column,
    unit_of,
)
from dpfed.errors import UserError, nearest

# The first is open_clip's name; it wins. The others are what people write instead.
_FILES = ("filepath", "image", "image_path", "file", "path", "img", "filename")
_TITLES = ("title", "caption", "captions", "text", "sentence", "sentences", "description", "alt_text", "alt")


@dataclass
class _Row:
    line: int
    split: str
    label: str
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


class TableImporter(Importer):
    """A table with the columns ``filepath`` and optionally ``title``, ``split``, ``label`` and ``unit``.

    Rows with the same file are the captions of one record. Paths are relative to the table; the path is the record's id.
    Other usual names, such as ``Image Path`` and ``caption``, are understood where only one column can be meant. Cells are
    separated by tabs, commas or semicolons: the header decides.
    """

    name = "table"
    layout = "a .csv or .tsv table with the columns filepath and title (optional: split, label, unit)"

    def recognises(self, path: Path) -> bool:
        """Whether it is a .csv or .tsv file."""
        return path.is_file() and path.suffix.lower() in (".csv", ".tsv")

    def open(self, path: Path) -> Source:
        """Reads the table (not the images) and streams the records."""
        try:
            rows, columns, nameless = _read(path)
        except UnicodeDecodeError as error:
            raise not_utf8(path) from error
        except (OSError, csv.Error) as error:
            raise UserError(f"cannot read the table {path}: {error}; expected {self.layout}.") from error
        numbers, names = number_classes(row.label for row in rows.values())

        def records() -> Iterator[Item]:
            yield from nameless
            for filepath, row in rows.items():
                labels = {"label": numbers[row.label]} if row.label in numbers else {}
                yield file_record(filepath, path.parent / filepath, tuple(row.titles), labels, row.split, row.unit)

        return Source(
            kind="image-text" if columns.title else "image",
            records=records(),
            label_names={"label": names} if names else {},
            splits=frozenset(row.split for row in rows.values()),
            total=len(rows) + len(nameless),
            unit_name=columns.unit_name,
            unused=columns.unused,
        )


def _read(path: Path) -> tuple[dict[str, _Row], _Columns, list[Unreadable]]:
    """Rows by file, what the columns hold, and the rows that name no file."""
    rows: dict[str, _Row] = {}
    nameless = []
    with path.open(encoding="utf-8-sig", newline="") as file:
        header = file.readline()
        file.seek(0)
        delimiter = "\t" if "\t" in header else max(",;", key=header.count)
        reader = csv.DictReader(file, delimiter=delimiter)
        reader.fieldnames = [name.strip() for name in reader.fieldnames or []]
        columns = _columns(reader.fieldnames, path)
        for cells in reader:
            given = _cell(cells, columns.file)
            if not given:
                nameless.append(Unreadable(f"{path.name}:{reader.line_num}", f"no {columns.file}"))
                continue
            _add(rows, _normal(given, path.parent), cells, columns, f"{path}:{reader.line_num}", reader.line_num)
    return rows, columns, nameless


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


def _add(rows: dict[str, _Row], filepath: str, cells: dict[str, str | None], columns: _Columns, where: str, line: int) -> None:
    split = _cell(cells, columns.split).lower() or "train"
    if split not in SPLIT_NAMES:
        raise UserError(f"{where}: unknown split {split!r}; {nearest(split, SPLIT_NAMES)}")
    label = _cell(cells, columns.label)
    unit = unit_of(cells[columns.unit]) if columns.unit else None
    row = rows.setdefault(filepath, _Row(line, SPLIT_NAMES[split], label, unit))
    if (row.split, row.label, row.unit) != (SPLIT_NAMES[split], label, unit):
        what = f"split, label or {columns.unit}" if columns.unit else "split or label"
        raise UserError(f"{where}: {filepath} has another {what} than on line {row.line}; rows of one file must agree.")
    if title := _cell(cells, columns.title):
        row.titles.append(title)


def _normal(given: str, folder: Path) -> str:
    """One spelling for each file: relative to the table where it lies below it."""
    if os.path.isabs(given) and Path(given).is_relative_to(folder.absolute()):
        given = Path(given).relative_to(folder.absolute()).as_posix()
    return posixpath.normpath(given)
