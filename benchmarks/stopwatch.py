"""Times functions from outside, while a program that knows nothing of it calls them."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any


class Stopwatch:
    """Replaces functions by ones that add up the time they take.

    Args:
        parts: for the name of a part, where its function stands: a class or module, and the name there.
    """

    def __init__(self, parts: Mapping[str, tuple[Any, str]]) -> None:
        self._seconds: dict[str, float] = {}
        self._lock = threading.Lock()
        for part, (owner, name) in parts.items():
            setattr(owner, name, self._timed(part, getattr(owner, name)))

    def take(self) -> dict[str, float]:
        """Seconds of each part that was called since the last look."""
        with self._lock:
            taken, self._seconds = self._seconds, {}
        return taken

    def _timed(self, part: str, real: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            try:
                return real(*args, **kwargs)
            finally:
                seconds = time.perf_counter() - started
                with self._lock:
                    self._seconds[part] = self._seconds.get(part, 0.0) + seconds

        return wrapper
