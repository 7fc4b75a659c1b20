"""How fast a run takes its steps, as this process sees it. It stays in memory: a step's time depends on what it drew."""

from __future__ import annotations

import datetime
from collections import deque

_SEEN = 20  # last changes that are remembered


class Pace:
    """Remembers when the last steps were done. Times are seconds since the epoch."""

    def __init__(self) -> None:
        self._seen: deque[tuple[int, float]] = deque(maxlen=_SEEN)

    def see(self, done: int, at: float) -> None:
        """So many steps were done at that time.

        Args:
            done: steps that are over.
            at: when the last of them was.
        """
        if self._seen and (done < self._seen[-1][0] or at < self._seen[-1][1]):
            self._seen.clear()  # the run was taken up from before, or another one took its place
        if not self._seen or done > self._seen[-1][0]:
            self._seen.append((done, at))

    @property
    def last(self) -> float | None:
        """When the last step was done."""
        return self._seen[-1][1] if self._seen else None

    @property
    def seconds(self) -> float | None:
        """Of a step, as a mean over the last ones; ``None``: not known yet."""
        if len(self._seen) < 2:
            return None
        (first, began), (last, ended) = self._seen[0], self._seen[-1]
        return (ended - began) / (last - first)

    def left(self, steps: int) -> float | None:
        """Seconds that so many steps will take."""
        return None if self.seconds is None else self.seconds * steps


def duration(seconds: float) -> str:
    """A duration for people: coarser, the longer it is."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{datetime.timedelta(seconds=seconds).days} days"
