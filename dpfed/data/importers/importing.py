"""An import: from a source to a record store, or a refusal that says why."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpfed.data.importers.access import Access
from dpfed.data.importers.detection import detect, existing, importers
from dpfed.data.importers.dicom import DicomImporter
from dpfed.data.importers.folder import FolderImporter
from dpfed.data.importers.listing import suffix
from dpfed.data.importers.parquet import ParquetImporter
from dpfed.data.importers.pieces import Progress, store_records, write_volumes
from dpfed.data.importers.source import CONTENT, Source
from dpfed.data.importers.table import TableImporter, common_folder
from dpfed.data.importers.table_rows import TABLES
from dpfed.data.importers.webdataset import WebDatasetImporter
from dpfed.data.limits import stored_side, whole_number
from dpfed.data.processes import MOST_WORKERS, Processes, Tell
from dpfed.data.reasons import by_reason, mending
from dpfed.data.store.fingerprint import new_key
from dpfed.data.store.index import blocks
from dpfed.data.store.record import SPLITS
from dpfed.data.store.records import RecordStore
from dpfed.data.store.volume import Form
from dpfed.data.store.writing import StoreWriter, write_around
from dpfed.data.views.pixels import EXTENSIONS
from dpfed.errors import UserError, nearest
from dpfed.files.atomic import check_destination, whole_directory
from dpfed.paths import local_path

_DEEPEST = 32  # folders below a source


@dataclass(frozen=True)
class ImportReport:
    """What an import did.

    Attributes:
        path: the store.
        format: the importer that was used.
        kind: ``"image"`` or ``"image-text"``.
        counts: records by split.
        skipped: (id, reason) of the unreadable records, and of the files, that were left out.
        seconds: how long it took.
        unit_name: what records share, such as ``"person"``; ``None``: nothing that the source names.
        unused: columns of the source, or files of its samples, that were not used.
        passed_over: what lies below the source and holds no records by its name, and how often.
        empty_classes: label -> its classes that no record has.
        converted: what was done to images that stock open_clip would destroy -> to how many.
        bytes_read: of archives and Parquet files.
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
    bytes_read: int = 0

    def ignored(self) -> list[str]:
        """A sentence about what the source says of its records and the store does not."""
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
    progress: Progress | None = None,
    id: str | None = None,
    allow_outside: bool = False,
    watch: Callable[[int], None] | None = None,
    workers: int = 1,
    say: Callable[[str], None] | None = None,
    surveyed: Progress | None = None,
    window: tuple[float, float] | None = None,
    splits: int | None = None,
) -> ImportReport:
    """Imports a data set into a new record store.

    The store is the same for any number of workers.

    Args:
        source: a local file or folder, or several tables of one folder.
        dest: the store to create; must not exist.
        format: name of an importer; ``None``: found by looking at the source.
        size: store raw square images of this side; ``None``: keep the original files.
        validation: so many training records become the validation split, whole units at a time, chosen by a hash of their ids:
            a choice made here, before any private mechanism runs (see `StoreWriter.hold_out`).
        test: the same for the test split.
        skip_broken: leave unreadable records, and files that no importer knows, out instead of refusing.
        public: anyone may see the records.
        progress: called now and then with (records so far, of how many or ``None``).
        id: what names a record: a column of Parquet, or ``"content"``, a hash of what it holds; ``None``: its own name at the
            source, where it has one, otherwise a hash.
        allow_outside: also read files outside of the source's folder, which tables or links name.
        watch: called now and then, with how many files were found, while the source is looked through.
        workers: processes that read archives and Parquet files at a time.
        say: told what the user should know.
        surveyed: called now and then with how many archives were looked through, and of how many, before records are stored.
        window: centre and width through which DICOM files become pictures, in the modality's units; ``None``: each file's own.
        splits: which folder below the source is the split of an image, from 1; 0: none is, so a class may be called train;
            ``None``: as the folders' names say.

    Raises:
        UserError: when the source cannot be read, holds unreadable records or files, or already has a split that was asked for;
            when something is at `dest`.
    """
    started = time.monotonic()
    dest = local_path(dest, "the place of the new store")
    check_destination(dest)
    size, workers = stored_side(size), whole_number(workers, "the number of workers", 1, MOST_WORKERS)
    sources: list[Any] = list(source) if isinstance(source, list | tuple) else [source]
    paths = [existing(one) for one in sources]
    asked = {"validation": validation, "test": test}
    counts = {split: whole_number(n, f"the number of {split} records") for split, n in asked.items()}
    held_out = [(count, split) for split, count in counts.items() if count]
    wanted = _Asked(paths, dest, format, size, held_out, skip_broken, public, id, allow_outside, window, splits)
    try:
        with Processes(workers) as processes:
            options = {"watch": watch, "surveyed": surveyed, "processes": processes}
            chosen, opened = wanted.carry_out(options, progress, say)
    except OSError as error:
        where = error.filename or paths[0]
        raise UserError(f"the import stopped at {where}: {error.strerror or error}; nothing was written.") from error
    return _report(RecordStore.open(dest), chosen, opened, time.monotonic() - started)


