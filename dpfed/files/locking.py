"""A lock on a file: one process holds it, and the operating system lets it go when that process ends, however it ends."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from dpfed.errors import UserError
from dpfed.files.reading import read_text

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_LOCKS = Path("/proc/locks")  # of Linux: `TYPE  ADVISORY  WRITE process device:inode ...`


@functools.cache
def _here() -> str:
    """Names what shares its locks with this process: this machine since its start, this container; "" where nothing tells."""
    try:
        return hashlib.sha256(f"{_BOOT.read_text()}/{os.readlink('/proc/self/ns/pid')}".encode()).hexdigest()[:16]
    except OSError:
        return ""


def _holder(path: Path) -> Path:
    return path.with_name(f"{path.name}-holder")


def _last_holder(path: Path) -> str:
    """Where the last holder of a lock was; "" where nobody noted it."""
    try:
        return read_text(_holder(path))
    except (OSError, ValueError):
        return ""


def _open_plain(path: str, flags: int) -> int:
    """Opens a file; no link is followed, and no pipe waits for a reader."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


@contextlib.contextmanager
def noted_lock(path: Path, taken: str, wait: float = 0.0) -> Iterator[None]:
    """The same as `file_lock`, for a lock that `is_held` is asked about: it notes beside the file where the holder is."""
    with file_lock(path, taken, wait):
        if (here := _here()) and _last_holder(path) != here:
            with contextlib.suppress(OSError):  # such as a full disk: nobody can tell then
                with open(_holder(path), "w", encoding="ascii", opener=_open_plain) as file:
                    file.write(here)
        yield


@contextlib.contextmanager
def file_lock(path: Path, taken: str, wait: float = 0.0) -> Iterator[None]:
    """Holds a lock for this process. Processes that it forks or starts do not hold it.

    It is the lock of ``flock``, so programs that take that one are kept out, too.

    Args:
        path: of the file; it is made if need be. What is in it stays, and so does the file.
        taken: what to say when another process holds the lock.
        wait: seconds to wait for it; infinity: for as long as it takes.

    Raises:
        UserError: if another process holds the lock, the storage has no locks, or something else than a file lies there, such
            as a link to a file of somebody else.
        OSError: if the file cannot be opened.
    """
    with contextlib.suppress(FileNotFoundError):
        if not (stat.S_ISREG(mode := path.lstat().st_mode) or stat.S_ISDIR(mode)):
            raise UserError(
                f"dpfed takes a lock on {path}, which is no file but a link, a pipe or a device: remove it. [file-not-ordinary]"
            )
    # A file may hold more than a lock: the one of a run says which run it is. And a lock that is not more than a file that
    # exists, which filelock would take where the storage has no better, would outlive a process that is killed.
    lock = FileLock(path, preserve_lock_file=True, fallback_to_soft=False)
    try:
        lock.acquire(timeout=wait)
    except Timeout as error:
        raise UserError(f"{taken} [file-locked]") from error
    except OSError as error:
        if error.filename is not None:
            raise
        raise UserError(
            f"{path.parent} cannot be locked ({error.strerror}): put it on storage with file locks, or two processes might "
            "write to it at once. [file-no-locks]"
        ) from error
    try:
        yield
    finally:
        lock.release()


def is_held(path: Path) -> bool | None:
    """Whether a process holds a file's lock. It is only looked at: taking it would be in the way.

    Returns:
        ``None``: nobody can tell, such as where the last holder (`noted_lock`) was on another machine or in another container.
    """
    try:
        inode, lines = str(path.stat().st_ino), _LOCKS.read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return None
    held = (line.split() for line in lines if " FLOCK " in line and "->" not in line)  # an arrow: somebody waits for it
    if any(place.rpartition(":")[2] == inode for fields in held for place in fields if place.count(":") == 2):
        return True
    return False if _here() and _last_holder(path) == _here() else None
