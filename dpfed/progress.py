"""Who sees a run go on. Nothing private reaches a watcher."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from dpfed.evaluation.suite import Evaluation


class Watcher(Protocol):
    """A terminal, a test, a notebook."""

    def stage(self, name: str, total: int | None) -> Callable[[int], None]:
        """A stage of `total` units begins; the result is called with how many are done."""

    def note(self, text: str) -> None:
        """Something worth a line."""

    def evaluated(self, figures: list[Evaluation]) -> None:
        """A model was measured."""

    def figures(self, step: int, values: dict[str, float]) -> None:
        """metrics.jsonl has a new line: its figures by names such as ``training/epsilon``."""


class Silent:
    """Watches nothing."""

    def stage(self, name: str, total: int | None) -> Callable[[int], None]:
        """See `Watcher`."""
        return lambda done: None

    def note(self, text: str) -> None:
        """See `Watcher`."""

    def evaluated(self, figures: list[Evaluation]) -> None:
        """See `Watcher`."""

    def figures(self, step: int, values: dict[str, float]) -> None:
        """See `Watcher`."""


def duration(seconds: float) -> str:
    """A duration for people: coarser, the longer it is."""
    if seconds < 100:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds // 86_400:.0f} days"


def import_progress(watcher: Watcher, name: str = "records") -> Callable[..., None]:
    """Progress of an import, which becomes a stage when it is called first: most runs import nothing.

    Args:
        watcher: who sees it.
        name: what is counted.

    Returns:
        To be called with how many are done, and of how many if that is known.
    """
    advance: Callable[[int], None] | None = None

    def progress(done: int, total: int | None = None) -> None:
        nonlocal advance
        advance = advance or watcher.stage(name, total)
        advance(done)

    return progress


@contextlib.contextmanager
def signs_of_life(told: Callable[[str], None], what: str, every: float = 15.0) -> Iterator[None]:
    """Says now and then, while the block runs, that it still does: for what takes minutes on a busy machine and counts nothing.

    Args:
        told: hears it, in a thread of its own.
        what: is done.
        every: seconds.
    """
    ended, started = threading.Event(), time.monotonic()

    def tell() -> None:
        while not ended.wait(every):
            told(f"{what}: still at it after {time.monotonic() - started:.0f} seconds")

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        ended.set()
        teller.join()
