"""Delays Ctrl-C and SIGTERM until a step of the coordinator is over, so that no step is left half done."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

_ENDING = signal.SIGINT, signal.SIGTERM


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Delays SIGINT and SIGTERM until the end of the block, which is short.

    Only signals with a Python handler are delayed. Signals without such a handler end the process at once, which loses no more
    than a power cut. Python calls handlers in the main thread, so they never interrupt a block in another thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []

    def wait(number: int, frame: FrameType | None) -> None:
        arrived.append(number)

    usual = {int(number): handler for number in _ENDING if callable(handler := signal.getsignal(number))}
    for number in usual:
        signal.signal(number, wait)
    try:
        yield
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)
        for number in dict.fromkeys(arrived):
            signal.raise_signal(number)
