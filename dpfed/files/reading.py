"""Reading whole files, and nothing that is not a file: a pipe would wait for ever, and a device may never end."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_regular(path: Path) -> BinaryIO:
    """Opens a regular file for reading.

    Raises:
        OSError: if there is none; for a folder, a pipe or a device at once, without waiting for who writes to it.
    """
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise OSError(errno.EINVAL, "no regular file (a pipe or a device); copy what it gives into a file", str(path))


def read_bytes(path: Path) -> bytes:
    """What a regular file holds; see `open_regular`."""
    with open_regular(path) as file:
        return file.read()


def read_text(path: Path) -> str:
    """What a regular file of UTF-8 text holds, its line ends as ``\\n``; see `open_regular`.

    Raises:
        UnicodeDecodeError: for other bytes.
    """
    return read_bytes(path).decode().replace("\r\n", "\n").replace("\r", "\n")


def require_regular(path: Path) -> None:
    """Refuses what is not a regular file, before a library opens it.

    Raises:
        OSError: see `open_regular`.
    """
    open_regular(path).close()
