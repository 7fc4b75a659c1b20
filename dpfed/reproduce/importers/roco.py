"""Imports ROCO, versions 1 and 2: radiology figures with their captions from the articles in which they appeared."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dpfed.data.importers.access import Access
from dpfed.data.importers.source import SPLIT_NAMES, FileRecord, Importer, Item, Source, Unreadable, not_utf8
from dpfed.errors import UserError

_PEEK = 4096  # bytes of the first line that are read


@dataclass(frozen=True)
class _Figure:
    file: Path
    id: str
    caption: str
    split: str


class RocoImporter(Importer):
    """Importer of both public releases as they are unpacked. A record's id is the image's path below the folder of the splits.

    Version 1 has ``{train,validation,test}/radiology/captions.txt`` (lines of id, tab, caption) beside ``images/ID.jpg``,
    directly or under ``data/``. A single folder with ``captions.txt`` and ``images/`` can also be imported; this is the way to
    import the non-radiology images. Version 2 has ``{train,valid,test}_captions.csv`` with the columns ID and Caption, and the
    images in ``train/`` or ``train_images/``, and so on. Neither version says which figures show the same patient.
    """

    name = "roco"
    layout = (
        "{train,validation,test}/radiology/ with captions.txt and images/ (version 1), "
        "or {train,valid,test}_captions.csv beside train/, valid/ and test/ (version 2)"
    )

    def recognises(self, path: Path, access: Access | None = None) -> bool:
        """Returns whether the folder contains captions of either version."""
        return path.is_dir() and bool(_first_version(path) or (path / "train_captions.csv").is_file())

    def open(self, path: Path, access: Access | None = None) -> Source:
        """Reads the captions (not the images) and streams the records.

        Raises:
            UserError: If `path` is not laid out as expected, or cannot be read.
        """
        access = access or Access.to(path)
        figures: list[_Figure | Unreadable] = []
        first = _first_version(path)
        for folder in first:
            figures += _text_captions(folder, access)
        for split in () if first else ("train", "valid", "test"):
            figures += _table_captions(path, split, access)
        if not figures:
            raise UserError(f"{path} is not ROCO: expected {self.layout}. [paper-not-roco]")

        def records() -> Iterator[Item]:
            for figure in figures:
                if isinstance(figure, Unreadable):
                    yield figure
                else:
                    yield FileRecord(figure.id, figure.file, (figure.caption,), {}, figure.split)

        splits = frozenset(figure.split for figure in figures if isinstance(figure, _Figure))
        return Source("image-text", records(), splits=splits, total=len(figures))


def _first_version(path: Path) -> list[Path]:
    """Returns the folders of version 1 that contain captions.txt and images/: `path` itself, or the folders of the splits."""
    candidates = [path] + [
        root / split / "radiology" for root in (path, path / "data") for split in ("train", "validation", "test")
    ]
    folders = [folder for folder in candidates if _holds_tabs(folder / "captions.txt") and (folder / "images").is_dir()]
    return folders[:1] if folders[:1] == [path] else folders


def _holds_tabs(captions: Path) -> bool:
    """Returns whether the first line contains a tab, as between id and caption; other data sets name a table captions.txt."""
    if not captions.is_file():  # reading a pipe would block for ever
        return False
    try:
        with captions.open("rb") as file:
            return b"\t" in file.readline(_PEEK)
    except OSError:
        return True  # `open` then raises an error with a message


def _text_captions(folder: Path, access: Access) -> Iterator[_Figure | Unreadable]:
    folder = folder.absolute()
    split = SPLIT_NAMES.get(folder.parent.name, "train")
    below = f"{folder.parent.name}/{folder.name}/images"
    captions = folder / "captions.txt"
    try:
        lines = (
            access.file(captions).read_text(encoding="utf-8-sig").split("\n")
        )  # not splitlines(): captions may contain other line breaks of Unicode
    except UnicodeDecodeError as error:
        raise not_utf8(captions) from error
    except OSError as error:
        raise UserError(f"cannot read {captions}: {error}; expected lines of id, tab, caption. [paper-roco-read]") from error
    for number, line in enumerate(lines, start=1):
        name, tab, caption = line.partition("\t")
        if tab and name.strip():
            file = f"{name.strip()}.jpg"
            yield _Figure(folder / "images" / file, f"{below}/{file}", caption, split)
        elif line.strip():
            yield Unreadable(f"{folder.parent.name}/{folder.name}/captions.txt:{number}", "no tab between id and caption")


def _table_captions(path: Path, split: str, access: Access) -> Iterator[_Figure]:
    table = path / f"{split}_captions.csv"
    if not table.is_file():
        return
    places = (f"{split}_images/{split}", f"{split}_images", split)
    place = next((place for place in places if (path / place).is_dir()), None)
    if place is None:
        raise UserError(f"{table} has no images; expected {' or '.join(reversed(places))} in {path}. [paper-roco-images]")
    try:
        with access.file(table).open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, skipinitialspace=True)
            if not {"ID", "Caption"} <= set(reader.fieldnames or ()):
                raise UserError(f"{table} has the columns {reader.fieldnames or []}; expected ID and Caption. [paper-columns]")
            for row in reader:
                id = (row["ID"] or "").strip()
                if not id:
                    raise UserError(f"{table}:{reader.line_num} has no ID; expected an ID in every row. [paper-roco-id]")
                name = f"{id}.jpg"
                yield _Figure(path / place / name, f"{place}/{name}", row["Caption"] or "", SPLIT_NAMES[split])
    except UnicodeDecodeError as error:
        raise not_utf8(table) from error
    except (OSError, csv.Error) as error:
        raise UserError(f"cannot read {table}: {error}; expected a table of ID and Caption. [paper-roco-table]") from error
