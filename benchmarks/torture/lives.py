"""A run as a process that dies on the way: killed from outside, between two file operations, or inside a write.

The processes are forked from one that has imported everything, so a life begins at once. Each calls the command line.
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
    """A life ended in another way than it was meant to."""


@dataclass(frozen=True)
class Clock:
    """SIGKILL from outside, so many seconds after the beginning."""

    seconds: float

    def arm(self, folder: Path) -> None:
        """Nothing to prepare in the process itself."""


@dataclass(frozen=True)
class Operation:
    """SIGKILL just before the n-th time that a file of the run is opened for writing, renamed, removed or made."""

    number: int

    def arm(self, folder: Path) -> None:
        """Counts in this process, by Python's audit events."""
        left = itertools.count(1)

        def count(event: str, arguments: tuple[Any, ...]) -> None:
            if _is_write(event, arguments, str(folder)) and next(left) == self.number:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)


@dataclass(frozen=True)
class Tally:
    """No death: counts what an `Operation` counts, and keeps the number in a file."""

    file: Path

    def arm(self, folder: Path) -> None:
        """Counts in this process."""
        descriptor, number = os.open(self.file, os.O_WRONLY | os.O_CREAT), itertools.count(1)

        def count(event: str, arguments: tuple[Any, ...]) -> None:
            if _is_write(event, arguments, str(folder)):
                os.pwrite(descriptor, str(next(number)).encode(), 0)

        sys.addaudithook(count)


@dataclass(frozen=True)
class Bytes:
    """The kernel ends the process inside a write: the one with which a file would grow beyond so many bytes (SIGXFSZ)."""

    limit: int

    def arm(self, folder: Path) -> None:
        """Sets the limit for this process."""
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.limit, self.limit))


@dataclass(frozen=True)
class Quota:
    """No death: the kernel refuses to let a file grow beyond so many bytes, in the middle of a write."""

    limit: int

    def arm(self, folder: Path) -> None:
        """Sets the limit for this process."""
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.limit, self.limit))


Death = Clock | Operation | Bytes | Tally | Quota


@dataclass(frozen=True)
class End:
    """How a life ended.

    Attributes:
        code: of the process; negative: the signal that ended it.
        text: what it printed.
        seconds: it took.
    """

    code: int
    text: str
    seconds: float

    @property
    def killed(self) -> bool:
        """Whether a signal ended it."""
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
        words: of the command line.
        folder: of the run.
        output: file for what is printed.
        death: how the process is to die, if it comes that far.
        meanwhile: called over and over with the seconds since the beginning, until it returns False.
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
    """Gives up what lets root write where nobody may write, so that a read-only folder is one."""
    if os.geteuid() == 0:
        header, data = (ctypes.c_uint32 * 2)(_CAPABILITIES, 0), (ctypes.c_uint32 * 6)()
        if ctypes.CDLL(None, use_errno=True).capset(header, data):
            raise OSError(ctypes.get_errno(), "cannot give up root's capabilities")


def _is_write(event: str, arguments: tuple[Any, ...], folder: str) -> bool:
    """Whether an audit event changes something at a path of the run; one that is relative to an open folder counts."""
    if event == "open":
        path, mode, flags = arguments
        writes = bool(set(mode) & set("wax+")) if isinstance(mode, str) else bool(flags & _WRITING)
        return writes and folder in str(path)
    if event in ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate"):
        return any(folder in str(part) for part in arguments[:2]) or arguments[-1] not in (-1, None)
    return False
