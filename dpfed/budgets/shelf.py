"""Where the copies of a budget's book lie, and whose they are: one in the store, one on this user's shelf.

The shelf is a folder of this user (or one that DPFED_BUDGETS names). It knows every budget that was set or met here. So a store
is recognised that was copied, whose book was removed, or whose book is older than the last run: by the fingerprint of its
records, which a copy keeps, and by the names of its training records (hashed with a secret of the shelf), which an import that
is done again keeps. What two copies know together counts, and each is given what it lacks.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpfed.budgets.book import Book
from dpfed.budgets.copies import read, write_missing
from dpfed.data.store.records import RecordStore
from dpfed.errors import UserError
from dpfed.files.atomic import write_atomically
from dpfed.files.locking import file_lock
from dpfed.files.reading import read_bytes, read_text
from dpfed.privacy.randomness import KEY_BYTES, Randomness

BOOK = "budget.jsonl"
_LOCK = ".budget.lock"
_FOLDER = "DPFED_BUDGETS"
_SAMPLE = 256  # hashed names that the shelf keeps of a record set, the smallest
_WAIT = 60.0  # seconds for another process; what is done under a lock takes less than one


@dataclass(frozen=True)
class Found:
    """A budget that holds for a store.

    Attributes:
        book: what its copies say together.
        missing: the store has no copy, although it should.
        by_name: the share of the budget's records whose names are in the store, where nothing else tells that it is theirs.
    """

    book: Book
    missing: bool
    by_name: float | None = None


def shelf() -> Path:
    """The folder in which this user's budgets are known."""
    if given := os.environ.get(_FOLDER):
        return Path(given).expanduser().absolute()
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser().absolute() / "dpfed" / "budgets"


def possible(store: Path) -> bool:
    """Whether there may be a budget for the records of a store; answers without opening it."""
    return (store / BOOK).exists() or any(shelf().glob("*.jsonl"))


def budgets_of(store: RecordStore) -> list[Found]:
    """The budgets that hold for a store's records, as far as it can be known here. Nothing is written.

    Raises:
        UserError: for a damaged book, or one that is of other records.
    """
    if not possible(store.path):
        return []
    own, known = read(store.path / BOOK), _on_shelf()
    if own is not None and own.head.fingerprint != store.contents:
        raise UserError(
            f"{store.path / BOOK} is the book of other records than those of {store.path}: move it back to where it belongs."
        )
    books = {id: _together(book, own if own is not None and own.head.id == id else None) for id, book in known.items()}
    if own is not None:
        books.setdefault(own.head.id, own)
    names, found = _Names.of(store) if _samples() else None, []
    for id, book in books.items():
        if own is not None and own.head.id == id:
            found.append(Found(book, missing=False))
        elif store.contents is not None and book.head.fingerprint == store.contents:
            found.append(Found(book, missing=True))
        elif names is not None and (share := names.share_of(id)):
            found.append(Found(book, missing=False, by_name=share))
    own_ids = {one.book.head.id for one in found if one.by_name is None}
    distinct = {id for one in found if one.by_name is None for id in one.book.head.distinct}
    distinct |= {one.book.head.id for one in found if own_ids & one.book.head.distinct.keys()}
    return [one for one in found if one.by_name is None or one.book.head.id not in distinct]


@contextlib.contextmanager
def opened(store: RecordStore) -> Iterator[list[Found]]:
    """The same, held for this process alone until the ``with`` block ends; see `keep`.

    Raises:
        UserError: see `budgets_of`; if the copies cannot be locked or written.
    """
    if not budgets_of(store):  # so nothing is written to a store that no budget holds for
        yield []
        return
    with held(store.path):
        yield budgets_of(store)


@contextlib.contextmanager
def held(store: Path | None) -> Iterator[None]:
    """Holds a store's book, and the shelf, for this process. Always in this order, so that nobody waits in a circle."""
    taken = "another process has been writing the budget for a minute: try again when it has ended."
    folder = shelf()
    with contextlib.ExitStack() as stack:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if store is not None:
                stack.enter_context(file_lock(store / _LOCK, taken, _WAIT))
            stack.enter_context(file_lock(folder / ".lock", taken, _WAIT))
        except OSError as error:
            raise UserError(
                f"{error.filename or folder}: {error.strerror or error}. A budget's book is written into the store and onto "
                f"the shelf {folder} (${_FOLDER} names another) before anything is spent: make both writable."
            ) from error
        yield


