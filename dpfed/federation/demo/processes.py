"""Processes that belong together: started with logs of their own, killed one by one for tests, and all gone at the end."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from dpfed.paths import without_proxy

_MARK = "DPFED_PROCESSES"  # in the environment of all of them and of what they start
_GRACE = 10.0  # seconds that a process may take to end by itself


class Processes:
    """Named processes, each with its log. Use `processes()`, which ends them.

    Args:
        logs: folder for their outputs; made if it is not there.
    """

    def __init__(self, logs: Path) -> None:
        logs.mkdir(parents=True, exist_ok=True)
        self._logs = logs
        self._mark = secrets.token_hex(8)
        self._members: dict[str, subprocess.Popen[bytes]] = {}
        self._starts: dict[str, int] = {}  # where in its log a process's present life begins

    def start(self, name: str, command: Sequence[object], environment: Mapping[str, str] | None = None) -> None:
        """Starts a process.

        Args:
            name: what `kill` and `log` call it; free again when the process has ended.
            command: program and arguments. Programs of this Python environment come first.
            environment: on top of this process's own.

        Raises:
            ValueError: if a process of that name still runs.
        """
        if self.running(name):
            raise ValueError(f"{name} runs already")
        base = self.environment()
        program = shutil.which(str(command[0]), path=base["PATH"]) or str(command[0])
        with self.log(name).open("ab") as log:
            self._starts[name] = log.tell()
            self._members[name] = subprocess.Popen(
                [program, *map(str, command[1:])],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**base, **(environment or {}), _MARK: f"{self._mark}/{name}"},
                start_new_session=True,  # a group of its own, and no part of the terminal's
            )

    def environment(self) -> dict[str, str]:
        """What a process starts with: programs of this Python environment come first, and no settings of Flower's."""
        own = {name: value for name, value in os.environ.items() if not name.startswith("FLWR_")}
        path = f"{Path(sys.executable).parent}{os.pathsep}{own.get('PATH', os.defpath)}"
        return {**own, **without_proxy(own), "PATH": path, "PYTHONUNBUFFERED": "1"}

    def log(self, name: str) -> Path:
        """Where a process writes."""
        return self._logs / f"{name}.log"

    def text(self, name: str) -> str:
        """What a process has written since it was last started."""
        return self.log(name).read_bytes()[self._starts[name] :].decode(errors="replace")

    def follow(self, name: str) -> Iterator[str]:
        """What a process writes, as it comes, until it ends."""
        with self.log(name).open(errors="replace") as log:
            log.seek(self._starts[name])
            running = True
            while running:
                running = self.running(name)
                yield from log
                time.sleep(0.1)

    def running(self, name: str) -> bool:
        """Whether a process has been started and has not ended."""
        return name in self._members and self._members[name].poll() is None

    def pid(self, name: str) -> int:
        """Process id of a process that was started."""
        return self._members[name].pid

    def wait(self, name: str, seconds: float) -> int:
        """Exit code of a process.

        Raises:
            subprocess.TimeoutExpired: if it has not ended after so many seconds.
        """
        return self._members[name].wait(seconds)

    def wait_for(self, name: str, text: str, seconds: float) -> None:
        """Returns when a process has written a text.

        Raises:
            RuntimeError: if it ends before, or takes longer; with the end of its log.
        """
        deadline = time.monotonic() + seconds
        while text not in self.text(name):
            if not self.running(name) or time.monotonic() > deadline:
                what = f"did not write {text!r} in {seconds:g} s" if self.running(name) else f"ended before it wrote {text!r}"
                raise RuntimeError(f"{name} {what}. The end of its log:\n{self.text(name)[-2000:]}")
            time.sleep(0.05)

    def stop(self, name: str) -> None:
        """Asks a process to end (SIGTERM), and kills what is left of it."""
        if self.running(name):
            self._members[name].terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._members[name].wait(_GRACE)
        self.kill(name)

    def kill(self, name: str) -> None:
        """Kills a process and everything that it started (SIGKILL)."""
        if name not in self._members:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._members[name].pid, signal.SIGKILL)
        self._members[name].wait()
        while left := self.descendants(name):
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)

    def descendants(self, name: str, program: str = "") -> list[int]:
        """Process ids of what a process started and what that started, as far as the system tells (Linux).

        Args:
            name: of the process.
            program: a part of the command line; default: all.
        """
        mark = f"{_MARK}={self._mark}/{name}".encode()
        return [pid for pid in _running(lambda each: each == mark, program) if pid != self._members[name].pid]

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Within it, all of them are killed if this process is killed itself, and cannot end them any more (Linux)."""
        command = [sys.executable, __file__, self._mark]
        with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True):  # it reads until nobody writes any more
            yield

    def close(self) -> None:
        """Ends all: those that were started last first. Together they have the time that one may take."""
        names = [name for name in reversed(self._members) if self.running(name)]
        for name in names:
            self._members[name].terminate()
        until = time.monotonic() + _GRACE
        for name in names:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._members[name].wait(max(0.0, until - time.monotonic()))
        for name in reversed(self._members):
            self.kill(name)


@contextlib.contextmanager
def processes(logs: Path) -> Iterator[Processes]:
    """Processes that end when the block does, also by Ctrl-C or when this process is told to end (SIGTERM), or is killed."""
    members = Processes(logs)
    with _answering(), members.guarded():  # whose process kills what is left if impatience cuts the end short
        try:
            yield members
        finally:
            members.close()


@contextlib.contextmanager
def _answering() -> Iterator[None]:
    """Within it, SIGTERM raises SystemExit, unless it is answered already, as in a command of dpfed (`interruptible`)."""
    main = threading.current_thread() is threading.main_thread()  # only there can a handler be set
    unanswered = main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if unanswered:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        yield
    finally:
        if unanswered:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _running(wanted: Callable[[bytes], bool], program: str = "") -> list[int]:
    """Process ids by a setting in the environment, and by a part of the command line."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            is_wanted = any(map(wanted, (folder / "environ").read_bytes().split(b"\0")))
            if is_wanted and program.encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found


def _guard(mark: str) -> None:
    """Waits until the process that started this one is gone, and kills what is left of its processes."""
    sys.stdin.buffer.read()
    start = f"{_MARK}={mark}/".encode()
    while left := _running(lambda each: each.startswith(start)):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


if __name__ == "__main__":
    _guard(sys.argv[1])