@dataclass(frozen=True)
class _Asked:
    """What `import_records` is asked for, checked."""

    paths: list[Path]
    dest: Path
    format: str | None
    size: int | None
    held_out: list[tuple[int, str]]
    skip_broken: bool
    public: bool
    id: str | None
    allow_outside: bool
    window: tuple[float, float] | None
    level: int | None

    def carry_out(
        self, options: dict[str, Any], progress: Progress | None, say: Callable[[str], None] | None
    ) -> tuple[str, Source]:
        """Writes the store; gives the name of the importer, and the opened source. The options are those of `Access`."""
        path = self.paths[0] if len(self.paths) == 1 else common_folder(self.paths)
        access = Access.to(path, self.allow_outside, **options)
        chosen, opened = self._open(access)
        if opened.notice and say is not None:
            say(opened.notice)
        _refuse_unread(opened, path, chosen, self.skip_broken, self.format is not None)
        _refuse_splits(opened, path, self.held_out)
        of_import = tuple(split for _, split in self.held_out)
        name = path.stem if path.is_file() else path.name
        form = Form(name, opened.kind, self.size, self.public, opened.label_names, opened.unit_name, of_import)
        by_content = self.id == CONTENT or not opened.named
        if opened.pieces:
            left_out, key = [(entry.id, entry.reason) for entry in opened.unread], new_key(form.public)
            with whole_directory(self.dest) as folder:
                volumes = write_volumes(folder, opened, form, key, access, by_content, progress)
                write_around(folder, self.dest, form, key, volumes, self.held_out, self.skip_broken, left_out)
        else:
            self._write(opened, form, access, by_content, progress)
        return chosen, opened

    def _open(self, access: Access) -> tuple[str, Source]:
        """The name of the importer, and the opened source."""
        known, format, paths, level = importers(), self.format, self.paths, self.level
        if format is not None and format not in known:
            raise UserError(f"unknown format {format!r}; {nearest(format, known)}")
        if len(paths) > 1 and (
            format not in (None, TableImporter.name) or not all(path.is_file() and suffix(path) in TABLES for path in paths)
        ):
            raise UserError(
                f"several sources must be .csv, .tsv or .jsonl tables of one data set; {', '.join(map(str, paths))} were "
                "given; import others one by one, or give the folder that holds them."
            )
        format = TableImporter.name if len(paths) > 1 else format or detect(paths[0], access)
        if self.id not in (None, CONTENT) and format != ParquetImporter.name:
            raise UserError(
                f"--id names a column of Parquet, and the format is {format!r}; leave it out, or set it to {CONTENT!r}."
            )
        if self.window is not None and format != DicomImporter.name:
            raise UserError(f"--window is for DICOM files, and the format is {format!r}: leave it out.")
        if level is not None:
            _refuse_level(level, format)
        if format == DicomImporter.name:
            return format, DicomImporter().open(paths[0], access, self.window, level)
        if format == FolderImporter.name:
            return format, FolderImporter().open(paths[0], access, level)
        if format == ParquetImporter.name:
            return format, ParquetImporter().open(paths[0], access, self.id)
        if format == WebDatasetImporter.name:
            return format, WebDatasetImporter().open(paths[0], access, level)
        if len(paths) > 1:
            return format, TableImporter().open_tables(paths, access)
        return format, known[format].open(paths[0], access)

    def _write(self, opened: Source, form: Form, access: Access, by_content: bool, progress: Progress | None) -> None:
        """Writes the records of a source that is read from beginning to end."""
        with StoreWriter(
            self.dest,
            name=form.name,
            kind=form.kind,
            size=form.size,
            public=form.public,
            label_names=form.label_names,
            skip_broken=self.skip_broken,
            unit_name=form.unit_name,
        ) as writer:
            for entry in opened.unread:
                writer.reject(entry.id, entry.reason)
            tell: Tell = (lambda done: None) if progress is None else lambda done: progress(done, opened.total)
            done = store_records(opened.records, writer, access, by_content, opened.named, form, tell)
            if progress is not None:
                progress(done, done)
            for count, split in self.held_out:
                writer.hold_out(count, split)


