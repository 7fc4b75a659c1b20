"""Opens the record store that a configuration describes. If the store does not exist yet, it is generated or imported first."""

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
_SQUARED = ("crop", "bicubic")  # resizing and interpolation by which an import makes images square


def open_records(
    config: DataConfig,
    progress: ImportProgress | None = None,
    interpolation: str = "bicubic",
    say: Callable[[str], None] | None = None,
) -> RecordStore:
    """Opens the records that a configuration names, and generates or imports them first if necessary.

    A source is imported once, into ``<stores>/<importer>-<hash>``. The hash changes with the source's files and the options.
    If the model reads images of fewer than 64 pixels a side and expects them cropped and scaled bicubically, the import makes
    the images square and stores raw pixels. Otherwise the original files are stored, and resized whenever they are read.

    Args:
        config: Section ``[data]``, with its size and resizing resolved.
        progress: Callback that receives (records imported so far, number of all records or ``None``).
        interpolation: Interpolation by which the model expects images to be scaled.
        say: Callback that receives notes about parts of the source that an import did not use.

    Raises:
        UserError: If the source is unknown, a path is missing, a source or store cannot be read, a store cannot be written, or
            a store's images were made square in a way that the model does not expect.
        ValueError: If procedural images are to be generated, and `config` has no size.
    """
    if config.source == "shapes":
        return shapes_store(config.records, config.stores, half=config.half)
    if config.source == "procedural":
        if config.size is None:
            raise ValueError(
                "the section [data] has no size: set it, or use the section that dpfed.runs.resolution.resolve_model_defaults "
                "returns"
            )
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
    """Rejects a store whose images were made square in a way that the model does not expect.

    Args:
        store: Record store.
        resize: Resizing that the model expects.
        interpolation: Interpolation that the model expects.

    Raises:
        UserError: If resizing or interpolation differ; the message says how the stored images were made.
    """
    if store.resized and (resize, interpolation) not in (_SQUARED, ("model", _SQUARED[1])):
        raise UserError(
            f"the images of {store.path} were cropped to squares of {store.size} pixels and scaled bicubically when they were "
            f"imported, but this run's model needs resize '{resize}' with {interpolation} scaling: import the data again "
            "without --size. [view-made-squares]"
        )


def _from_path(
    config: DataConfig,
    format: str | None,
    progress: ImportProgress | None,
    size: int | None = None,
    say: Callable[[str], None] | None = None,
) -> RecordStore:
    """Opens the store at ``data.path``, or imports what is at ``data.path`` and opens the new store.

    Args:
        config: Section ``[data]``.
        format: Name of the importer, or ``"store"``; ``None``: the importer is detected.
        progress: Callback of `open_records`.
        size: Side of the raw images to store, pixels; ``None``: the original files are stored.
        say: Callback of `open_records`.
    """
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
                wait=math.inf,  # waits for another process of the run that imports the same source
            )
            for sentence in report.ignored():
                (say or (lambda text: None))(sentence)
        except OSError as error:
            raise cannot_write(target, error) from error
        except UserError as error:  # it may name records
            error.public = f"the records at {path} cannot be imported: `dpfed data import {path} DEST` says why. [{error.code}]"
            error.command = ""  # the advice is for another command
            raise

    return open_or_write(Path(config.stores) / f"{format}-{_fingerprint(path, config, size)}", write)


def _stored_size(config: DataConfig) -> int | None:
    """Returns the side of the images that an import stores raw, pixels; ``None``: the import stores the original files."""
    small = config.size is not None and config.size < _ORIGINALS_FROM
    return config.size if small and config.resize in ("model", _SQUARED[0]) else None


def _fingerprint(path: Path, config: DataConfig, size: int | None) -> str:
    """Returns a short hash of all that an imported store depends on: options, and the source's files.

    Of each file, the hash covers the path, the size and the time of modification, not the contents.
    """
    digest = hashlib.blake2b(digest_size=6)
    options = (FORMAT_VERSION, str(path), size, config.validation, config.test, config.public)
    digest.update(repr(options).encode())
    if path.is_file():
        # The images of a table or Parquet file may lie beside it, but only the file that lists them is watched.
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
