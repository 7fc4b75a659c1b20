"""When the sites' answers to the last steps came, for who watches a federation at work.

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

from dpfed.files.atomic import DRAFT
from dpfed.files.reading import read_bytes

_STEPS, _NUMBERS = 20, 2_000  # of the last steps, and of all times in the file
_EVERY = 0.5  # seconds between two writings while answers come


@dataclass
class Step:
    """One step's answers.

    Attributes:
        asked: names of the sites that were asked.
        seconds: after the question, by name, of those that have answered.
        until: when the coordinator goes on without the others, seconds since the epoch; ``None``: it waits for as many as it
            needs, however long that takes.
    """

    asked: list[str]
    seconds: dict[str, float] = field(default_factory=dict)
    until: float | None = None

    @property
    def awaited(self) -> list[str]:
        """The sites that have not answered."""
        return [name for name in self.asked if name not in self.seconds]


class Arrivals:
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


def read_arrivals(path: Path) -> dict[int, Step]:
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