def _report(store: RecordStore, format: str, opened: Source, seconds: float) -> ImportReport:
    return ImportReport(
        path=store.path,
        format=format,
        kind=store.kind,
        counts={split: store.count(split) for split in SPLITS},
        skipped=store.skipped,
        seconds=seconds,
        unit_name=store.unit_name,
        unused=opened.unused,
        passed_over=dict(opened.passed_over),
        empty_classes=_empty_classes(store),
        converted=store.converted,
        bytes_read=sum(piece.size for piece in opened.pieces),
    )


def _refuse_level(level: int, format: str) -> None:
    if level == 0 and format == WebDatasetImporter.name:
        return
    if format not in (FolderImporter.name, DicomImporter.name):
        raise UserError(f"--splits is for folders of image files, and the format is {format!r}: leave it out.")
    whole_number(level, "--splits", 0, _DEEPEST)


def _refuse_unread(opened: Source, path: Path, format: str, skip_broken: bool, format_given: bool) -> None:
    """Refuses a source below which lie files that would be lost, unless the user allows it."""
    if not opened.unread or (skip_broken and (format_given or not opened.doubtful)):
        return
    lost = [(entry.id, entry.reason) for entry in opened.unread]
    advice = opened.advice
    if format != FolderImporter.name and any(suffix(Path(entry.id)) in EXTENSIONS for entry in opened.unread):
        command = f"dpfed data import {shlex.quote(str(path))} DEST --format {FolderImporter.name} --skip-broken"
        advice = f"`{command}` imports the images instead."
    number = "1 file or folder" if len(lost) == 1 else f"{len(lost):,} files or folders"
    mend = "" if skip_broken else f"; {mending(lost, 'remove them')}"
    raise UserError(f"below {path}, {number} would be lost: {'; '.join(by_reason(lost))}{mend}.{' ' * bool(advice)}{advice}")


def _refuse_splits(opened: Source, path: Path, held_out: list[tuple[int, str]]) -> None:
    for count, split in held_out:
        if split in opened.splits:
            raise UserError(f"{path} has a {split} split of its own, so {split} = {count} cannot be asked for; set it to 0.")
    most = sum(count for count, _ in held_out)
    if opened.total is not None and 0 < opened.total <= most:
        raise UserError(
            f"{path} has {opened.total:,} records, so {most:,} of them cannot be held out: some must be left for training; ask "
            "for fewer."
        )


def _empty_classes(store: RecordStore) -> dict[str, list[str]]:
    """Label -> its classes that no record has, of the labels that have some."""
    empty = {}
    for label, names in store.label_names.items():
        found = np.zeros(len(names) + 1, bool)
        for first, end in blocks(len(store)):
            found[store.labels[label][first:end]] = True  # -1, no class, is the last place
        if missing := [name for name, there in zip(names, found.tolist(), strict=False) if not there]:
            empty[label] = missing
    return empty
