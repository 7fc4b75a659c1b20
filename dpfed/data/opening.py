"""From the configuration to its record store."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable
from pathlib import Path

from dpfed.data.generated.procedural import procedural_store
from dpfed.data.generated.shapes import shapes_store
from dpfed.data.importers import ImportProgress, detect, import_records
from dpfed.data.importers.access import Access
from dpfed.data.importers.detection import refuse_unknown
from dpfed.data.importers.listing import walk
from dpfed.data.options import DataConfig
from dpfed.data.store.counting import given_path, require_something_at
from dpfed.data.store.layout import FORMAT_VERSION
from dpfed.data.store.records import RecordStore, open_or_write
from dpfed.errors import UserError
from dpfed.files.atomic import cannot_write
from dpfed.paths import is_store, local_path

_ORIGINALS_FROM = 64  # pixels; smaller images are read raw far faster than their files are decoded
_SQUARED = ("crop", "bicubic")  # how an import makes images square


def open_records(
    config: DataConfig,
    progress: ImportProgress | None = None,
    interpolation: str = "bicubic",
    say: Callable[[str], None] | None = None,
) -> RecordStore:
    """Opens the records that a configuration names, after generating or importing them if need be.

    A source is imported once, into ``<stores>/<importer>-<hash>``; the hash changes with the source's files and the options.
    Images below 64 pixels are stored raw; others, and those that the model does not expect cropped and scaled bicubically, as
    original files that are resized when read.

    Args:
        config: the ``[data]`` section, with its size and way to resize resolved.
        progress: called during an import with (records so far, of how many or ``None``).
        interpolation: how the model expects images scaled.
        say: told what an import did not use.

    Raises:
        UserError: for an unknown source, a missing path, a source or store that cannot be read, or a
            store of squares that were made in another way than the model's own.
    """
    if config.source == "shapes":
        return shapes_store(config.records, config.stores, half=config.half)
    if config.source == "procedural":
        if config.size is None:
            raise ValueError("the size of the images is not resolved")
        return procedural_store(config.records, config.stores, config.size, progress=progress)
    if config.source == "scenes":
        from dpfed.data.generated.scenes import scenes_store

        labelled = DataConfig(source="scenes", path=config.path, stores=config.stores, public=config.public)
        return scenes_store(config, lambda: _from_path(labelled, None, progress, say=say))
    refuse_unknown(config.source)
    size = _stored_size(config) if interpolation == _SQUARED[1] else None
    store = _from_path(config, config.source, progress, size, say)
    refuse_other_squares(store, config.resize, interpolation)
    return store


def refuse_other_squares(store: RecordStore, resize: str, interpolation: str) -> None:
    """Refuses a store of squares that were made in another way than the model's own.

    Args:
        store: the records.
        resize: how an image becomes square.
        interpolation: how the model expects images scaled.

    Raises:
        UserError: saying how they were made.
    """
    if store.resized and (resize, interpolation) not in (_SQUARED, ("model", _SQUARED[1])):
        raise UserError(
            f"the images of {store.path} were cropped to squares of {store.size} pixels and scaled bicubically when they were "
            f"imported, and this run needs resize '{resize}' with {interpolation} scaling, as stock open_clip would "
            "show them to its model: import the data again without --size. [view-made-squares]"
        )


def _from_path(
    config: DataConfig,
    format: str | None,
    progress: ImportProgress | None,
    size: int | None = None,
    say: Callable[[str], None] | None = None,
) -> RecordStore:
    """Opens ``data.path``, after importing it if it is not a store; without a format the importer is found by looking at it."""
    path = local_path(given_path(config), "data.path")
    if format == "store" or is_store(path):
        return RecordStore.open(path)
    require_something_at(path)
    format = format or detect(path)

    def write(target: Path) -> None:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            report = import_records(
                path,
                target,
                format=format,
                size=size,
                validation=config.validation,
                test=config.test,
                public=config.public,
                progress=progress,
                say=say,
                wait=math.inf,  # for another process of the run, which imports it
            )
            for sentence in report.ignored():
                (say or (lambda text: None))(sentence)
        except OSError as error:
            raise cannot_write(target, error) from error
        except UserError as error:  # it may name records
            error.public = f"the records at {path} cannot be imported: `dpfed data import {path} DEST` says why. [{error.code}]"
            error.command = ""  # of another command
            raise

    return open_or_write(Path(config.stores) / f"{format}-{_fingerprint(path, config, size)}", write)


def _stored_size(config: DataConfig) -> int | None:
    """The side of the images that an import stores raw; ``None``: the original files, from which any resize can be made."""
    small = config.size is not None and config.size < _ORIGINALS_FROM
    return config.size if small and config.resize in ("model", _SQUARED[0]) else None


def _fingerprint(path: Path, config: DataConfig, size: int | None) -> str:
    """A short hash of everything that the imported store depends on; files count by name, size and time of change."""
    digest = hashlib.blake2b(digest_size=6)
    options = (FORMAT_VERSION, str(path), size, config.validation, config.test, config.public)
    digest.update(repr(options).encode())
    if path.is_file():
        # A table's or a Parquet file's images may lie beside it, but the file that lists them is what is watched.
        files = [path]
    else:
        files = sorted(walk(path, Access.to(path)))
    for file in files:
        try:
            status = file.stat()
        except OSError:  # a dangling link: the import itself will report it
            continue
        digest.update(repr((os.fspath(file), status.st_size, status.st_mtime_ns)).encode(errors="surrogateescape"))
    return digest.hexdigest()
