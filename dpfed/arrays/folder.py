"""Reads and writes the files of a fit, and folders of several fits.

ledger.jsonl        the privacy ledger; each charge is written before its sum is used
heads.safetensors   the heads, in the format of a run's model (docs/moments.md)
released.safetensors
                    the noisy means and moments, from which other heads can be computed
privacy_card.md     the privacy card
cca.json            parameters of the estimator; written last, so a folder that has it is complete

A folder of fits contains a folder with these files for each call of `fit` (fit-1, fit-2, ...), and the ledger of a lifetime
budget.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from dpfed.arrays.files import expanded
from dpfed.arrays.refusal import ArrayError
from dpfed.errors import UserError
from dpfed.files.atomic import write_atomically
from dpfed.files.reading import read_bytes, read_text
from dpfed.paths import is_store, path_of
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.plan import PrivacyPlan

LEDGER, HEADS, RELEASED = "ledger.jsonl", "heads.safetensors", "released.safetensors"
CARD, FACTS = "privacy_card.md", "cca.json"
_FORMAT, _RELEASED = 1, "released"
_FIT = re.compile(r"fit-(\d+)")


@dataclass(frozen=True)
class Saved:
    """The saved content of a fit.

    Attributes:
        parameters: Parameters of the estimator.
        epsilon: Epsilon spent; ``None``: a fixed seed voids the guarantee.
        delta: Delta of the guarantee.
        widths: Numbers of columns of X and of Y.
        heads: Tensors of ``heads.safetensors`` by name.
        released: Noisy means and moments, float32.
        card: Privacy card, Markdown.
        ledger: Privacy ledger, JSON lines.
        columns: Names of the columns of X; ``None``: X had none.
        basis: Fingerprint of the public basis; `heads` holds as many rows of the basis as the fit has dimensions. ``None``: the
            basis is random.
    """

    parameters: dict[str, Any]
    epsilon: float | None
    delta: float
    widths: tuple[int, ...]
    heads: dict[str, np.ndarray]
    released: np.ndarray
    card: str
    ledger: str
    columns: tuple[str, ...] | None = None
    basis: str | None = None

    @property
    def plan(self) -> PrivacyPlan:
        """Privacy plan, read from the ledger."""
        return PrivacyPlan.from_dict(json.loads(self.ledger.partition("\n")[0])["plan"])


@contextlib.contextmanager
def opened(folder: str | Path | None) -> Iterator[tuple[Path, bool]]:
    """Yields a folder of fits, and whether the folder is kept; a temporary folder is deleted at the end of the ``with`` block.

    Args:
        folder: Folder of fits; ``None``: a temporary folder.
    """
    if folder is not None:
        yield place_of(folder), True
        return
    with tempfile.TemporaryDirectory(prefix="dpfed-cca-") as temporary:
        yield Path(temporary), False


def place_of(folder: str | Path) -> Path:
    """Returns the path of a folder that the user gave; a leading ``~`` is replaced by the home directory.

    Raises:
        UserError: If `folder` cannot be the path of a folder.
    """
    return expanded(path_of(folder, "the folder"), "folder")


def refuse_used(folder: Path) -> None:
    """Refuses a folder of fits that holds something else.

    Raises:
        ArrayError: If the folder holds a run, a saved estimator or records.
    """
    if (folder / "config.toml").exists() or (folder / FACTS).exists() or is_store(folder):
        raise ArrayError(
            f"{folder} holds a run, a saved estimator or records: give another folder, in which dpfed makes one folder for "
            "each fit. [arrays-folder-used]"
        )


def new_fit(folder: Path) -> Path:
    """Makes the folder of the next fit.

    Args:
        folder: Folder of fits; it is created if it is missing.

    Raises:
        ArrayError: If the folder cannot be created.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        number = 1 + max((int(match[1]) for path in folder.iterdir() if (match := _FIT.fullmatch(path.name))), default=0)
        while True:
            try:
                (folder / f"fit-{number}").mkdir()
                return folder / f"fit-{number}"
            except FileExistsError:  # another process made it
                number += 1
    except OSError as error:
        raise ArrayError(f"cannot make {error.filename or folder}: {error.strerror or error}. [arrays-folder]") from error


def fits_in(folder: Path) -> list[Path]:
    """Returns the folders of fits in a folder, in order of their numbers."""
    there = folder.iterdir() if folder.is_dir() else ()
    numbered = [(int(match[1]), path) for path in there if (match := _FIT.fullmatch(path.name))]
    return [path for _, path in sorted(numbered)]


