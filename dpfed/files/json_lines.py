"""Files of JSON lines that only grow: a ledger, a journal, metrics. A crash can cut the last line short, and no other."""

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
    """What a file of JSON lines holds.

    Attributes:
        entries: of its complete lines, in order.
        end: bytes up to the end of the last complete line.
        size: bytes of the whole file.
    """

    entries: list[dict[str, Any]]
    end: int = 0
    size: int = 0

    @property
    def torn(self) -> bool:
        """Whether more follows, without a newline. What such a line means, the caller must know."""
        return self.size > self.end


class DamagedLine(Exception):
    """A complete line is not a JSON object, or none that a reader expects.

    Attributes:
        number: of the line, from 1.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"line {number} does not belong there")
        self.number = number


class GrewElsewhere(Exception):
    """A file does not end where this process saw it end last."""


def read_lines(path: Path) -> Lines:
    """Reads the complete lines of a file.

    Raises:
        DamagedLine: at the first line that is not a JSON object, or at an incomplete one that no crash of ours can have left.
        OSError: if the file cannot be read.
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
    if rest.strip(b"\0") and not rest.startswith(b"{"):  # blocks that were never written read as zeros
        raise DamagedLine(len(entries) + 1)
    return Lines(entries, end, len(content))


def drop_torn_line(path: Path, lines: Lines) -> Lines:
    """Cuts off what follows the last complete line, so that the next line starts on a line of its own.

    Only who may write the file calls it. What looks torn to others may be a line that its writer has half written by now.

    Returns:
        What the file holds then.

    Raises:
        GrewElsewhere: if the file was written since it was read.
    """
    if lines.torn:
        if path.stat().st_size != lines.size:
            raise GrewElsewhere(path)
        os.truncate(path, lines.end)
    return Lines(lines.entries, lines.end, lines.end)


def append_line(path: Path, entry: dict[str, Any], end: int | None = None) -> int:
    """Adds a line, see `append_lines`."""
    return append_lines(path, [entry], end)


def append_lines(path: Path, entries: Sequence[dict[str, Any]], end: int | None = None) -> int:
    """Adds lines in one write; when this returns, they are on disk. If they cannot be written whole, nothing of them stays.

    A crash on the way can leave some of them, in order, and a part of one.

    Args:
        path: of the file, which is made if need be.
        entries: anything that is JSON, one for each line.
        end: where the file must end now, bytes.

    Returns:
        Where it ends then.

    Raises:
        GrewElsewhere: if it does not end at `end`; nothing is written.
        OSError: if it cannot be written.
    """
    content = "".join(json.dumps(entry) + "\n" for entry in entries).encode()
    with open(path, "ab", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if end is not None and size != end:
            raise GrewElsewhere(path)
        try:
            with naming(path):
                write_whole(file, content)
        except BaseException:  # a full disk takes a part of them; the next line must not follow on it
            with contextlib.suppress(OSError):
                os.ftruncate(file.fileno(), size)
            raise
    if not size:
        sync_folder(path.parent)  # the file may be new
    return size + len(content)
