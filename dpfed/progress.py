"""Who sees how far a run is. Nothing private reaches them."""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

from dpfed.callbacks import Callback

_SEEN = 20  # last changes that are remembered
_APART = 0.25  # seconds: what is nearer says nothing of the pace, such as the records of one batch


class Progress(Callback):
    """Shows how far a command is: a terminal, a log, a notebook. As a `Callback` it also sees the steps of a run."""

    waits = True

    def stage(self, name: str, total: int | None) -> Callable[[int], None]:
        """A stage of `total` units begins; the result is called with how many are done."""
        return lambda done: None

    def note(self, text: str) -> None:
        """Something worth a line."""


class Silent(Progress):
    """Shows nothing."""


class Throughput:
    """Remembers what the last steps took. It stays in memory: a step's time depends on what it drew. Times are seconds.

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
            self._took.clear()  # the run was resumed from before, or another one took its place
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


def duration(seconds: float) -> str:
    """A duration for people: coarser, the longer it is."""
    if seconds < 100:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds // 86_400:.0f} days"


def import_progress(progress: Progress, name: str = "records") -> Callable[..., None]:
    """Progress of an import, which becomes a stage when it is called first: most runs import nothing.

    Args:
        progress: who sees it.
        name: what is counted.

    Returns:
        To be called with how many are done, and of how many if that is known.
    """
    advance: Callable[[int], None] | None = None

    def tell(done: int, total: int | None = None) -> None:
        nonlocal advance
        advance = advance or progress.stage(name, total)
        advance(done)

    return tell


@contextlib.contextmanager
def signs_of_life(
    told: Callable[[str], None], what: str, every: float = 15.0, beside: Callable[[], str] = lambda: ""
) -> Iterator[None]:
    """Says now and then, while the block runs, that it still does: for what takes minutes on a busy machine and counts nothing.

    Args:
        told: hears it, in a thread of its own.
        what: is done.
        every: seconds until the first sign; each further one takes twice as long as the one before.
        beside: what else there is to say then.
    """
    ended, started = threading.Event(), time.monotonic()

    def tell() -> None:
        wait = every
        while not ended.wait(wait):
            told(f"{what}: still running after {time.monotonic() - started:.0f} seconds{beside()}")
            wait = time.monotonic() - started

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        ended.set()
        teller.join()
