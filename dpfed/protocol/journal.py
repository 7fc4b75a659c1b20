"""The journal of a federation: a public, append-only file of what happened in each step.

The coordinator records a step as opened, on disk, before it asks any site. Later it records the step as collected or discarded.
A step that was opened and never finished (the server died) is discarded and charged when the run resumes: sites may have
answered it, and no site is asked twice for a step. As in a ledger, every line carries a hash over itself and all lines
before it.

The module also has the arrival log. This log records when the sites' answers came, for live views of a running federation.

A site's response time depends on the records that the site drew, and epsilon does not cover what the time reveals. The
coordinator sees these times in any case; nobody else may, so only the coordinator's own user can read the log (mode 0600). The
log holds the latest steps only, and is deleted when the process that writes it ends its work: a finished run reveals no times.
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
        path: Journal file, one JSON object per line.

    Raises:
        UserError: If the file is damaged.
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
        """Returns whether this step or a later one was opened before."""
        return any(line["event"] == "opened" and line["step"] >= step for line in self.lines)

    def write(self, event: str, step: int, **facts: Any) -> None:
        """Appends a line. When this method returns, the line is on disk.

        Args:
            event: Event: ``opened``, ``collected`` or ``discarded``.
            step: Training step.
            facts: Further fields of the line, serialisable as JSON.

        Raises:
            UserError: If another process writes the file, too.
        """
        line = {"event": event, "step": step, **facts}
        chain = link(self._chain, line)
        try:
            self._lines = drop_torn_line(self._path, self._lines)  # no site was asked for the step of a torn line
            end = append_line(self._path, {**line, "chain": chain}, self._lines.end)
        except GrewElsewhere as error:
            raise UserError(
                f"another process writes {self._path}, too: end one of the two processes. [journal-writers]"
            ) from error
        self._lines = Lines([], end, end)
        self.lines.append(line)
        self._chain = chain

    def _read(self, number: int, line: dict[str, Any]) -> None:
        """Takes in a line of the file, after checking its hash and its fields."""
        claimed = line.pop("chain", None)
        chain = link(self._chain, line)
        if claimed != chain or not _is_whole(line):
            raise self._damaged(number)
        self.lines.append(line)
        self._chain = chain

    def _damaged(self, number: int) -> UserError:
        return UserError(
            f"the journal {self._path} is damaged at line {number}: it is no longer certain for which steps the sites were "
            "asked. Restore the file from a backup. [journal-damaged]"
        )

    def rounds_of(self, site: str) -> int:
        """Returns the number of collected steps whose total includes the sum of the site with this name."""
        last = {line["step"]: line for line in self.lines}
        return sum(line["event"] == "collected" and site in line["arrived"] for line in last.values())


def _is_whole(line: dict[str, Any]) -> bool:
    """Returns whether a line names a step and an event, and its other fields have the right types."""
    event, step = line.get("event"), line.get("step")
    if not isinstance(event, str) or type(step) is not int or step < 0:
        return False
    arrived = line.get("arrived", None if event == "collected" else [])
    return isinstance(arrived, list) and isinstance(line.get("missing", {}), dict)


_STEPS, _NUMBERS = 20, 2_000  # most steps and most times in the file; the latest step is always kept
_EVERY = 0.5  # least seconds between two writes while answers come


@dataclass
class Step:
    """Arrival times of the answers to one step.

    Attributes:
        asked: Names of the sites that were asked.
        seconds: Seconds from the request to the answer, by the name of each site that has answered.
        until: Time, in seconds since the epoch, at which the coordinator continues without the sites that have not answered;
            ``None``: it waits without limit for as many sites as it needs.
    """

    asked: list[str]
    seconds: dict[str, float] = field(default_factory=dict)
    until: float | None = None

    @property
    def awaited(self) -> list[str]:
        """Names of the sites that have not answered."""
        return [name for name in self.asked if name not in self.seconds]


class ArrivalLog:
    """Keeps the times at which the sites' answers arrive.

    Args:
        path: File of the log; ``None``: nothing is written.
        clock: Function that returns the time in seconds; default: `time.monotonic`.
    """

    def __init__(self, path: Path | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock
        self._steps: dict[int, Step] = {}
        self._began = self._written = clock()

    def ask(self, step: int, sites: Iterable[str], seconds: float | None = None) -> None:
        """Notes that sites are asked now. The coordinator waits `seconds` at most for them; ``None``: without limit."""
        self._began = self._clock()
        self._steps[step] = Step(list(sites), until=None if seconds is None else time.time() + seconds)
        kept = max(1, min(_STEPS, _NUMBERS // max(1, len(self._steps[step].asked))))
        self._steps = dict(sorted(self._steps.items())[-kept:])
        self._write()

    def came(self, step: int, site: str) -> None:
        """Notes that a site's answer has arrived."""
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
        try:  # without waiting for the disk: nobody needs these times after a crash
            with open(draft, "w", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
                file.write(text)
            os.replace(draft, self._path)
        except OSError:  # training continues without the log
            self._path = None


def read_arrival_log(path: Path) -> dict[int, Step]:
    """Returns the arrival times in the file, by step; an empty dict if the file is missing or cannot be parsed."""
    try:
        content = json.loads(read_bytes(path))
        steps = {
            int(step): Step([str(name) for name in times["asked"]], dict(times["seconds"]), times.get("until"))
            for step, times in content.items()
        }
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}
    times = [value for step in steps.values() for value in (*step.seconds.values(), step.until or 0)]
    return steps if all(isinstance(value, int | float) and 0 <= value < math.inf for value in times) else {}
