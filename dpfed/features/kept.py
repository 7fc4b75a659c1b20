"""Keeps features in a folder beside the record store, for later runs of the same user.

stores/mine/                     the store, which never changes
stores/mine.features/            mode 0700
    KEY/000000.safetensors       mode 0600, see `dpfed.features.cache`; KEY is a hash of all that the features depend on
    KEY.lock                     locked while a process computes or deletes the features in KEY/
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import shlex
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from dpfed.errors import UserError
from dpfed.files.locking import file_lock

_LOCK = ".lock"
_OURS = re.compile(r"[0-9a-f]{32}(\.lock)?")  # file systems leave names of their own here, such as .nfs0001 and .DS_Store


def place_of(store: str | Path) -> Path:
    """Returns the folder for the features of a store's records. The store need not exist any more."""
    path = Path(store).resolve()
    return path.with_name(f"{path.name}.features")


@contextlib.contextmanager
def claimed_features(place: Path, key: str, say: Callable[[str], None]) -> Iterator[Path]:
    """Locks the features of one key for this process. If another process holds the lock, this process waits for it.

    Args:
        place: Folder of all features of the store, see `place_of`. It is created if it is missing.
        key: Hash of all that the features depend on.
        say: Function that receives a sentence for the user before this process waits.

    Yields:
        The folder for the shards of these features, which may not exist yet.

    Raises:
        UserError: If `place` is not a folder, belongs to another user, gives other users any permission, or is on a file system
            without locks.
        OSError: If `place` cannot be created or written to.
    """
    with contextlib.suppress(FileExistsError):
        place.mkdir(mode=0o700)
    _refuse_open(place)
    lock = place / f"{key}{_LOCK}"
    lock.touch(mode=0o600)
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(file_lock(lock, f"another process computes the features in {place}."))
        except UserError as error:
            if error.code != "file-locked":
                raise
            say("waiting: another run computes the same features of frozen towers")
            held.enter_context(file_lock(lock, "", math.inf))
        yield place / key


def forget(store: str | Path) -> int:
    """Deletes all kept features of a store's records, and their folder. A run that has opened the files can still read them.

    If the folder contains anything else, such as a ``.DS_Store``, the folder and this content stay.

    Args:
        store: Path of the store, which may be deleted already.

    Returns:
        The size of the deleted features, bytes.

    Raises:
        UserError: If a process is computing features of the store, the path of the features is a link or a file, or the
            features cannot be deleted.
    """
    place = place_of(store)
    if not os.path.lexists(place):
        return 0
    if place.is_symlink() or not place.is_dir():
        what = "a link: check where it leads" if place.is_symlink() else "not a folder: check what it is"
        raise UserError(f"{place} is {what}, and remove it yourself. Nothing was deleted. [forget-no-folder]")
    taken = (
        f"a run is computing the features in {place}: wait until it has finished, or interrupt it, then repeat this command."
    )
    try:
        size = sum(file.stat().st_size for ours in _ours(place) for file in ours.rglob("*.safetensors"))
        for folder in sorted(_ours(place)):
            if folder.is_dir():
                lock = folder.with_name(f"{folder.name}{_LOCK}")
                with file_lock(lock, taken):
                    shutil.rmtree(folder)
                    lock.unlink(missing_ok=True)  # while this process holds the lock, so one that waits makes a new file
        for left in _ours(place):
            if left.suffix == _LOCK:
                with file_lock(left, taken):
                    left.unlink(missing_ok=True)
        if _ours(place) or not any(place.iterdir()):  # what others put there stays
            place.rmdir()  # fails if a run has made features meanwhile
    except OSError as error:
        raise UserError(
            f"cannot delete {place}, which reveals as much as the records ({error}): delete it yourself. [forget-failed]"
        ) from error
    return size


def _ours(place: Path) -> list[Path]:
    """Returns the folders of features and the locks in `place`."""
    return [path for path in place.iterdir() if _OURS.fullmatch(path.name)]


def _refuse_open(place: Path) -> None:
    """Refuses a folder that another user owns or can read: features reveal as much as the records.

    Raises:
        UserError: If `place` is not a folder, belongs to another user, or gives any permission to other users.
    """
    status = place.lstat()
    mode = stat.S_IMODE(status.st_mode)
    if not stat.S_ISDIR(status.st_mode):
        wrong = "is not a folder: move it away"
    elif status.st_uid != os.getuid():
        wrong = "belongs to another user: move it away, or let its owner run this command"
    elif mode & 0o077:
        wrong = f"has mode {mode:04o}: `chmod 700 {shlex.quote(str(place))}` sets the right mode"
    else:
        return
    raise UserError(f"{place} must be a folder that only this user can read, but it {wrong}. [features-place]")
