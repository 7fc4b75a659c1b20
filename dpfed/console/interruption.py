"""Makes Ctrl-C and SIGTERM end a command, even where a library swallows the exception.

Python raises a signal's exception wherever the main thread is at that moment. While an extension module (in C) is initialised,
the module's code may drop the exception (numpy.random, Triton, pandas), turn it into an ImportError (NumPy), or abort the
process (PyTorch). So dpfed delays a signal until the initialisation is over. Other code may also drop the exception, so dpfed
repeats the signal until the exception has reached dpfed's own handler.
"""

from __future__ import annotations

import _thread
import contextlib
import functools
import linecache
import math
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib.machinery import ExtensionFileLoader
from types import FrameType
from typing import Any

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}  # exit codes by the convention of shells
_FIRST, _LONGEST = 0.05, 2.0  # shortest and longest time until the signal is repeated, seconds
_BETWEEN = 0.05  # seconds after which dpfed sets its handlers again
_STARTS_IN_C = re.compile(r"\b_C\._\w*init", re.IGNORECASE)  # as in `torch._C._c10d_init()`
_C_MODULES = {function.__code__ for function in (ExtensionFileLoader.create_module, ExtensionFileLoader.exec_module)}


class Interrupted(KeyboardInterrupt):
    """Raised when SIGINT or SIGTERM arrives.

    It is a subclass of ``KeyboardInterrupt``, and not that class itself: if a plain ``KeyboardInterrupt`` leaves an ``exec``,
    Python remembers it, and ends by SIGINT even if the exception is handled.

    Attributes:
        code: Exit code of the command that the signal ends.
    """

    def __init__(self) -> None:
        super().__init__()
        self.code = exit_code()


class _Received:
    """The state of the signal that this command has received.

    Attributes:
        number: Number of the first signal; ``None``: no signal arrived, or it has been handled.
        repeated: Whether the next signal is one that dpfed repeats, and not a new one.
        answered: Signals that `interruptible` handles.
        pausing: Whether no signal is repeated now.
    """

    number: signal.Signals | None = None
    repeated: bool = False
    answered: frozenset[signal.Signals] = frozenset()
    pausing: bool = False


_received = _Received()


def exit_code() -> int | None:
    """Returns the exit code for the signal that this command received; ``None``: no signal, or `accept` has handled it."""
    return None if _received.number is None else CODES[_received.number]


def accept() -> None:
    """Marks the received signal as handled, so that dpfed does not repeat it."""
    _received.number = None


@contextlib.contextmanager
def until_ctrl_c() -> Iterator[None]:
    """Runs a block for which Ctrl-C is the normal end."""
    try:
        yield
    except KeyboardInterrupt:
        if exit_code() == CODES[signal.SIGTERM]:
            raise
        accept()


