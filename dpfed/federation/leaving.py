"""A site that leaves its federation for good. It never gives budget back: what was spent stays spent, as its ledger says."""

from __future__ import annotations

import os
from pathlib import Path

from dpfed.errors import UserError
from dpfed.files.atomic import sync_folder, write_atomically

_LEFT = "left.json"


def leave(folder: Path, secret: Path) -> None:
    """Notes that a site has left, and destroys the secret of its draws and its noise.

    Nobody can resume the site then, and nobody can take its noise off. The ledger and what is reserved of the records'
    lifetime budget are not touched.

    Args:
        folder: of the site, which is not served.
        secret: its file.
    """
    if not has_left(folder):
        write_atomically(folder / _LEFT, "{}\n")
    secret.unlink(missing_ok=True)
    sync_folder(folder)


def has_left(folder: Path) -> bool:
    """Whether a site has left."""
    return os.path.lexists(folder / _LEFT)


def refuse_if_left(folder: Path) -> None:
    """Refuses a site that has left.

    Raises:
        UserError: saying so.
    """
    if has_left(folder):
        raise UserError(f"{folder} left its federation permanently: make a new site for another federation.")
