"""Makes the private folder of a party in a federation."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from dpfed.errors import UserError
from dpfed.files.atomic import new_folder


@contextlib.contextmanager
def own_folder(folder: Path) -> Iterator[Path]:
    """Makes a new folder that only its owner can read. The folder exists only once the block has ended without an error.

    Args:
        folder: Path of the new folder.

    Yields:
        The path of a temporary folder to fill. When the block ends, this folder is renamed to the new folder's path.

    Raises:
        UserError: If the path exists, or the folder cannot be made.
    """
    refuse_taken(folder)
    try:
        with new_folder(folder, mode=0o700) as draft:
            yield draft
    except OSError as error:
        raise UserError(
            f"cannot make {folder}: {error.strerror or error}; choose another folder. [member-folder-failed]"
        ) from error


def refuse_taken(folder: Path) -> None:
    """Refuses a path that exists, so that a caller learns before long work that `own_folder` would refuse the path.

    Args:
        folder: Path of the folder to make.

    Raises:
        UserError: If the path exists.
    """
    if os.path.lexists(folder):
        raise UserError(f"cannot make {folder}: it exists; choose another folder. [member-folder-exists]")
