"""What a model folder says of itself (``model.json``), read without torch."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from dpfed.errors import UserError
from dpfed.files.reading import read_bytes
from dpfed.models.blueprints import WEIGHTS as CLIP_WEIGHTS

FORMAT = 1
WEIGHTS, DESCRIPTION = "model.safetensors", "model.json"
_KEYS = ("model", "objective", "image_size", "normalisation", "parameters", "sha256")


def describe(folder: str | Path) -> dict[str, Any]:
    """What is in a model folder.

    Returns:
        The keys ``format, model, objective, image_size`` (pixels)``, normalisation`` (mean and std per channel, of pixels in
        [0, 1])``, resize``, ``interpolation``, ``parameters`` (their number), ``sha256`` (of the weights) and, unless
        an earlier version of dpfed wrote it, ``digest`` (of all else that is said) and ``trained`` (the runs that made it).

    Raises:
        UserError: if there is no description, or it is damaged or of another version.
    """
    path = Path(folder) / DESCRIPTION
    try:
        description = json.loads(read_file(path))
        found = description["format"]
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path} is damaged: it is not the description of a model.") from error
    if found != FORMAT:
        raise UserError(f"{path} describes a model of format {found}, this version of dpfed reads format {FORMAT}.")
    for key in _KEYS:
        if key not in description:
            raise UserError(f"{path} is damaged: it lacks '{key}'.")
    if "digest" in description and description["digest"] != digest_of(description):
        raise UserError(f"{path} is damaged or was edited: its digest is not that of its content; copy the folder again.")
    return description


def digest_of(description: dict[str, Any]) -> str:
    """What guards a description: the hash of all that it says beside."""
    rest = {name: value for name, value in description.items() if name != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def read_file(path: Path) -> bytes:
    """What a file of a model folder holds.

    Raises:
        UserError: if it cannot be read.
    """
    try:
        return read_bytes(path)
    except OSError as error:
        wanted = f"a model folder has {DESCRIPTION} and {WEIGHTS} or {CLIP_WEIGHTS}"
        raise UserError(f"cannot read {path}: {error.strerror or error}; {wanted}.") from error
