"""Reads and appends files of JSON lines: ledgers, journals, metrics. A crash can truncate the last line, and no other."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpfed.files.atomic import naming, sync_folder, write_whole
from dpfed.files.reading import read_bytes


@dataclass(frozen=True)
class Lines:
    """The content of a file of JSON lines.

    Attributes:
        entries: Objects of the complete lines, in order.
        end: Number of bytes up to the end of the last complete line.
        size: Number of bytes of the whole file.
    """

    entries: list[dict[str, Any]]
    end: int = 0
    size: int = 0

    @property
    def torn(self) -> bool:
        """Whether an incomplete line (without a newline) follows the complete lines: left by a crash, or being written."""
        return self.size > self.end


class DamagedLine(Exception):
    """Raised for a line that is not a JSON object, or not an object that the reader expects.

    It is also raised for an incomplete last line that a crash of dpfed cannot have left.

    Attributes:
        number: Number of the line, from 1.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"line {number} does not belong there")
        self.number = number


class GrewElsewhere(Exception):
    """Raised if a file does not end where this process last saw it end."""


def read_lines(path: Path) -> Lines:
    """Reads the complete lines of a file.

    Raises:
        DamagedLine: If a line is not a JSON object, or the last, incomplete line is not what a crash of dpfed can leave.
        OSError: If the file cannot be read.
    """
    content = read_bytes(path)
    end = content.rfind(b"\n") + 1
    entries = []
    for number, line in enumerate(content[:end].splitlines(), start=1):
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            raise DamagedLine(number) from None
        if not isinstance(entry, dict):
            raise DamagedLine(number)
        entries.append(entry)
    rest = content[end:]
    if rest.strip(b"\0") and not rest.startswith(b"{"):  # disk blocks that were never written read as zeros
        raise DamagedLine(len(entries) + 1)
    return Lines(entries, end, len(content))


def drop_torn_line(path: Path, lines: Lines) -> Lines:
    """Cuts off an incomplete last line, so that the next entry starts on a line of its own.

    Only the process that writes the file may call this function. To other processes, a line that is just being written
    looks incomplete.

    Returns:
        The content of the file afterwards.

    Raises:
        GrewElsewhere: If the file was written since it was read.
        OSError: If the file cannot be truncated.
    """
    if lines.torn:
        if path.stat().st_size != lines.size:
            raise GrewElsewhere(path)
        os.truncate(path, lines.end)
    return Lines(lines.entries, lines.end, lines.end)


def append_line(path: Path, entry: dict[str, Any], end: int | None = None) -> int:
    """Appends one line, see `append_lines`."""
    return append_lines(path, [entry], end)


def append_lines(path: Path, entries: Sequence[dict[str, Any]], end: int | None = None) -> int:
    """Appends lines in one write. When the function returns, they are on disk. If the write fails, no part of them stays.

    A crash during the write can leave some of the lines complete, and a part of the next line.

    Args:
        path: Path of the file, which is made if it does not exist.
        entries: JSON objects, one for each line.
        end: Size that the file must have now, in bytes; ``None``: any.

    Returns:
        The size of the file afterwards, in bytes.

    Raises:
        GrewElsewhere: If the file does not end at `end`; nothing is written.
        OSError: If the lines cannot be written.
    """
    content = "".join(json.dumps(entry) + "\n" for entry in entries).encode()
    with open(path, "ab", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if end is not None and size != end:
            raise GrewElsewhere(path)
        try:
            with naming(path):
                write_whole(file, content)
        except BaseException:  # a full disk takes a part of a line; the next line must not continue it
            with contextlib.suppress(OSError):
                os.ftruncate(file.fileno(), size)
            raise
    if not size:
        sync_folder(path.parent)  # the file may be new
    return size + len(content)