def charged_in(folders: list[Path]) -> list[Ledger]:
    """Returns the ledgers of those fits that were charged.

    Raises:
        UserError: If a ledger is damaged.
    """
    ledgers = [Ledger.open(folder / LEDGER) for folder in folders if (folder / LEDGER).exists()]
    return [ledger for ledger in ledgers if ledger.charged]


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Guards the ``with`` block in which a fit takes its steps: an ``OSError`` means that the ledger could not be written.

    Args:
        folder: Folder of the fit, for the message.

    Raises:
        ArrayError: If the block raises an ``OSError``.
    """
    try:
        yield
    except OSError as error:
        raise ArrayError(
            f"cannot write {error.filename or folder}: {error.strerror or error}. The fit ended, and what its ledger charged "
            "is spent: free space or make the folder writable, and fit again. [arrays-ledger-unwritten]"
        ) from error


def write(folder: Path, saved: Saved) -> None:
    """Writes a fit; its ledger may exist already.

    Raises:
        ArrayError: If the folder cannot be written.
    """
    tensors = {HEADS: save(saved.heads), RELEASED: save({_RELEASED: saved.released})}
    facts = {name: value for name, value in asdict(saved).items() if name not in ("heads", "released", "card", "ledger")}
    facts |= {"format": _FORMAT, "sha256": {name: hashlib.sha256(content).hexdigest() for name, content in tensors.items()}}
    try:
        if not (folder / LEDGER).exists():
            write_atomically(folder / LEDGER, saved.ledger)
        for name, content in tensors.items():
            write_atomically(folder / name, content)
        write_atomically(folder / CARD, saved.card)
        write_atomically(folder / FACTS, json.dumps(facts, indent=1, default=_plain) + "\n")
    except OSError as error:
        raise ArrayError(f"cannot write {folder}: {error.strerror or error}. [arrays-unwritable]") from error


def save_into(folder: Path, saved: Saved) -> None:
    """Writes a fit into a new folder.

    Raises:
        ArrayError: If the folder is in use or cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        used = any(folder.iterdir())
    except OSError as error:
        raise ArrayError(f"cannot make {folder}: {error.strerror or error}. [arrays-save]") from error
    if used:
        raise ArrayError(f"{folder} is in use: give a new folder. [arrays-save-used]")
    write(folder, saved)


@contextlib.contextmanager
def intact(folder: Path) -> Iterator[None]:
    """Guards the ``with`` block that interprets the files of a fit: an error in the block means that the fit is damaged.

    Args:
        folder: Folder of the fit, for the message.

    Raises:
        UserError: If the block fails because the files do not have the content of a fit.
    """
    try:
        yield
    except UserError:
        raise
    except (ValueError, LookupError, TypeError, SafetensorError) as error:
        raise ArrayError(f"{folder} is damaged ({error!r}): copy it again. [arrays-damaged]") from error


def read(folder: Path) -> Saved:
    """Reads a fit; from a folder of fits, the function reads the last complete fit.

    Raises:
        UserError: If the folder has no fit, or the fit is damaged.
    """
    if not (folder / FACTS).is_file() and folder.is_dir():
        whole = [path for path in fits_in(folder) if (path / FACTS).is_file()]
        folder = whole[-1] if whole else folder
    try:
        with intact(folder):
            return _read(folder)
    except OSError as error:
        raise ArrayError(
            f"cannot read {error.filename or folder}: {error.strerror or error}; expected a folder that PrivateCCA.save, or a "
            "fit with folder=, wrote. [arrays-unreadable]"
        ) from error


def _read(folder: Path) -> Saved:
    facts = json.loads(read_text(folder / FACTS))
    tensors = {name: read_bytes(folder / name) for name in (HEADS, RELEASED)}
    card, ledger = read_text(folder / CARD), read_text(folder / LEDGER)
    if facts["format"] != _FORMAT:
        raise ArrayError(
            f"{folder} has format {facts['format']}, but this dpfed reads format {_FORMAT}: load it with the dpfed that "
            "wrote it. [arrays-format]"
        )
    Ledger.open(folder / LEDGER)  # refuses a damaged one
    for name, content in tensors.items():
        if hashlib.sha256(content).hexdigest() != facts["sha256"][name]:
            raise ArrayError(f"{folder / name} is not what {FACTS} describes: copy the folder again. [arrays-file-differs]")
    columns = facts["columns"] and tuple(facts["columns"])
    widths = tuple(facts["widths"])
    heads, released = load(tensors[HEADS]), load(tensors[RELEASED])[_RELEASED]
    basis = facts.get("basis")  # fits of earlier releases have none
    return Saved(facts["parameters"], facts["epsilon"], facts["delta"], widths, heads, released, card, ledger, columns, basis)


def _plain(value: Any) -> Any:
    """Converts a parameter that is a NumPy scalar, such as an element of ``np.arange``, to a Python number.

    Raises:
        TypeError: If the value is not a NumPy scalar.
    """
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(
        f"cannot save {value!r} ({type(value).__name__}) as a parameter: expected a string, a number, True, False or None"
    )
