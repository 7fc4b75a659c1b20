"""Features that stay: a folder beside the record store, from which every later run of the same owner takes them.

stores/mine/                     the store, never changed
stores/mine.features/            mode 0700
    KEY/000000.safetensors       mode 0600, see `dpfed.features.cache`; KEY names all that the features depend on
    KEY.lock                     held while a process computes or deletes them
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from dpfed.errors import UserError
from dpfed.files.locking import file_lock

_LOCK = ".lock"


def place_of(store: str | Path) -> Path:
    """The folder for the features of a store's records; the store itself may be gone."""
    path = Path(store).resolve()
    return path.with_name(f"{path.name}.features")


@contextlib.contextmanager
def claimed_features(place: Path, key: str, say: Callable[[str], None]) -> Iterator[Path]:
    """Holds the features of one key for this process; another one that computes them is waited for, for as long as it takes.

    Args:
        place: see `place_of`; it is made if need be.
        key: names all that the features depend on.
        say: told that there is something to wait for.

    Yields:
        The folder of their shards, which may not be there.

    Raises:
        UserError: if somebody else owns the place, or could read it, or its storage has no locks.
        OSError: if nothing can be written there.
    """
    place.mkdir(mode=0o700, exist_ok=True)
    _refuse_open(place)
    lock = place / f"{key}{_LOCK}"
    lock.touch(mode=0o600)
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(file_lock(lock, f"another process computes the features in {place}."))
        except UserError as error:
            if error.code != "file-locked":
                raise
            say("another run computes the same features of frozen towers: waiting for them")
            held.enter_context(file_lock(lock, "", math.inf))
        yield place / key


def forget(store: str | Path) -> int:
    """Deletes all features of a store's records. A run that has read them goes on with what it holds open.

    Args:
        store: the path of the store, which may be gone itself.

    Returns:
        Their bytes.

    Raises:
        UserError: if a process computes some at this moment, or they cannot be deleted.
    """
    place = place_of(store)
    if not os.path.lexists(place):
        return 0
    if place.is_symlink() or not place.is_dir():
        raise UserError(f"{place} is not a folder: nothing was deleted. Look what it is. [forget-no-folder]")
    size = sum(file.stat().st_size for file in place.rglob("*.safetensors"))
    taken = f"a run computes the features in {place}: wait until it has, or interrupt it; the same command then deletes them."
    try:
        for folder in sorted(place.iterdir()):
            if folder.is_dir():
                lock = folder.with_name(f"{folder.name}{_LOCK}")
                with file_lock(lock, taken):
                    shutil.rmtree(folder)
                    lock.unlink(missing_ok=True)  # while it is held: whoever waits for it takes a new one
        for left in place.glob(f"*{_LOCK}"):
            with file_lock(left, taken):
                left.unlink(missing_ok=True)
        place.rmdir()
    except OSError as error:
        raise UserError(f"cannot delete {place}, which reveals as much as the records: {error}. [forget-failed]") from error
    return size


def _refuse_open(place: Path) -> None:
    """Refuses a folder of somebody else, or one that others could read: features reveal as much as the records.

    Raises:
        UserError: saying so.
    """
    found = place.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise UserError(f"{place} is not a folder of this user alone (mode 0700). [features-place]")
