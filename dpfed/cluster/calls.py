"""Calls of libraries that wait in C, where no signal has an effect: another thread carries them out."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import queue
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

from dpfed.console.interruption import wait_for

_LONGEST = 30.0  # seconds for an interrupted call to end
_AGAIN = 0.1  # seconds after which a call that goes on is interrupted again


class Call:
    """A call of a function in another thread, which begins at once.

    All calls of this process share one thread and run one after the other. The thread lives as long as this process: Linux
    kills Ray's processes when the thread that started them ends.

    Args:
        function: Function to call.

    Attributes:
        is_over: Whether the function has returned or raised.
    """

    def __init__(self, function: Callable[[], object]) -> None:
        self._function = function
        self._error: BaseException | None = None
        self._runs = False
        self.is_over = False
        self._thread, waiting = _thread()
        waiting.put(self)

    def run(self) -> None:
        """Calls the function in the current thread."""
        try:
            self._runs = True
            self._function()
        except BaseException as error:
            self._error = error
        finally:
            self._runs = False
            self.is_over = True

    def finish(self) -> None:
        """Waits until the call is over.

        Raises:
            BaseException: The exception that the function raised.
            Interrupted: If SIGINT or SIGTERM arrives; the call goes on.
        """
        self.wait(math.inf)
        if self._error is not None:
            raise self._error

    def wait(self, seconds: float) -> None:
        """Waits until the call is over, for at most this many seconds."""
        wait_for(lambda: self.is_over, seconds)

    def interrupt(self, may_end: Callable[[FrameType], bool]) -> None:
        """Raises ``SystemExit`` in the function until the call is over, for at most 30 seconds. Code in C goes on.

        Args:
            may_end: Function that returns, for the innermost frame of the call, whether the exception may be raised there. In
                code that releases a lock, for example in what Python calls after a fork, it would leave the lock held.
        """
        until, identity = time.monotonic() + _LONGEST, self._thread.ident or 0
        while not self.is_over and time.monotonic() < until:
            frame = sys._current_frames().get(identity)
            if self._runs and frame is not None and may_end(frame):
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(identity), ctypes.py_object(SystemExit))
            self.wait(_AGAIN)


@functools.cache
def _thread() -> tuple[threading.Thread, queue.SimpleQueue[Call]]:
    """Returns the thread that carries out the calls, and the queue from which it takes them."""
    waiting: queue.SimpleQueue[Call] = queue.SimpleQueue()

    def carry_out() -> None:
        while True:
            with contextlib.suppress(SystemExit):  # of `interrupt`, if it comes when a call has just ended
                while True:
                    waiting.get().run()

    thread = threading.Thread(target=carry_out, name="calls", daemon=True)
    thread.start()
    return thread, waiting
