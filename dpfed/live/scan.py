"""Scans the runs and sites in a folder repeatedly. Files that have not changed are not read again."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from dpfed.data.reasons import visible
from dpfed.errors import UserError
from dpfed.files.locking import is_held
from dpfed.live.pace import pace_of_files
from dpfed.live.state import SITE, RunState, budget_files_outside, is_run, is_site, read
from dpfed.paths import path_of
from dpfed.progress import Throughput

_DEEP = 8  # levels below the given folder
_MOST = 1000  # folders that are searched, runs not counted: the search happens every second
_FRESH = 30.0  # a change that is more recent than this, in seconds, means that a process is running


@dataclass(frozen=True)
class Seen:
    """A run as it is now.

    Attributes:
        name: Name of the run in the list.
        run_state: State according to the run's files; ``None``: the files cannot be read.
        trouble: Reason why the files cannot be read, a sentence; empty: they can be read.
        state: ``finished``, ``running``, ``stopped`` (or running where this machine cannot see it), or ``damaged``.
        seconds: Seconds that a step takes; ``None``: not known, or the run is not running.
        left: Seconds until the last planned step is done; ``None``: not known, or the run is not running.
        last: Time at which the latest step ended, in seconds since the epoch; ``None``: not known, or the run is not running.
        elsewhere: Whether `state` is ``stopped`` only because this machine sees no process that works on the run, and cannot
            see other machines or containers.
    """

    name: str
    run_state: RunState | None
    trouble: str
    state: str
    seconds: float | None = None
    left: float | None = None
    last: float | None = None
    elsewhere: bool = False


class Scan:
    """Scanner of the runs in a folder.

    Attributes:
        left_out: Sentence about folders that the last scan did not search; empty: the scan searched all folders.

    Args:
        root: Folder of runs, a run, or a site's folder.
        clock: Function that returns the time in seconds since the epoch.

    Raises:
        UserError: If the folder does not exist.
    """

    def __init__(self, root: str | Path, clock: Callable[[], float] = time.time) -> None:
        self.root = path_of(root, "the folder of runs").absolute()
        if not self.root.is_dir():
            raise UserError(f"no folder {root}: expected a run, a folder of runs, or a site's folder. [watch-folder-missing]")
        self.left_out = ""
        self._clock, self._lock = clock, threading.Lock()
        self._kept: dict[str, tuple[object, RunState | None, str]] = {}
        self._paces: dict[str, Throughput] = {}

    @property
    def single(self) -> str | None:
        """The name of the run or site if the scanned folder itself is a run or site; otherwise ``None``."""
        return visible(self.root.name) if is_run(self.root) or is_site(self.root) else None

    def folders(self) -> dict[str, Path]:
        """Returns the folders of runs and sites by name, in the order of their names."""
        if self.single is not None:
            return {self.single: self.root}
        paths, self.left_out = _below(self.root)
        return {visible(path.relative_to(self.root).as_posix()): path for path in sorted(paths)}

    def all(self) -> list[Seen]:
        """Returns every run as it is now."""
        return [self._look(name, folder) for name, folder in self.folders().items()]

    def one(self, name: str) -> Seen | None:
        """Returns a run as it is now; ``None`` if `folders` has no run of that name. A name such as ``../x`` finds nothing."""
        folder = self.folders().get(name)
        return None if folder is None else self._look(name, folder)

    def _look(self, name: str, folder: Path) -> Seen:
        with self._lock:
            signature = _signature(folder / file for file in _READ)
            held = is_held(folder / ".lock")
            running = self._fresh(signature) if held is None else held
            mark = (running, signature, _changed_outside(folder))
            if name not in self._kept or self._kept[name][0] != mark:
                self._kept[name] = (mark, *_read(folder, name, running))
            _, run_state, trouble = self._kept[name]
            if run_state is None:
                return Seen(name, None, trouble, "damaged")
            if run_state.finished:
                return Seen(name, run_state, "", "finished")
            if name not in self._paces:
                self._paces[name] = pace_of_files(folder, run_state.ledger)
            throughput = self._paces[name]
            if (ledger := run_state.ledger) is not None and run_state.done:
                throughput.see(run_state.done, ledger.path.stat().st_mtime, len(ledger.repeated_after))
            if not running:
                return Seen(name, run_state, "", "stopped", elsewhere=held is None)
            left = throughput.left(run_state.planned - run_state.done)
            return Seen(name, run_state, "", "running", throughput.seconds, left, throughput.last)

    def _fresh(self, signature: dict[Path, tuple[int, int]]) -> bool:
        """Returns whether a file was written in the last 30 seconds, as a sign that a process is running.

        This test replaces the test of the lock if another machine or container may hold the lock. A time far in the future does
        not count: this machine's clock was set back, or the other machine's clock is wrong.
        """
        times = [time for time, _ in signature.values()]
        return bool(times) and abs(self._clock() - max(times) / 1e9) < _FRESH


def at_work_first(seen: Iterable[Seen]) -> list[Seen]:
    """Returns runs in the order in which a list shows them: running runs first."""
    return sorted(seen, key=lambda run: run.state != "running")


def _below(root: Path) -> tuple[list[Path], str]:
    """Returns the runs and sites below a folder, and a sentence about folders that were not searched.

    Links are not followed. Hidden folders, such as drafts, are ignored.
    """
    runs: list[Path] = []
    level, looked, deep = [root], 0, 0
    while level and deep < _DEEP and looked < _MOST:
        inside: list[Path] = []
        for folder in level[: _MOST - looked]:
            for path in _folders(folder):
                (runs if is_run(path) or is_site(path) else inside).append(path)
        rest = level[_MOST - looked :]
        looked, deep, level = looked + len(level), deep + 1, inside
    if not rest and not level:
        return runs, ""
    first = visible((rest or level)[0].relative_to(root).as_posix())
    return (
        runs,
        f"some folders were not searched, such as {first}: there are more than {_DEEP} levels or {_MOST:,} folders; watch one "
        "of these folders instead",
    )


def _folders(folder: Path) -> list[Path]:
    """Returns the folders in a folder, without hidden folders and links."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return []
    return [Path(entry.path) for entry in entries if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False)]


_READ = (
    *(
        "config.toml",
        "ledger.jsonl",
        "metrics.jsonl",
        "federation.jsonl",
        "results.json",
        "privacy_card.md",
        "no_privacy_card.md",
    ),
    *("arrivals.json", "terms.json", "budget.json", SITE),
)


def _signature(files: Iterable[Path]) -> dict[Path, tuple[int, int]]:
    """Returns time (nanoseconds) and size (bytes) of the files that exist."""
    signature = {}
    for file in files:
        with contextlib.suppress(OSError):
            status = os.stat(file)
            signature[file] = (status.st_mtime_ns, status.st_size)
    return signature


def _changed_outside(folder: Path) -> dict[Path, tuple[int, int]]:
    """Returns the signature of the budgets' ledgers. Other runs write them, so they do not show that this run is running."""
    try:
        return _signature(budget_files_outside(folder))
    except UserError:  # `_read` reports the error
        return {}


def _read(folder: Path, name: str, running: bool) -> tuple[RunState | None, str]:
    try:
        return read(folder, name, running), ""
    except UserError as error:
        return None, str(error)
    except OSError as error:  # a file was deleted during the read, or this user may not read it
        return None, f"{error.filename or folder} cannot be read: {error.strerror or error}."