def keep(book: Book, store: RecordStore | None) -> None:
    """Writes a book to its copies: to the shelf first, then to the store that it belongs to.

    Args:
        book: all that they should hold; `held` by the caller.
        store: a store of the budget's own records, or a copy of it; ``None``: none is at hand, or it only shares names.

    Raises:
        UserError: if a copy cannot be written.
    """
    folder, id = shelf(), book.head.id
    write_missing(folder / f"{id}.jsonl", book)
    if store is None:
        return
    try:
        _Names.of(store).keep(id)
    except OSError as error:
        raise UserError(f"the shelf {folder} cannot be written: {error.strerror or error}.") from error
    own = read(store.path / BOOK)
    if own is None or own.head.id == id:
        write_missing(store.path / BOOK, book)


def known_by(id: str, store: Path | None = None) -> Book | None:
    """A budget by its id, as the shelf knows it, and a store.

    Args:
        id: of the budget.
        store: a folder that may have a copy; it need not be a store any more.
    """
    book, own = read(shelf() / f"{id}.jsonl"), read(store / BOOK) if store else None
    if own is None or own.head.id != id:
        return book
    return own if book is None else _together(book, own)


def _on_shelf() -> dict[str, Book]:
    books: dict[str, Book] = {}
    for path in sorted(shelf().glob("*.jsonl")):
        if (book := read(path)) is not None:  # somebody may have put a copy beside it
            books[book.head.id] = _together(book, books.get(book.head.id))
    return books


def _together(first: Book, second: Book | None) -> Book:
    if second is None:
        return first
    if second.head != first.head:
        raise UserError(
            f"two copies of the budget {first.head.id} begin otherwise (on the shelf {shelf()} and in the store "
            f"{second.head.store}): one was changed. Restore it from a backup."
        )
    return first.with_entries(first.lacks(second))


class _Names:
    """The names of a store's training records, hashed with the shelf's secret."""

    def __init__(self, hashed: np.ndarray, public: bool) -> None:
        self._hashed, self._public = hashed, public

    @classmethod
    def of(cls, store: RecordStore) -> _Names:
        keys = store.keys[store.split("train")]
        return cls(np.sort(_secret().per_record("budget", 0, keys, 1)[:, 0]), store.public)

    def keep(self, id: str) -> None:
        """Notes the smallest hashes as a budget's.

        Public records are known by their fingerprint, which an import done again keeps. Generated ones share their names.
        """
        path = _sample_of(id)
        if not self._public and not path.exists():
            write_atomically(path, json.dumps(self._hashed[:_SAMPLE].tolist()) + "\n", mode=0o600)

    def share_of(self, id: str) -> float:
        """The share of a budget's records that are among these, by their names."""
        path = _sample_of(id)
        if not path.exists():
            return 0.0
        try:
            sample = np.array(json.loads(read_text(path)), np.float64)
        except (OSError, ValueError) as error:
            raise UserError(f"{path} is damaged ({error}): remove it; the next run on the budget's store writes it.") from error
        return float(np.isin(sample, self._hashed).mean()) if len(sample) else 0.0


def _samples() -> bool:
    return any(shelf().glob("*.names.json"))


def _sample_of(id: str) -> Path:
    return shelf() / f"{id}.names.json"


def _secret() -> Randomness:
    """What names are hashed with; made with the first of them, while the shelf is held."""
    path = shelf() / "secret.key"
    if not path.exists() and not _samples():
        write_atomically(path, secrets.token_bytes(KEY_BYTES), mode=0o600)
    try:
        key = read_bytes(path)
    except FileNotFoundError:
        key = b""
    if len(key) != KEY_BYTES:
        raise UserError(f"{path} is missing or damaged: restore it, or remove it with all files `*.names.json` beside it.")
    return Randomness(key)
