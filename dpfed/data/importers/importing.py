"""Imports a source into a record store, or refuses it and says why."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dpfed.data.decoding import EXTENSIONS
from dpfed.data.importers.access import Access
from dpfed.data.importers.classes import alike
from dpfed.data.importers.detection import detect, existing, importers
from dpfed.data.importers.empty_cells import EmptyCells
from dpfed.data.importers.folder import FolderImporter
from dpfed.data.importers.listing import suffix
from dpfed.data.importers.source import CONTENT, FileRecord, Source, Unreadable, content_hash
from dpfed.data.importers.table import TableImporter, common_folder
from dpfed.data.importers.table_rows import TABLES
from dpfed.data.importers.webdataset import WebDatasetImporter
from dpfed.data.limits import stored_side, whole_number
from dpfed.data.reasons import OUTSIDE, by_reason, mending
from dpfed.data.store.index import blocks
from dpfed.data.store.record import SPLITS, RecordInput
from dpfed.data.store.records import RecordStore
from dpfed.data.store.writing import StoreWriter
from dpfed.errors import UserError, nearest
from dpfed.files.atomic import claimed
from dpfed.paths import local_path

ImportProgress = Callable[[int, int | None], None]  # (records so far, of how many)

_TOLD = 256  # records between two reports


@dataclass(frozen=True)
class ImportReport:
    """The result of an import.

    Attributes:
        path: Path of the new store.
        format: Name of the importer that was used.
        kind: ``"image"`` or ``"image-text"``.
        counts: Number of records of each split.
        skipped: (id, reason) of what was left out: unreadable records, and files, folders and columns that are not read.
        seconds: Duration of the import.
        unit_name: Name of the kind of unit, such as ``"person"``; ``None``: the source names no units.
        unused: Columns, or kinds of files in the samples of archives, that were not used.
        passed_over: Files and folders, below the source or in its archives, that hold no records: their names, or kinds such as
            ``"hidden files and folders"``, with their counts.
        empty_classes: Classes that no record has, for each label name; label names without such classes are left out.
        converted: For each kind of conversion, the number of images that were converted. Without the conversion, stock
            open_clip would destroy these images.
        several: Number of image files that hold several pictures; only the first picture of each is used.
        repeated: Number of training records that show the picture of an earlier training record.
        shared: Number of held-out records that show the picture of a training record.
        alike: Classes whose names differ from another class's name only in capitals, spaces or the Unicode form of a letter,
            for each label name; label names without such classes are left out.
    """

    path: Path
    format: str
    kind: str
    counts: dict[str, int]
    skipped: list[tuple[str, str]]
    seconds: float
    unit_name: str | None
    unused: tuple[str, ...]
    passed_over: dict[str, int]
    empty_classes: dict[str, list[str]]
    converted: dict[str, int]
    several: int
    repeated: int
    shared: int
    alike: dict[str, list[str]]

    def ignored(self) -> list[str]:
        """Returns a list: a sentence that names the columns or files of samples that were not used; empty if all were used."""
        what = "Files of samples" if self.format == WebDatasetImporter.name else "Columns"
        return [f"{what} that were not used: {', '.join(self.unused)}."] if self.unused else []


def import_records(
    source: str | Path | Sequence[str | Path],
    dest: str | Path,
    format: str | None = None,
    size: int | None = None,
    validation: int = 0,
    test: int = 0,
    skip_broken: bool = False,
    public: bool = False,
    progress: ImportProgress | None = None,
    id: str | None = None,
    allow_outside: bool = False,
    watch: Callable[[int], None] | None = None,
    say: Callable[[str], None] | None = None,
    surveyed: ImportProgress | None = None,
    window: tuple[float, float] | None = None,
    splits: int | None = None,
    wait: float = 0.0,
) -> ImportReport:
    """Imports a data set into a new record store.

    Args:
        source: Path of a local file or folder, or paths of several tables of one data set.
        dest: Path of the store to create; nothing may exist at this path.
        format: Name of an importer; ``None``: the first importer that recognises the source.
        size: Side in pixels of the square images that are stored raw; ``None``: the original files are stored, and images that
            are no files, such as the arrays of CIFAR-10, are encoded losslessly.
        validation: Number of training records that become the validation split. If the source names units, whole units are
            moved, so a few more records may be moved. The choice depends on hashes of the units' names or, without units, of
            the records' names. It is made during the import, before any private mechanism runs (see `StoreWriter.hold_out`).
        test: Number of training records that become the test split, chosen in the same way.
        skip_broken: Whether unreadable records, and files that the importer does not read, are left out. If not, a source with
            such records or files is refused. If such files make a detected format doubtful, the source is refused unless
            `format` is given, too.
        public: Whether anyone may see the records.
        progress: Function that is called now and then with (records so far, number of all records or ``None``).
        id: Source of the records' names: a column of Parquet files, or ``"content"`` for a hash of each record. ``None``: the
            names that records have at the source; if they have none, hashes.
        allow_outside: Whether files outside of the source's folder are read, too, if tables or links lead to them.
        watch: Function that is called now and then with the number of files found so far, while the source is looked through.
        say: Function that is called with each sentence that the user should know.
        surveyed: Function that is called with (archives looked through so far, number of all archives), before records are
            stored.
        window: Centre and width of the window that maps the values of DICOM files to eight bits, in the modality's units;
            ``None``: each file's own window or, if a file has none, the whole range of its values.
        splits: Level of the split folders: 1 for folders directly in the source, 2 for the folders in these, and so on; 0: no
            folder is a split, so a class may be called train; ``None``: the folders' names decide. For tables and archives,
            only 0 and ``None`` are allowed.
        wait: Seconds to wait while another process writes to `dest`; infinity: for as long as it takes. If the other process
            is still writing after this time, or has completed a store at `dest`, this import is refused.

    Returns:
        The report of the import.

    Raises:
        UserError: If the source cannot be read, holds unreadable records or files that are not to be left out, already has a
            split that `validation` or `test` asks for, or has too few records to hold out; if several paths are given that are
            not all tables; if the format is unknown, or does not take an option that is given; if something is at `dest`,
            another process writes there, or nothing can be written there; or if an argument has a wrong value.
    """
    started = time.monotonic()
    dest = local_path(dest, "the new store")
    paths = _paths(source)
    if not isinstance(wait, int | float) or not wait >= 0:
        raise UserError(f"wait must be a number of seconds of at least 0, or infinity, got {wait!r}. [import-wait]")
    asked = {"validation": validation, "test": test}
    counts = {split: whole_number(n, f"the number of {split} records") for split, n in asked.items()}
    path = paths[0] if len(paths) == 1 else common_folder(paths)
    access = Access.to(path, allow_outside, watch=watch, surveyed=surveyed)
    form: dict[str, Any] = {"size": stored_side(size), "public": public, "skip_broken": skip_broken}
    try:
        with claimed(dest, wait, say):
            chosen, opened = _open(paths, access, format, {"id": id, "window": window, "splits": splits}, say)
            _refuse_unread(opened, path, chosen, skip_broken, format is not None)
            _refuse_splits(opened, path, counts)
            form |= {"name": path.stem if path.is_file() else path.name, "kind": opened.kind, "unit_name": opened.unit_name}
            with StoreWriter(dest, label_names=opened.label_names, **form) as writer:
                for notice in _write(writer, opened, access, id == CONTENT or not opened.named, progress):
                    if say is not None:
                        say(notice)
                for split, count in counts.items():
                    writer.hold_out(count, split)
    except OSError as error:
        where = error.filename or path
        raise UserError(
            f"the import ended at {where}: {error.strerror or error}; nothing is written. Remove the cause, and import again. "
            "[import-disk]"
        ) from error
    return _report(RecordStore.open(dest), chosen, opened, writer, time.monotonic() - started)


def _may_be_table(path: Path, access: Access) -> bool:
    """Returns whether a file looks like a table. If the table is faulty, the table importer will say what is wrong with it."""
    return path.is_file() and (suffix(path) in TABLES | {".json"} or TableImporter().recognises(path, access))


def _paths(source: str | Path | Sequence[str | Path]) -> list[Path]:
    sources: list[Any] = list(source) if isinstance(source, list | tuple) else [source]
    if not sources:
        raise UserError(
            "the list of sources is empty: give a path of a file or folder, or of several tables. [import-no-source]"
        )
    return [existing(entry) for entry in sources]


def _open(
    paths: list[Path], access: Access, format: str | None, options: dict[str, Any], say: Callable[[str], None] | None
) -> tuple[str, Source]:
    """Chooses the importer and opens the source.

    Args:
        paths: Paths of the source: one file or folder, or several tables.
        access: Paths that the import may read.
        format: Name of the importer; ``None``: it is detected.
        options: Value of each option of an importer; ``None``: the user does not give it.
        say: Function that is called with the notice of the source, if there is one.

    Returns:
        The name of the importer, and the opened source.

    Raises:
        UserError: If the importer is unknown or does not take an option, several sources are not tables, or the source cannot
            be opened.
    """
    known = importers()
    if format is not None and format not in known:
        raise UserError(f"unknown format {format!r}; {nearest(str(format), known)} [import-format-unknown]")
    if len(paths) > 1 and format not in (None, TableImporter.name):
        raise UserError(
            f"the format {format!r} takes one source; {', '.join(map(str, paths))} were given: import them one by one, or "
            "leave the format out if they are tables of one data set. [import-format-several]"
        )
    if len(paths) > 1 and not all(_may_be_table(path, access) for path in paths):
        raise UserError(
            f"several sources must be .csv, .tsv, .jsonl or .json tables of one data set; {', '.join(map(str, paths))} were "
            "given: import them one by one, or import the folder that holds them. [import-several-sources]"
        )
    format = TableImporter.name if len(paths) > 1 else format or detect(paths[0], access)
    given = {name: value for name, value in options.items() if value is not None}
    for name, value in given.items():
        if name not in known[format].options and value != CONTENT:
            raise UserError(f"--{name} has no meaning for the format {format!r}: leave it out. [import-option]")
    taken = {name: value for name, value in given.items() if name in known[format].options}
    several = len(paths) > 1
    opened = TableImporter().open_tables(paths, access, **taken) if several else known[format].open(paths[0], access, **taken)
    if opened.notice and say is not None:
        say(opened.notice)
    return format, opened


def _write(writer: StoreWriter, opened: Source, access: Access, by_content: bool, progress: ImportProgress | None) -> list[str]:
    """Gives the records of a source to the writer of a store.

    Args:
        writer: Writer of the store.
        opened: Opened source.
        access: Paths that the import may read.
        by_content: Whether records are named by a hash of what they hold.
        progress: Function that is called with (records so far, number of all records or ``None``).

    Returns:
        Sentences that the user who imports must know.
    """
    cells = EmptyCells()
    for entry in opened.unread:
        writer.reject(entry.id, entry.reason)
    done = 0
    for done, item in enumerate(opened.records, start=1):  # noqa: B007 - the count is read after the loop
        record = item.read(access) if isinstance(item, FileRecord) else item
        record = cells.read(record) if isinstance(record, RecordInput) else record
        if isinstance(record, Unreadable):
            writer.reject(record.id, record.reason)
        elif by_content:
            beginning = f"{record.split}/" if opened.named else record.id
            name = writer.counted(beginning + content_hash(record, opened.label_names))
            writer.add(replace(record, id=name, place=record.place or record.id))
        else:
            writer.add(record)
        if progress is not None and done % _TOLD == 0:
            progress(done, opened.total)
    if progress is not None:
        progress(done, done)
    return cells.notices(opened.unit_name)


def _report(store: RecordStore, format: str, opened: Source, writer: StoreWriter, seconds: float) -> ImportReport:
    return ImportReport(
        path=store.path,
        format=format,
        kind=store.kind,
        counts={split: store.count(split) for split in SPLITS},
        skipped=writer.broken,
        seconds=seconds,
        unit_name=store.unit_name,
        unused=opened.unused,
        passed_over=dict(opened.passed_over),
        empty_classes=_empty_classes(store),
        converted=store.converted,
        several=writer.several,
        repeated=writer.repeated,
        shared=writer.shared,
        alike={label: same for label, names in store.label_names.items() if (same := alike(names))},
    )


def _refuse_unread(opened: Source, path: Path, format: str, skip_broken: bool, format_given: bool) -> None:
    """Refuses a source with files that would be lost, unless the user allows to leave them out.

    Args:
        opened: Opened source.
        path: Path of the source.
        format: Name of the importer.
        skip_broken: Whether the user allows to leave files out.
        format_given: Whether the user named the importer.

    Raises:
        UserError: If it refuses the source.
    """
    if not opened.unread or (skip_broken and (format_given or not opened.doubtful)):
        return
    lost = [(entry.id, entry.reason) for entry in opened.unread]
    advice = opened.advice and f" {opened.advice}"
    beside = [entry for entry in opened.unread if entry.reason != OUTSIDE]  # the folder importer reads no such file either
    if format != FolderImporter.name and any(_is_image(path / entry.id) for entry in beside):
        command = f"dpfed data import {shlex.quote(str(path))} DEST --format {FolderImporter.name} --skip-broken"
        advice = f" `{command}` imports the images instead."
    number = "1 file, folder or column" if len(lost) == 1 else f"{len(lost):,} files, folders or columns"
    mend = "" if skip_broken else f"; {mending(lost, 'remove them')}"
    if opened.doubtful and not format_given:  # --skip-broken alone would be refused
        mend = "; remove them, or choose how to import them"
    raise UserError(f"in {path}, {number} would be lost: {'; '.join(by_reason(lost))}{mend}.{advice} [import-lost-files]")


def _is_image(file: Path) -> bool:
    return suffix(file) in EXTENSIONS and os.path.isfile(file)  # a member of an archive is none


def _refuse_splits(opened: Source, path: Path, counts: dict[str, int]) -> None:
    for split, count in counts.items():
        if count and split in opened.splits:
            raise UserError(f"{path} has its own {split} split: set {split} = 0, not {count}. [import-own-split]")
    most = sum(counts.values())
    if opened.total is not None and 0 < opened.total <= most:
        raise UserError(
            f"cannot hold out {most:,} of the {opened.total:,} records of {path}: at least one must be left for training; "
            "hold out fewer. [import-held-out]"
        )


def _empty_classes(store: RecordStore) -> dict[str, list[str]]:
    """Returns, for each label name, the classes that no record has. Labels without such classes are left out."""
    empty = {}
    for label, names in store.label_names.items():
        used = np.zeros(len(names) + 1, bool)
        for first, end in blocks(len(store)):
            used[store.labels[label][first:end]] = True  # -1, no class, is the last place
        if missing := [name for name, is_used in zip(names, used.tolist(), strict=False) if not is_used]:
            empty[label] = missing
    return empty
