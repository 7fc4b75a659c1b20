"""A group of processes, each with its own log. Tests can kill them one by one; all of them end with the group."""

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

_MARK = "DPFED_PROCESSES"  # in the environment of all these processes and of their descendants
_GRACE = 10.0  # seconds that a process may take to end after SIGTERM


class Processes:
    """Named processes, each with its log. Use `processes()`, which ends them.

    Args:
        logs: Folder for the outputs of the processes; made if it does not exist.
    """

    def __init__(self, logs: Path) -> None:
        logs.mkdir(parents=True, exist_ok=True)
        self._logs = logs
        self._mark = secrets.token_hex(8)
        self._members: dict[str, subprocess.Popen[bytes]] = {}
        self._starts: dict[str, int] = {}  # position in the log at which a process was last started

    def start(self, name: str, command: Sequence[object], environment: Mapping[str, str] | None = None) -> None:
        """Starts a process.

        Args:
            name: Name of the process, for `kill` and `log`; free again when the process has ended.
            command: Program and arguments. The program is looked up in this Python environment first, and then on PATH.
            environment: Variables in addition to those that the method `environment` returns; default: none.

        Raises:
            ValueError: If a process of that name still runs.
            OSError: If the program does not exist, or cannot be started.
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
                start_new_session=True,  # a process group of its own, apart from the terminal's
            )

    def environment(self) -> dict[str, str]:
        """Returns the environment variables of a new process.

        These are this process's own variables with four changes: Flower's variables (FLWR_*) are left out, this machine's
        addresses are reached without a proxy, PATH begins with the folder of this Python's programs, and Python does not
        buffer its output.
        """
        variables = {name: value for name, value in os.environ.items() if not name.startswith("FLWR_")}
        path = f"{Path(sys.executable).parent}{os.pathsep}{variables.get('PATH', os.defpath)}"
        return {**variables, **without_proxy(variables), "PATH": path, "PYTHONUNBUFFERED": "1"}

    def log(self, name: str) -> Path:
        """Returns the file of a process's log."""
        return self._logs / f"{name}.log"

    def text(self, name: str) -> str:
        """Returns the output of a process since it was last started."""
        return self.log(name).read_bytes()[self._starts[name] :].decode(errors="replace")

    def follow(self, name: str) -> Iterator[str]:
        """Yields the lines that a process writes, as they come, until it ends."""
        with self.log(name).open(errors="replace") as log:
            log.seek(self._starts[name])
            running = True
            while running:
                running = self.running(name)
                yield from log
                time.sleep(0.1)

    def running(self, name: str) -> bool:
        """Returns whether a process has been started and has not ended."""
        return name in self._members and self._members[name].poll() is None

    def pid(self, name: str) -> int:
        """Returns the process id of a process that was started."""
        return self._members[name].pid

    def wait(self, name: str, seconds: float) -> int:
        """Waits until a process has ended, and returns its exit code.

        Raises:
            subprocess.TimeoutExpired: If the process has not ended after `seconds`.
        """
        return self._members[name].wait(seconds)

    def wait_for(self, name: str, text: str, seconds: float) -> None:
        """Waits until a process has written a text.

        Raises:
            RuntimeError: If the process ends first, or takes longer than `seconds`; the message has the end of its log.
        """
        deadline = time.monotonic() + seconds
        while True:
            running = self.running(name)  # asked first: what a process writes before its end counts
            if text in self.text(name):
                return
            if not running or time.monotonic() > deadline:
                what = f"did not write {text!r} in {seconds:g} s" if running else f"ended before it wrote {text!r}"
                raise RuntimeError(f"{name} {what}. The end of its log:\n{self.text(name)[-2000:]}")
            time.sleep(0.05)

    def stop(self, name: str) -> None:
        """Asks a process to end (SIGTERM), then kills it and everything that it started."""
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
        """Returns the process ids of all descendants of a process, as far as the system tells (Linux).

        Args:
            name: Name of the process.
            program: Text that a descendant's command line must contain; default: all descendants are returned.
        """
        mark = f"{_MARK}={self._mark}/{name}".encode()
        return [pid for pid in _running(lambda each: each == mark, program) if pid != self._members[name].pid]

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Makes sure that all processes are killed if this process is killed within the block and cannot end them (Linux)."""
        command = [sys.executable, __file__, self._mark]
        with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True):  # reads until this process is gone
            yield

    def close(self) -> None:
        """Ends all processes, the last started first. They share the time that `stop` gives to a single process."""
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
    """Provides a group of processes that end with the block, also if this process gets Ctrl-C or SIGTERM, or is killed.

    Args:
        logs: Folder for the processes' outputs.

    Yields:
        The group, without processes at first.
    """
    members = Processes(logs)
    with _answering(), members.guarded():  # the guard kills what is left if a signal cuts `close` short
        try:
            yield members
        finally:
            members.close()


@contextlib.contextmanager
def _answering() -> Iterator[None]:
    """Makes SIGTERM raise SystemExit within the block. Keeps an existing handler, such as that of dpfed's commands."""
    main = threading.current_thread() is threading.main_thread()  # only the main thread can set a handler
    unanswered = main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if unanswered:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        yield
    finally:
        if unanswered:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _running(wanted: Callable[[bytes], bool], program: str = "") -> list[int]:
    """Returns process ids, selected by an entry of the environment and by a part of the command line."""
    ids = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            is_wanted = any(map(wanted, (folder / "environ").read_bytes().split(b"\0")))
            if is_wanted and program.encode() in (folder / "cmdline").read_bytes():
                ids.append(int(folder.name))
    return ids


def _guard(mark: str) -> None:
    """Waits until the process that called `guarded` is gone, then kills processes with its mark in their environment."""
    sys.stdin.buffer.read()
    start = f"{_MARK}={mark}/".encode()
    while left := _running(lambda each: each.startswith(start)):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


if __name__ == "__main__":
    _guard(sys.argv[1])
