"""Finds the number of training records (or units) of a run, if it is known before any record is read or generated."""

from __future__ import annotations

import os
from pathlib import Path

from dpfed.data.options import DataConfig
from dpfed.data.store.layout import read_layout
from dpfed.errors import UserError
from dpfed.paths import is_store, local_path
from dpfed.privacy.promise import Unit


def known_count(data: DataConfig, unit: Unit) -> int | None:
    """Returns N, the number of training records (or units): as configured, or from the header of a local store.

    Nothing is imported, generated, copied or decoded.

    Args:
        data: Configuration of the records.
        unit: Privacy unit.

    Returns:
        N, the number of units if `unit` is ``"user"``, otherwise of records. ``None``: N is unknown until scenes are made, the
        source is imported, or the items of a data set of the user's own are read.

    Raises:
        UserError: If ``data.path`` is not configured or not a path on this machine, the records are missing, the store is
            damaged or has another format version, or `unit` is ``"user"`` and the records name no units.
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
    """Returns the path of the store that the run reads; ``None``: the run must first generate, import or read the records.

    If ``data.source`` is ``"store"``, the path is returned even if there is nothing at it.

    Raises:
        UserError: If the source reads files, and ``data.path`` is not configured or not a path on this machine; or if a source
            other than ``"store"`` reads files, and there is nothing at the path.
    """
    if data.from_nothing or data.is_own:
        return None
    path = local_path(os.path.expanduser(given_path(data)), "data.path")
    if data.source == "store":
        return path
    require_something_at(path)
    return path if data.source != "scenes" and is_store(path) else None


def given_path(data: DataConfig) -> str:
    """Returns ``data.path``, which every source that reads files needs.

    Raises:
        UserError: If ``data.path`` is not configured.
    """
    if data.path is None:
        raise UserError(f"data.source = {data.source!r} needs data.path, the path of the records: set it. [data-path-missing]")
    return data.path


def require_something_at(path: Path) -> None:
    """Checks that there is something at the path of the records.

    Raises:
        UserError: If there is nothing; the message names the path.
    """
    if not os.path.exists(path):
        raise UserError(f"data.path: there is nothing at {path}; give the path of a local file or folder. [data-path-nothing]")


def no_units(name: str) -> UserError:
    """Returns the error for a run that shall protect units although its records name no units.

    Args:
        name: Name of the data set, for the message.
    """
    return UserError(
        f"privacy.unit = 'user' protects all records that share a unit, but the records of {name} name no units: set "
        "privacy.unit = 'record', give Records(unit=...), or import a source that names units (a column 'person_id', "
        "'patient_id' or 'unit'). [unit-none-named]"
    )
