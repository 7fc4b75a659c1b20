"""Runs the command line in processes that die: killed from outside, between two file operations, or inside a write.

Such a process is called a life here. The processes are forked from a process that has imported everything, so a life begins at
once.
"""

from __future__ import annotations

import ctypes
import itertools
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_FORK = multiprocessing.get_context("forkserver")
_FORK.set_forkserver_preload(
    ["dpfed.cli", "dpfed.console.terminal", "dpfed.runs.pretraining", "dpfed.runs.pretraining", "pandas"]
)
_PATIENCE = 300.0  # seconds that a life may take
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_CAPABILITIES = 0x20080522  # version 3 of Linux's interface


class Survived(Exception):
    """Raised when a life does not end in time."""


@dataclass(frozen=True)
class Clock:
    """Death by SIGKILL from outside, `seconds` after the start of the process."""

    seconds: float

    def arm(self, folder: Path) -> None:
        """Does nothing: the parent process sends the signal."""


@dataclass(frozen=True)
class Operation:
    """Death by SIGKILL just before the n-th time that a file of the run is opened for writing, renamed, removed or made."""

    number: int

    def arm(self, folder: Path) -> None:
        """Counts the operations in this process, by Python's audit events."""
        left = itertools.count(1)

        def count(event: str, arguments: tuple[Any, ...]) -> None:
            if _is_write(event, arguments, str(folder)) and next(left) == self.number:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)


@dataclass(frozen=True)
class Tally:
    """No death: counts the file operations that `Operation` counts, and writes the count into a file."""

    file: Path

    def arm(self, folder: Path) -> None:
        """Counts the operations in this process."""
        descriptor, number = os.open(self.file, os.O_WRONLY | os.O_CREAT), itertools.count(1)

        def count(event: str, arguments: tuple[Any, ...]) -> None:
            if _is_write(event, arguments, str(folder)):
                os.pwrite(descriptor, str(next(number)).encode(), 0)

        sys.addaudithook(count)


@dataclass(frozen=True)
class Bytes:
    """Death by SIGXFSZ inside the write that would make a file larger than `limit` bytes."""

    limit: int

    def arm(self, folder: Path) -> None:
        """Sets the limit for this process."""
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.limit, self.limit))


@dataclass(frozen=True)
class Quota:
    """No death: a write that would make a file larger than `limit` bytes fails in the middle."""

    limit: int

    def arm(self, folder: Path) -> None:
        """Sets the limit for this process."""
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.limit, self.limit))


Death = Clock | Operation | Bytes | Tally | Quota


@dataclass(frozen=True)
class End:
    """How a life ended.

    Attributes:
        code: Exit code of the process; negative: the number of the signal that ended the process.
        text: Output of the process.
        seconds: Duration of the process.
    """

    code: int
    text: str
    seconds: float

    @property
    def killed(self) -> bool:
        """Whether SIGKILL or SIGXFSZ ended the process."""
        return self.code in (-signal.SIGKILL, -signal.SIGXFSZ)


def live(
    words: list[object],
    folder: Path,
    output: Path,
    death: Death | None = None,
    meanwhile: Callable[[float], bool] | None = None,
) -> End:
    """Carries out a command line in a process of its own.

    Args:
        words: Words of the command line.
        folder: Folder of the run.
        output: File for the output of the process.
        death: Way in which the process is to die, unless it finishes before; ``None``: it is not killed.
        meanwhile: Function that is called again and again with the seconds since the start, until it returns ``False``.
    """
    process = _FORK.Process(target=_enter, args=([str(word) for word in words], folder, output, death))
    started = time.monotonic()
    process.start()
    try:
        while process.is_alive() and time.monotonic() - started < _PATIENCE:
            now = time.monotonic() - started
            if isinstance(death, Clock) and now >= death.seconds:
                process.kill()
            if meanwhile is not None and not meanwhile(now):
                meanwhile = None
            process.join(0.005)
        if process.is_alive():
            raise Survived(f"{words} did not end in {_PATIENCE:g} s:\n{output.read_text(errors='replace')}")
    finally:
        process.kill()
        process.join()
    return End(process.exitcode or 0, output.read_text(errors="replace"), time.monotonic() - started)


def _enter(words: list[str], folder: Path, output: Path, death: Death | None) -> None:
    import torch

    from dpfed.cli import main

    with open(output, "wb") as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
    torch.set_num_threads(1)
    _obey_permissions()
    if death is not None:
        death.arm(folder)
    sys.argv = ["dpfed", *words]
    main()


def _obey_permissions() -> None:
    """Gives up root's capabilities, with which this process could write into a read-only folder."""
    if os.geteuid() == 0:
        header, data = (ctypes.c_uint32 * 2)(_CAPABILITIES, 0), (ctypes.c_uint32 * 6)()
        if ctypes.CDLL(None, use_errno=True).capset(header, data):
            raise OSError(ctypes.get_errno(), "cannot give up root's capabilities")


def _is_write(event: str, arguments: tuple[Any, ...], folder: str) -> bool:
    """Returns whether an audit event changes a file of the run.

    An event whose path is relative to a folder's descriptor counts, too.
    """
    if event == "open":
        path, mode, flags = arguments
        writes = bool(set(mode) & set("wax+")) if isinstance(mode, str) else bool(flags & _WRITING)
        return writes and folder in str(path)
    if event in ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate"):
        return any(folder in str(part) for part in arguments[:2]) or arguments[-1] not in (-1, None)
    return False
