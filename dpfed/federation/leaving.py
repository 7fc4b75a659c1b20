"""A site that leaves its federation for good. It never gives budget back: what was spent stays spent, and its "
"ledger says so."""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path

from dpfed.errors import UserError
from dpfed.files.atomic import sync_folder, write_atomically
from dpfed.files.reading import read_text

_LEFT = "left.json"


def leave(folder: Path, secret: Path) -> None:
    """Writes down that a site has left, and destroys the secret of its draws and its noise.

    Nobody can resume the site then, and nobody can take its noise off. The ledger and what is reserved of the records'
    lifetime budget are not touched.

    Args:
        folder: of the site, which is not served.
        secret: its file.
    """
    if not has_left(folder):
        day = datetime.datetime.now(datetime.UTC).date().isoformat()
        write_atomically(folder / _LEFT, json.dumps({"day": day}) + "\n")
    secret.unlink(missing_ok=True)
    sync_folder(folder)


def has_left(folder: Path) -> bool:
    """Whether a site has left; also where what says so is damaged."""
    return os.path.lexists(folder / _LEFT)


def day_of_leaving(folder: Path) -> str | None:
    """When a site left, as YYYY-MM-DD, or that nobody knows; ``None``: it has not."""
    if not has_left(folder):
        return None
    try:
        return datetime.date.fromisoformat(json.loads(read_text(folder / _LEFT))["day"]).isoformat()
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        return "a day that is not known"


def refuse_if_left(folder: Path) -> None:
    """Refuses a site that has left.

    Raises:
        UserError: saying when.
    """
    if (day := day_of_leaving(folder)) is not None:
        raise UserError(f"{folder} left its federation permanently on {day}: make a new site for another federation.")
