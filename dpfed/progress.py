"""Shows the progress of commands: displays, durations and signs of life. Nothing private reaches a display."""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

from dpfed.callbacks import Callback

_SEEN = 20  # number of last measurements that are kept
_APART = 0.25  # seconds; shorter intervals, as between the records of one batch, do not show the pace


class Progress(Callback):
    """A display of a command's progress: a terminal, a log or a notebook. As a `Callback`, it also sees the steps of a run."""

    waits = True

    def stage(self, name: str, total: int | None) -> Callable[[int], None]:
        """Begins a stage.

        Args:
            name: Name of the stage.
            total: Number of items in the stage, such as steps or records; ``None``: unknown.

        Returns:
            A function to call with the number of items done so far.
        """
        return lambda done: None

    def note(self, text: str) -> None:
        """Shows a message, one line of text."""


class Silent(Progress):
    """A display that shows nothing."""


class Throughput:
    """Durations of the last steps, in seconds. They are not stored, because a step's duration depends on the records it drew.

    Attributes:
        last: Time in seconds at which the last step ended, from the argument `at` of `see`; ``None``: not known yet.
    """

    def __init__(self) -> None:
        self._took: deque[float] = deque(maxlen=_SEEN)
        self._point: tuple[int, float] | None = None
        self._again = 0
        self.last: float | None = None

    def see(self, done: int, at: float, again: int = 0) -> None:
        """Notes how many steps were done by a point in time.

        Args:
            done: Number of steps done.
            at: Time in seconds at which the last of these steps ended.
            again: Number of repeated steps and interruptions so far. If this number has changed since the last call, the time
                since then is not counted, because new steps took only a part of that time.
        """
        if self._point is None or done < self._point[0] or at < self._point[1]:
            self._took.clear()  # the run was resumed from an earlier step, or another run replaced it
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
        """Seconds for one step: the median of the last steps, so that one long wait does not count; ``None``: unknown."""
        return statistics.median(self._took) if self._took else None

    def left(self, steps: int) -> float | None:
        """Estimates how many seconds a number of further steps will take; ``None``: not known yet."""
        return None if self.seconds is None else self.seconds * steps


def duration(seconds: float) -> str:
    """Formats a duration in seconds for people; the longer it is, the coarser the text."""
    if seconds < 100:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds // 86_400:.0f} days"


def import_progress(progress: Progress, name: str = "records") -> Callable[..., None]:
    """Makes a function that shows the progress of an import.

    The stage begins with the first call of this function, because most runs import nothing.

    Args:
        progress: Display of the stage.
        name: Name of what is counted.

    Returns:
        A function to call with the number of items done and, if it is known, the total number.
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
    """Reports now and then that the block still runs, for long work without items to count.

    Args:
        told: Function that receives each message, in a separate thread.
        what: Description of the work, for the messages.
        every: Seconds until the first message. Each further message comes when the running time has doubled.
        beside: Function that returns text to append to a message.
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
