"""Trying again, in sight of the user, until something of Ray's is there: on a busy machine it takes minutes to start."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from dpfed.errors import UserError
from dpfed.progress import Watcher, signs_of_life

WAIT = 300.0  # seconds until it is given up
_AGAIN = 2.0  # seconds between two attempts
_TOLD_AGAIN = 30.0  # seconds after which the same reason is told once more
_Result = TypeVar("_Result")


def patiently(
    attempt: Callable[[], _Result],
    what: str,
    watcher: Watcher,
    hopeless: Callable[[Exception], bool],
    remedy: str,
    wait: float = WAIT,
) -> _Result:
    """The result of the first attempt that succeeds.

    Args:
        attempt: is made again after any exception but a hopeless one.
        what: is attempted, such as ``connecting to Ray``.
        watcher: is told why it waits, and every half minute that it still does.
        hopeless: whether another attempt would end alike.
        remedy: what the user can do, in the sentence at the end.
        wait: seconds; an attempt that has begun is not cut short.

    Raises:
        UserError: with the last reason, when time is over or an attempt was hopeless.
    """
    started, told, spoke = time.monotonic(), "", 0.0
    while True:
        try:
            with signs_of_life(watcher.note, what):
                return attempt()
        except UserError:
            raise
        except Exception as error:
            reason, taken = last_line(error), time.monotonic() - started
            if hopeless(error):
                raise UserError(f"{what} failed: {reason}. {remedy}") from error
            if taken >= wait:
                raise UserError(f"{what} failed for {taken:.0f} seconds, the last time with: {reason}. {remedy}") from error
        if reason != told or taken - spoke >= _TOLD_AGAIN:
            watcher.note(f"{what}: not yet ({reason}); trying again for up to {wait - taken:.0f} seconds")
            told, spoke = reason, taken
        time.sleep(min(_AGAIN, wait))


def last_line(error: Exception) -> str:
    """What an error says: of a traceback that a server sent along, the end."""
    return (str(error).strip() or type(error).__name__).splitlines()[-1].strip().rstrip(".")
