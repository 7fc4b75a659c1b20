"""Locks files: one process holds a lock, and the operating system releases it when that process ends, however it ends."""

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
    """Returns an id of the machine's boot and the container; processes with the same id see the same locks; empty: unknown."""
    try:
        return hashlib.sha256(f"{_BOOT.read_text()}/{os.readlink('/proc/self/ns/pid')}".encode()).hexdigest()[:16]
    except OSError:
        return ""


def _holder(path: Path) -> Path:
    return path.with_name(f"{path.name}-holder")


def _last_holder(path: Path) -> str:
    """Returns the id (`_here`) of the machine and container where the last holder of a lock ran; empty if it was not noted."""
    try:
        return read_text(_holder(path))
    except (OSError, ValueError):
        return ""


def _open_plain(path: str, flags: int) -> int:
    """Opens a file. It follows no link, and does not wait for a reader if the file is a pipe."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


@contextlib.contextmanager
def noted_lock(path: Path, taken: str, wait: float = 0.0) -> Iterator[None]:
    """Holds a lock like `file_lock`, and notes beside the file which machine and container holds it, for `is_held`."""
    with file_lock(path, taken, wait):
        if (here := _here()) and _last_holder(path) != here:
            with contextlib.suppress(OSError):  # such as a full disk: `is_held` then returns None
                with open(_holder(path), "w", encoding="ascii", opener=_open_plain) as file:
                    file.write(here)
        yield


@contextlib.contextmanager
def file_lock(path: Path, taken: str, wait: float = 0.0) -> Iterator[None]:
    """Holds a lock for this process during the ``with`` block. Processes that this process forks or starts do not hold it.

    The lock is that of ``flock``, so it also excludes other programs that use ``flock``.

    Args:
        path: Path of the file, which is made if it does not exist. The lock does not change its content, and the file stays
            afterwards.
        taken: Message of the error if another process holds the lock.
        wait: Seconds to wait for the lock; infinity: without a limit.

    Raises:
        UserError: If another process holds the lock, the storage has no locks, or the path is a link (for example to another
            user's file), a pipe or a device.
        OSError: If the file cannot be opened.
    """
    with contextlib.suppress(FileNotFoundError):
        if not (stat.S_ISREG(mode := path.lstat().st_mode) or stat.S_ISDIR(mode)):
            raise UserError(
                f"dpfed takes a lock on {path}, which is a link, a pipe or a device, not a file: remove {path}. "
                "[file-not-ordinary]"
            )
    # The file may have content: a run's lock file says which run it is. A soft lock, a file whose existence is the lock, would
    # outlive a process that is killed; filelock would fall back to it where the storage has no locks.
    lock = FileLock(path, preserve_lock_file=True, fallback_to_soft=False)
    try:
        lock.acquire(timeout=wait)
    except Timeout as error:
        raise UserError(f"{taken} [file-locked]") from error
    except OSError as error:
        if error.filename is not None:
            raise
        raise UserError(
            f"{path.parent} cannot be locked ({error.strerror}): put it on storage with file locks. Without "
            "locks, two processes might write to it at once. [file-no-locks]"
        ) from error
    try:
        yield
    finally:
        lock.release()


def is_held(path: Path) -> bool | None:
    """Returns whether a process holds a file's lock. The function does not take the lock, so it blocks no other process.

    Returns:
        Whether the lock is held; ``None`` if that is unknown, for example because the last holder (`noted_lock`) ran on
        another machine or in another container.
    """
    try:
        inode, lines = str(path.stat().st_ino), _LOCKS.read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return None
    held = (line.split() for line in lines if " FLOCK " in line and "->" not in line)  # "->": a process that waits
    if any(place.rpartition(":")[2] == inode for fields in held for place in fields if place.count(":") == 2):
        return True
    return False if _here() and _last_holder(path) == _here() else None
