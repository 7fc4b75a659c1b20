"""A store's directory appears under its name when it is complete, or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from dpfed.errors import UserError
from dpfed.files.atomic import draft_of, name_folder


def refuse_existing(path: Path) -> None:
    """Refuses a destination where something is already.

    Raises:
        UserError: when something is there.
    """
    if os.path.lexists(path):
        raise UserError(f"{path} exists already; choose another destination or delete it first.")


def check_destination(path: Path) -> None:
    """Finds out whether a directory could be made, before anything is read that takes long; leaves nothing behind.

    Raises:
        UserError: when `path` exists or nothing can be written there.
    """
    missing = [folder for folder in path.parents if not os.path.lexists(folder)]
    try:
        start_directory(path).rmdir()
    finally:
        for folder in missing:
            with contextlib.suppress(OSError):  # it holds something: it is a way up, or somebody else's by now
                folder.rmdir()


def start_directory(path: Path) -> Path:
    """Makes a hidden directory beside `path`, in which a store is written before it gets its name; the caller removes it.

    Raises:
        UserError: when `path` exists or nothing can be written there.
    """
    refuse_existing(path)
    partial = draft_of(path)
    try:
        partial.mkdir(parents=True)
    except OSError as error:
        raise cannot_write(path, error) from error
    return partial


def name_directory(partial: Path, path: Path) -> None:
    """Gives a complete store its name.

    Raises:
        UserError: when somebody else took the name meanwhile.
    """
    refuse_existing(path)
    name_folder(partial, path)


def cannot_write(path: Path, error: OSError) -> UserError:
    """The error of a store that the disk or its permissions do not let be written."""
    return UserError(f"cannot write the record store {path}: {error.strerror or error}.")
