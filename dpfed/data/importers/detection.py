"""Finds the importer that reads a source."""

from __future__ import annotations

import os
from pathlib import Path

from dpfed import discovery
from dpfed.data.importers.access import Access
from dpfed.data.importers.conversions import conversion
from dpfed.data.importers.folder import table_command
from dpfed.data.importers.listing import list_files, suffix
from dpfed.data.importers.source import Importer
from dpfed.data.importers.splits import refuse_outside
from dpfed.data.importers.table_rows import TABLES
from dpfed.errors import UserError, nearest
from dpfed.paths import is_store, local_path
from dpfed.schema.named import is_name

_PACKED = frozenset({".zip", ".7z", ".rar", ".gz", ".bz2", ".xz", ".zst", ".lz4"})
_NOT_IMPORTED = ("shapes", "scenes", "procedural", "store")  # values of data.source: generated records, and a store


def importers() -> dict[str, Importer]:
    """Returns all importers that are installed, by name: those of dpfed, and those that other packages' entry points announce.

    Raises:
        UserError: If another package announces an importer that cannot be used.
    """
    shipped: dict[str, Importer] = {name: part.load()() for name, part in discovery.shipped("importers").items()}
    foreign: dict[str, Importer] = {}
    for name, part in discovery.announced("importers").items():
        importer = part.load()
        if name in shipped or not (isinstance(importer, type) and issubclass(importer, Importer) and importer.name == name):
            expected = (
                "a name that no importer of dpfed has" if name in shipped else f"a subclass of Importer whose name is '{name}'"
            )
            raise UserError(
                f"the importer {part.said} cannot be used: expected {expected}. Correct the package, or uninstall it. "
                "[importer-foreign]"
            )
        foreign[name] = importer()
    return {**foreign, **shipped}


def refuse_unknown(source: str) -> None:
    """Refuses a ``data.source`` that is neither an importer, nor another known source, nor a function of the user's own.

    Raises:
        UserError: If the source is unknown, or another package announces an importer that cannot be used.
    """
    if is_name(source) or source in _NOT_IMPORTED:  # other packages need not be looked through
        return
    sources = [*_NOT_IMPORTED, *importers()]
    if source not in sources:
        raise UserError(
            f"unknown data.source {source!r}; {nearest(source, sources)} ('folder' reads a folder of images.) "
            "[data-source-unknown]"
        )


def detect(source: str | Path, access: Access | None = None) -> str:
    """Returns the name of the first importer that recognises a source.

    Args:
        source: File or folder.
        access: Paths that the import may read; ``None``: what lies below the source or, if the source is a file, below the
            folder that holds the file.

    Raises:
        UserError: If `existing` refuses the source, the source is a record store already or cannot be read, or no importer
            recognises the source.
    """
    source = existing(source)
    access = access or Access.to(source)
    if is_store(source):
        raise UserError(f"{source} is a record store already; use it with data.source = 'store'. [import-of-store]")
    for name, importer in importers().items():
        if importer.recognises(source, access):
            return name
    known = "; ".join(f"{name}: {importer.layout}" for name, importer in importers().items())
    if source.is_dir():
        refuse_outside(listing := list_files(source, access))
        if not listing.files and not listing.refused:
            raise UserError(f"there are no records in {source}: give the folder that holds them. [import-empty-folder]")
        if tables := [file for file in listing.files if suffix(file) in TABLES]:
            raise UserError(
                f"{source} holds no images, and it is not clear which of its tables list the records: rename the right tables "
                f"to train, val and test, or import them with `{table_command(source, tables)}`. [import-unclear-tables]"
            )
    files = listing.files if source.is_dir() else [source]
    if packed := next((file for file in files if suffix(file) in _PACKED), None):
        raise UserError(
            f"{packed} is a packed file, which dpfed does not read: unpack it, and import its content. [import-packed]"
        )
    if advice := conversion(source, access):
        raise UserError(f"{advice} [import-convert]")
    raise UserError(f"nothing at {source} looks like a known data set. Known: {known}. [import-unknown-data]")


def existing(source: str | Path) -> Path:
    """Returns the absolute path of a source.

    Raises:
        UserError: If `source` is not a path on this machine, there is nothing at the path, or there is something that is
            neither a folder nor a regular file.
    """
    path = local_path(source, "the source")
    if not os.path.exists(path):
        raise UserError(f"there is nothing at {path}; give the path of a local file or folder. [import-nothing-there]")
    if not os.path.isdir(path) and not os.path.isfile(path):
        raise UserError(f"{path} is not a regular file: copy its content into a regular file. [import-not-regular]")
    return path
