"""What happened in each step of a federation: public, append-only, and the memory of which step was opened last.

A step is opened here, on disk, before any site is asked; then it is collected, or discarded. One that was opened and never
finished (the server died) is discarded and charged when the run resumes: sites may have answered, and nobody asks them twice.
Like a ledger's, every line carries a hash over itself and the line before.

Also here: when the sites' answers to the last steps came, for who watches a running federation.

How long a site takes depends on what it drew, and epsilon does not cover it. The coordinator sees it all the same. So the file
is for its own user alone (0600), holds the last steps and no more, and goes when the process that writes it ends its work: a
run that is finished says nothing of times.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpfed.errors import UserError
from dpfed.files.atomic import DRAFT
from dpfed.files.json_lines import DamagedLine, GrewElsewhere, Lines, append_line, drop_torn_line, read_lines
from dpfed.files.reading import read_bytes
from dpfed.privacy.ledger import link


class Journal:
    """Reads and extends the journal of one run.

    Args:
        path: of the file, one JSON object per line.

    Raises:
        UserError: if it is damaged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            lines = read_lines(path) if path.exists() else Lines([])
        except DamagedLine as error:
            raise self._damaged(error.number) from None
        self.lines: list[dict[str, Any]] = []
        self._chain = ""
        for number, line in enumerate(lines.entries, start=1):
            self._read(number, line)
        self._lines = lines

    def opened(self, step: int) -> bool:
        """Whether a step was opened before."""
        return any(line["event"] == "opened" and line["step"] >= step for line in self.lines)

    def write(self, event: str, step: int, **facts: Any) -> None:
        """Adds a line; when this returns, it is on disk."""
        line = {"event": event, "step": step, **facts}
        chain = link(self._chain, line)
        try:
            self._lines = drop_torn_line(self._path, self._lines)  # nobody was asked before the last line was whole
            end = append_line(self._path, {**line, "chain": chain}, self._lines.end)
        except GrewElsewhere as error:
            raise UserError(f"{self._path} is written by another process, too: end one of them. [journal-writers]") from error
        self._lines = Lines([], end, end)
        self.lines.append(line)
        self._chain = chain

    def _read(self, number: int, line: dict[str, Any]) -> None:
        claimed = line.pop("chain", None)
        chain = link(self._chain, line)
        if claimed != chain or not _is_whole(line):
            raise self._damaged(number)
        self.lines.append(line)
        self._chain = chain

    def _damaged(self, number: int) -> UserError:
        return UserError(
            f"the journal {self._path} is damaged at line {number}: which steps the sites were asked for is no longer certain. "
            "Restore the file from a backup. [journal-damaged]"
        )

    def rounds_of(self, site: str) -> int:
        """In how many steps that came to something a site's answer was counted."""
        last = {line["step"]: line for line in self.lines}
        return sum(line["event"] == "collected" and site in line["arrived"] for line in last.values())


def _is_whole(line: dict[str, Any]) -> bool:
    """Whether a line says which step, and what happened in it."""
    event, step = line.get("event"), line.get("step")
    if not isinstance(event, str) or type(step) is not int or step < 0:
        return False
    return isinstance(line.get("arrived", []), list) and isinstance(line.get("missing", {}), dict)


_STEPS, _NUMBERS = 20, 2_000  # of the last steps, and of all times in the file
_EVERY = 0.5  # seconds between two writings while answers come


@dataclass
class Step:
    """One step's answers.

    Attributes:
        asked: names of the sites that were asked.
        seconds: after the question, by name, of those that have answered.
        until: when the coordinator continues without the others, seconds since the epoch; ``None``: it waits for as many as it
            needs, however long that takes.
    """

    asked: list[str]
    seconds: dict[str, float] = field(default_factory=dict)
    until: float | None = None

    @property
    def awaited(self) -> list[str]:
        """The sites that have not answered."""
        return [name for name in self.asked if name not in self.seconds]


class ArrivalLog:
    """Notes them.

    Args:
        path: of the file; ``None``: nobody watches.
        clock: seconds.
    """

    def __init__(self, path: Path | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock
        self._steps: dict[int, Step] = {}
        self._began = self._written = clock()

    def ask(self, step: int, sites: Iterable[str], seconds: float | None = None) -> None:
        """The sites are asked now, and awaited so many seconds at most."""
        self._began = self._clock()
        self._steps[step] = Step(list(sites), until=None if seconds is None else time.time() + seconds)
        kept = max(1, min(_STEPS, _NUMBERS // max(1, len(self._steps[step].asked))))
        self._steps = dict(sorted(self._steps.items())[-kept:])
        self._write()

    def came(self, step: int, site: str) -> None:
        """A site's answer is there."""
        now = self._clock()
        self._steps[step].seconds[site] = round(now - self._began, 3)
        if now - self._written >= _EVERY or not self._steps[step].awaited:
            self._write()

    def _write(self) -> None:
        if self._path is None:
            return
        self._written = self._clock()
        text = json.dumps({step: vars(times) for step, times in self._steps.items()})
        draft = self._path.with_name(f".{self._path.name}{DRAFT}")
        try:  # without waiting for the disk: what a crash takes away, nobody misses
            with open(draft, "w", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
                file.write(text)
            os.replace(draft, self._path)
        except OSError:  # training does not end because nobody can watch it
            self._path = None


def read_arrival_log(path: Path) -> dict[int, Step]:
    """What the file says now; empty where there is none, or none that can be read."""
    try:
        found = json.loads(read_bytes(path))
        steps = {
            int(step): Step([str(name) for name in times["asked"]], dict(times["seconds"]), times.get("until"))
            for step, times in found.items()
        }
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}
    times = [value for step in steps.values() for value in (*step.seconds.values(), step.until or 0)]
    return steps if all(isinstance(value, int | float) and 0 <= value < math.inf for value in times) else {}
