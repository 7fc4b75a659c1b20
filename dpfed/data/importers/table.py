"""CSV and TSV tables of image files and captions, as open_clip reads them."""

from __future__ import annotations

import csv
import os
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dpfed.data.importers.source import SPLIT_NAMES, Importer, Item, Source, Unreadable, file_record, number_classes
from dpfed.errors import UserError, nearest

_KNOWN = ("filepath", "title", "split", "label")


@dataclass
class _Row:
    line: int
    split: str
    label: str
    titles: list[str] = field(default_factory=list)


class TableImporter(Importer):
    """A table with the columns ``filepath`` and optionally ``title``, ``split`` and ``label``.

    Rows with the same file are the captions of one record. Paths are relative to the table; the path is the record's id.
    """

    name = "table"
    layout = "a .csv or .tsv table with the columns filepath and title (optional: split, label)"

    def recognises(self, path: Path) -> bool:
        """Whether it is a .csv or .tsv file."""
        return path.is_file() and path.suffix.lower() in (".csv", ".tsv")

    def open(self, path: Path) -> Source:
        """Reads the table (not the images) and streams the records."""
        try:
            rows, titled, nameless = _read(path)
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise UserError(f"cannot read the table {path}: {error}; expected {self.layout}, in UTF-8.") from error
        numbers, names = number_classes(row.label for row in rows.values())

        def records() -> Iterator[Item]:
            yield from nameless
            for filepath, row in rows.items():
                labels = {"label": numbers[row.label]} if row.label in numbers else {}
                yield file_record(filepath, path.parent / filepath, tuple(row.titles), labels, row.split)

        return Source(
            kind="image-text" if titled else "image",
            records=records(),
            label_names={"label": names} if names else {},
            splits=frozenset(row.split for row in rows.values()),
            total=len(rows) + len(nameless),
        )


def _read(path: Path) -> tuple[dict[str, _Row], bool, list[Unreadable]]:
    """Rows by file, whether there are titles, and the rows that name no file."""
    rows: dict[str, _Row] = {}
    nameless = []
    with path.open(encoding="utf-8-sig", newline="") as file:
        header = file.readline()
        file.seek(0)
        reader = csv.DictReader(file, delimiter="\t" if "\t" in header else ",")
        columns = reader.fieldnames or []
        if "filepath" not in columns:
            raise UserError(f"the table {path} has no column 'filepath', only {columns}; {_suggest(columns)}")
        for cells in reader:
            given = (cells["filepath"] or "").strip()
            if not given:
                nameless.append(Unreadable(f"{path.name}:{reader.line_num}", "no filepath"))
                continue
            _add(rows, _normal(given, path.parent), cells, f"{path}:{reader.line_num}", reader.line_num)
    return rows, "title" in columns, nameless


def _add(rows: dict[str, _Row], filepath: str, cells: dict[str, str | None], where: str, line: int) -> None:
    split = (cells.get("split") or "train").strip().lower()
    if split not in SPLIT_NAMES:
        raise UserError(f"{where}: unknown split {split!r}; {nearest(split, SPLIT_NAMES)}")
    label = (cells.get("label") or "").strip()
    row = rows.setdefault(filepath, _Row(line, SPLIT_NAMES[split], label))
    if (row.split, row.label) != (SPLIT_NAMES[split], label):
        raise UserError(f"{where}: {filepath} has another split or label than on line {row.line}; rows of one file must agree.")
    if title := (cells.get("title") or "").strip():
        row.titles.append(title)


def _normal(given: str, folder: Path) -> str:
    """One spelling for each file: relative to the table where it lies below it."""
    if os.path.isabs(given) and Path(given).is_relative_to(folder.absolute()):
        given = Path(given).relative_to(folder.absolute()).as_posix()
    return posixpath.normpath(given)


def _suggest(columns: list[str]) -> str:
    return f"it needs {', '.join(_KNOWN[:2])} (optional: {', '.join(_KNOWN[2:])})." if columns else "the table is empty."
