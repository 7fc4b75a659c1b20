"""Which sites are left alone for a while, because they let a step wait for nothing."""

from __future__ import annotations

import time
from collections.abc import Callable

_LONGEST = 600.0  # seconds


class Patience:
    """Sites that hang. Each time in a row one is left alone twice as long, up to ten minutes.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._strikes: dict[int, int] = {}
        self._until: dict[int, float] = {}

    def hung(self, number: int, seconds: float) -> None:
        """A site let everybody wait so long."""
        self._strikes[number] = self._strikes.get(number, 0) + 1
        self._until[number] = self._clock() + min(seconds * 2.0 ** min(self._strikes[number] - 1, 32), _LONGEST)

    def answered(self, number: int) -> None:
        """A site answered a step, or was started again."""
        self._strikes.pop(number, None)
        self._until.pop(number, None)

    def left(self, number: int) -> float:
        """Seconds until a site may be asked again; 0: now."""
        return max(0.0, self._until.get(number, 0.0) - self._clock()) if number in self._until else 0.0
