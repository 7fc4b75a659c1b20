"""Reads whole regular files. Other files are refused: reading a pipe may wait for ever, and a device may never end."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_regular(path: Path) -> BinaryIO:
    """Opens a regular file for reading.

    Raises:
        OSError: If the file does not exist or may not be read, or is a folder, a pipe or a device. The function does not wait
            for a pipe's writer.
    """
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise OSError(errno.EINVAL, "not a regular file (a pipe or a device); copy its content into a regular file", str(path))


def read_bytes(path: Path) -> bytes:
    """Returns the content of a regular file; see `open_regular` for errors."""
    with open_regular(path) as file:
        return file.read()


def read_text(path: Path) -> str:
    """Returns the content of a regular file of UTF-8 text, with line ends as ``\\n``; see `open_regular` for other errors.

    Raises:
        UnicodeDecodeError: If the content is not UTF-8.
    """
    return read_bytes(path).decode().replace("\r\n", "\n").replace("\r", "\n")


def require_regular(path: Path) -> None:
    """Refuses a path that is not a regular file, before a library opens it.

    Raises:
        OSError: If the path is not a regular file, see `open_regular`.
    """
    open_regular(path).close()
