"""Number of training records (or units) of a run, where it is known before any record is read or made."""

from __future__ import annotations

import os
from pathlib import Path

from dpfed.data.options import DataConfig
from dpfed.data.store.layout import read_layout
from dpfed.errors import UserError
from dpfed.paths import is_store, local_path
from dpfed.privacy.promise import Unit


def known_count(data: DataConfig, unit: Unit) -> int | None:
    """Returns N of a configuration: the configured number of generated records, or the number in the header of a local store.

    Nothing is imported, generated, copied or decoded.

    Args:
        data: Configuration of the records.
        unit: Privacy unit.

    Returns:
        The number of training records (or units); ``None`` if only an import can tell.

    Raises:
        UserError: If the records are missing, the store is damaged, or units are protected that the records do not name.
    """
    if data.from_nothing:
        if unit == "user":
            raise no_units(data.source)
        return data.records
    if (path := store_at_hand(data)) is None:
        return None
    layout = read_layout(path)
    if unit == "user" and layout.header["unit_name"] is None:
        raise no_units(layout.header["name"])
    layout.check_sizes(path)
    return layout.training_units if unit == "user" else layout.splits["train"]


def store_at_hand(data: DataConfig) -> Path | None:
    """Returns the path of the store that is read as it is; ``None`` if the records must first be made or imported.

    Raises:
        UserError: If ``data.path`` is missing, or there is nothing at the path.
    """
    if data.from_nothing or data.is_own:
        return None
    path = local_path(os.path.expanduser(given_path(data)), "data.path")
    if data.source == "store":
        return path
    require_something_at(path)
    return path if data.source != "scenes" and is_store(path) else None


def given_path(data: DataConfig) -> str:
    """Returns ``data.path`` of a source that reads files.

    Raises:
        UserError: If ``data.path`` is missing.
    """
    if data.path is None:
        raise UserError(f"data.source = {data.source!r} needs data.path, the place of the records. [data-path-missing]")
    return data.path


def require_something_at(path: Path) -> None:
    """Checks that there is something at the path of the records.

    Raises:
        UserError: If there is nothing; the message names the path.
    """
    if not os.path.exists(path):
        raise UserError(f"data.path: there is nothing at {path}; give the path of a local file or folder. [data-path-nothing]")


def no_units(name: str) -> UserError:
    """Returns the error for protected units that the records do not name."""
    return UserError(
        f"privacy.unit = 'user' protects all records that share a unit, and the records of {name} name no units: set "
        "privacy.unit = 'record', give Records(unit=...), or import a source that names units (a column 'person_id', "
        "'patient_id' or 'unit'). [unit-none-named]"
    )
