"""How fast a run takes its steps, as this process sees it. It stays in memory: a step's time depends on what it drew."""

from __future__ import annotations

import statistics
from collections import deque

_SEEN = 20  # last changes that are remembered
_APART = 0.25  # seconds: what is nearer says nothing of the pace, such as the records of one batch


class Pace:
    """Remembers what the last steps took. Times are seconds, since any moment.

    Attributes:
        last: when the last step was done.
    """

    def __init__(self) -> None:
        self._took: deque[float] = deque(maxlen=_SEEN)
        self._point: tuple[int, float] | None = None
        self._again = 0
        self.last: float | None = None

    def see(self, done: int, at: float, again: int = 0) -> None:
        """So many steps were done at that time.

        Args:
            done: steps that are over.
            at: when the last of them was.
            again: steps that were taken again, and interruptions, so far: the time that they took was none of new steps.
        """
        if self._point is None or done < self._point[0] or at < self._point[1]:
            self._took.clear()  # the run was taken up from before, or another one took its place
        elif again == self._again:
            if done == self._point[0]:
                return
            self.last = at
            if at - self._point[1] < _APART:
                return
            self._took.append((at - self._point[1]) / (done - self._point[0]))
        self._point, self._again, self.last = (done, at), again, at

    @property
    def seconds(self) -> float | None:
        """Of a step: the median of the last ones, so that a wait for a site does not count; ``None``: not known yet."""
        return statistics.median(self._took) if self._took else None

    def left(self, steps: int) -> float | None:
        """Seconds that so many steps will take."""
        return None if self.seconds is None else self.seconds * steps
