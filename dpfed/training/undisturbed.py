"""A step of the coordinator is over before Ctrl-C or SIGTERM is answered: what follows is a state between two steps."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

_ENDING = signal.SIGINT, signal.SIGTERM


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Signals that end a command wait for the end of the block, which is short.

    Only those that a handler in Python answers: others end the process where it stands, which loses no more than a power cut.
    Python calls handlers in the main thread, so a block in another one is not disturbed anyway.
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