@contextlib.contextmanager
def until_asked() -> Iterator[threading.Event]:
    """Yields an event that SIGINT and SIGTERM set, so that the block can end in good order; the signals raise no exception.

    This works in the main thread only; in another thread, no signal sets the event.
    """
    asked, kept = threading.Event(), {}
    if threading.current_thread() is threading.main_thread():
        kept = {number: usual for number in CODES if (usual := signal.getsignal(number)) is not signal.SIG_IGN}
    for number in kept:
        signal.signal(number, lambda *_: asked.set())
    try:
        yield asked
    finally:
        for number, usual in kept.items():
            signal.signal(number, usual)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Makes SIGINT and SIGTERM raise `Interrupted` in the main thread during the block.

    A received signal is repeated until dpfed handles it. A signal that was ignored when this process started stays ignored, and
    handlers that other code has set stay. SIGALRM is blocked. Processes of torchrun keep Python's handling of SIGTERM, which
    ends them at once: they may wait in C code for a process that has ended.
    """
    kept = {}
    if threading.current_thread() is threading.main_thread():  # only there can a handler be set
        default: dict[signal.Signals, Any] = {signal.SIGINT: signal.default_int_handler}
        if "TORCHELASTIC_RUN_ID" not in os.environ:
            default |= {signal.SIGTERM: signal.SIG_DFL}
        kept = {number: usual for number, usual in default.items() if signal.getsignal(number) is usual}
    shows = sys.unraisablehook
    try:
        if kept:
            _received.answered = frozenset(kept)
            sys.unraisablehook = functools.partial(_show_unless_interrupted, shows)
        _answer_again()
        with _without_alarms() if kept else contextlib.nullcontext():
            yield
    finally:
        if kept:
            accept()
            _received.answered = frozenset()
            sys.unraisablehook = shows
        for number, usual in kept.items():
            if signal.getsignal(number) is _raise:
                signal.signal(number, usual)


def end_at_once() -> None:
    """Makes Ctrl-C end this process at once from now on, as SIGTERM does, without a traceback. Call it when no work is left.

    Where other code has set a handler for SIGINT, and outside the main thread, nothing changes.
    """
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, OSError, ValueError):  # the stream is closed, or its reader has ended
                stream.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def wait_for(is_over: Callable[[], bool], seconds: float = math.inf) -> None:
    """Waits for another thread in which a library may change the signal handlers in C, as Ray does when it connects.

    Meanwhile, dpfed sets its own handlers again and again, and repeats no signal.

    Args:
        is_over: Function that returns whether the other thread has done its work.
        seconds: Seconds after which the work is no longer waited for.
    """
    until = time.monotonic() + seconds
    _received.pausing = True
    try:
        while not is_over() and time.monotonic() < until:
            time.sleep(_BETWEEN)
            _answer_again()
    finally:
        _received.pausing = False


@contextlib.contextmanager
def _without_alarms() -> Iterator[None]:
    """Blocks SIGALRM in the main thread, and so in all threads that are started in the block.

    Ray's handler of SIGTERM, in C, sets an alarm that aborts the process three seconds later, even if it passes the signal on.
    """
    has_alarm = signal.getitimer(signal.ITIMER_REAL)[0] > 0
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    try:
        yield
    finally:
        if signal.SIGALRM not in blocked:
            if not has_alarm:
                signal.alarm(0)
                if signal.SIGALRM in signal.sigpending():
                    signal.sigwait({signal.SIGALRM})
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _answer_again() -> None:
    for number in _received.answered if threading.current_thread() is threading.main_thread() else ():
        signal.signal(number, _raise)


def _raise(number: int, frame: FrameType | None) -> None:
    repeated, _received.repeated = _received.repeated, False
    if repeated:
        if _received.number is None or _under_way(sys.exception()):
            return
    elif _received.number is None:
        _received.number = signal.Signals(number)
        # Not a `threading.Thread`: its start takes locks that the interrupted code may hold.
        _thread.start_new_thread(_repeat, (_received.number,))
    elif number == signal.SIGTERM:  # a second SIGTERM does not wait for cleaning up
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
    if not _starts_module_in_c(frame):
        raise Interrupted


def _show_unless_interrupted(shows: Callable[[Any], object], forgotten: Any) -> None:
    """Shows an unraisable exception as Python does, unless it is an interruption: dpfed repeats the signal, so none is lost."""
    if not issubclass(forgotten.exc_type, Interrupted):
        shows(forgotten)


def _starts_module_in_c(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code in _C_MODULES or _starts_part_of_torch(frame):
            return True
        frame = frame.f_back
    return False


def _starts_part_of_torch(frame: FrameType) -> bool:
    if str(frame.f_globals.get("__name__")).partition(".")[0] != "torch":
        return False
    return _STARTS_IN_C.search(linecache.getline(frame.f_code.co_filename, frame.f_lineno)) is not None


def _under_way(handled: BaseException | None) -> bool:
    """Returns whether an exception is an interruption or follows from one; if so, the command is already cleaning up."""
    while handled is not None:
        if isinstance(handled, KeyboardInterrupt):
            return True
        handled = handled.__cause__ or handled.__context__
    return False


def _repeat(number: signal.Signals) -> None:
    """Sends a signal to the main thread again and again, until it is handled or has another handler."""
    wait = _FIRST
    while True:
        time.sleep(wait)
        if _received.number is None or signal.getsignal(number) is not _raise:
            return
        if not _received.pausing:
            _received.repeated = True
            signal.pthread_kill(threading.main_thread().ident or 0, number)
        wait = min(2 * wait, _LONGEST)
