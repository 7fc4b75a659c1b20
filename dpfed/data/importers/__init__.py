"""Importers: from data sets as people have them on disk to a record store."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dpfed.data.importers.captioned_people import CuhkPedesImporter, RstpReidImporter
from dpfed.data.importers.deepfashion import DeepFashionImporter
from dpfed.data.importers.folder import FolderImporter
from dpfed.data.importers.parquet import ParquetImporter
from dpfed.data.importers.roco import RocoImporter
from dpfed.data.importers.source import Importer, Source, Unreadable
from dpfed.data.importers.table import TableImporter
from dpfed.data.importers.torchvision_sets import (
    Cifar10Importer,
    EuroSatImporter,
    FashionMnistImporter,
    ImageNetImporter,
    PcamImporter,
)
from dpfed.data.importers.webdataset import WebDatasetImporter
from dpfed.data.importers.wilds import WildsImporter
from dpfed.data.layout import is_store
from dpfed.data.records import SPLITS, RecordStore
from dpfed.data.writing import StoreWriter
from dpfed.errors import UserError, nearest

__all__ = ["ImportReport", "Importer", "Progress", "Source", "Unreadable", "detect", "import_records", "importers"]

Progress = Callable[[int, int | None], None]  # (records so far, of how many)

# The most particular first: a folder of anything is recognised last.
_IMPORTERS: tuple[type[Importer], ...] = (
    WildsImporter,
    CuhkPedesImporter,
    RstpReidImporter,
    DeepFashionImporter,
    RocoImporter,
    Cifar10Importer,
    FashionMnistImporter,
    EuroSatImporter,
    PcamImporter,
    ImageNetImporter,
    ParquetImporter,
    TableImporter,
    WebDatasetImporter,
    FolderImporter,
)


@dataclass(frozen=True)
class ImportReport:
    """What an import did.

    Attributes:
        path: the store.
        format: the importer that was used.
        kind: ``"image"`` or ``"image-text"``.
        counts: records by split.
        skipped: (id, reason) of the unreadable records that were left out.
        seconds: how long it took.
        unit_name: what records share, such as ``"person"``; ``None``: nothing that the source names.
        unused: columns of the source that were not used.
        converted: what was done to images that stock open_clip would destroy -> to how many.
    """

    path: Path
    format: str
    kind: str
    counts: dict[str, int]
    skipped: list[tuple[str, str]]
    seconds: float
    unit_name: str | None
    unused: tuple[str, ...]
    converted: dict[str, int]


def importers() -> dict[str, Importer]:
    """All importers by name."""
    return {importer.name: importer() for importer in _IMPORTERS}


def detect(source: str | Path) -> str:
    """The name of the importer that recognises a source.

    Raises:
        UserError: when the source is missing or nothing recognises it.
    """
    source = Path(source)
    if not source.exists():
        raise UserError(f"there is nothing at {source}; give the path of a local file or folder.")
    if is_store(source):
        raise UserError(f"{source} is a record store already; use it with data.source = 'store'.")
    for name, importer in importers().items():
        if importer.recognises(source):
            return name
    known = "; ".join(f"{name}: {importer.layout}" for name, importer in importers().items())
    raise UserError(f"nothing at {source} looks like a known data set. Known: {known}.")


def import_records(
    source: str | Path,
    dest: str | Path,
    format: str | None = None,
    size: int | None = None,
    validation: int = 0,
    test: int = 0,
    skip_broken: bool = False,
    public: bool = False,
    progress: Progress | None = None,
) -> ImportReport:
    """Imports a data set into a new record store.

    Args:
        source: a local file or folder.
        dest: the store to create; must not exist.
        format: name of an importer; ``None``: found by looking at the source.
        size: store raw square images of this side; ``None``: keep the original files.
        validation: so many training records become the validation split, whole units at a time, chosen by a hash of their ids:
            a choice made here, before any private mechanism runs (see `StoreWriter.hold_out`).
        test: the same for the test split.
        skip_broken: leave unreadable records out instead of refusing.
        public: anyone may see the records.
        progress: called now and then with (records so far, of how many or ``None``).

    Raises:
        UserError: when the source cannot be read, holds unreadable records, or already has a split that was asked for.
    """
    started = time.monotonic()
    source = Path(source).absolute()
    known = importers()
    if format is not None and format not in known:
        raise UserError(f"unknown format {format!r}; {nearest(format, known)}")
    if not source.exists():
        raise UserError(f"there is nothing at {source}; give the path of a local file or folder.")
    format = format or detect(source)
    opened = known[format].open(source)
    held_out = {"validation": validation, "test": test}
    for split, count in held_out.items():
        if count and split in opened.splits:
            raise UserError(f"{source} has a {split} split of its own, so {split} = {count} cannot be asked for; set it to 0.")
    with StoreWriter(
        dest,
        name=source.stem if source.is_file() else source.name,
        kind=opened.kind,
        size=size,
        public=public,
        label_names=opened.label_names,
        skip_broken=skip_broken,
        unit_name=opened.unit_name,
    ) as writer:
        _copy(opened, writer, progress)
        for split, count in held_out.items():
            if count:
                writer.hold_out(count, split)
    store = RecordStore.open(dest)
    counts = {split: len(store.split(split)) for split in SPLITS}
    seconds = time.monotonic() - started
    return ImportReport(
        store.path, format, store.kind, counts, store.skipped, seconds, store.unit_name, opened.unused, store.converted
    )


def _copy(source: Source, writer: StoreWriter, progress: Progress | None) -> None:
    done = 0
    for done, item in enumerate(source.records, start=1):  # noqa: B007 - the count is read after the loop
        if isinstance(item, Unreadable):
            writer.reject(item.id, item.reason)
        else:
            writer.add(item)
        if progress is not None and done % 256 == 0:
            progress(done, source.total)
    if progress is not None:
        progress(done, done)
