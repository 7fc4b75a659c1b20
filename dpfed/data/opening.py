"""From the configuration to its record store."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from dpfed.config import DataConfig
from dpfed.data.importers import Progress, import_records, importers
from dpfed.data.records import FORMAT_VERSION, RecordStore, is_store, open_or_write
from dpfed.data.shapes import shapes_store
from dpfed.errors import UserError, nearest


def open_records(config: DataConfig, progress: Progress | None = None) -> RecordStore:
    """Opens the records that a configuration names, after generating or importing them if need be.

    A source is imported once, into ``<stores>/<importer>-<hash>``; the hash changes with the source's files and the options.

    Args:
        config: the ``[data]`` section.
        progress: called during an import with (records so far, of how many or ``None``).

    Raises:
        UserError: for an unknown source, a missing path, or a source or store that cannot be read.
    """
    known = importers()
    if config.source == "shapes":
        return shapes_store(config.records, config.stores)
    if config.source != "store" and config.source not in known:
        raise UserError(f"unknown data.source {config.source!r}; {nearest(config.source, ['shapes', 'store', *known])}")
    if config.path is None:
        raise UserError(f"data.source = {config.source!r} needs data.path, the place of the records.")
    path = Path(config.path).absolute()
    if config.source == "store" or is_store(path):
        return RecordStore.open(path)
    if not path.exists():
        raise UserError(f"data.path: there is nothing at {path}; give the path of a local file or folder.")

    def write(target: Path) -> None:
        import_records(
            path,
            target,
            format=config.source,
            size=config.size,
            validation=config.validation,
            test=config.test,
            public=config.public,
            progress=progress,
        )

    return open_or_write(Path(config.stores) / f"{config.source}-{_fingerprint(path, config)}", write)


def _fingerprint(path: Path, config: DataConfig) -> str:
    """A short hash of everything that the imported store depends on; files count by name, size and time of change."""
    digest = hashlib.blake2b(digest_size=6)
    digest.update(repr((FORMAT_VERSION, str(path), config.size, config.validation, config.test, config.public)).encode())
    if path.is_file():
        # A table's or a Parquet file's images may lie beside it, but the file that lists them is what is watched.
        files = [path]
    else:
        files = sorted(Path(folder, name) for folder, _, names in os.walk(path, followlinks=True) for name in names)
    for file in files:
        try:
            status = file.stat()
        except OSError:  # a dangling link: the import itself will report it
            continue
        digest.update(repr((os.fspath(file), status.st_size, status.st_mtime_ns)).encode(errors="surrogateescape"))
    return digest.hexdigest()
