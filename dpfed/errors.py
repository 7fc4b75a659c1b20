"""Exceptions that end a command with one sentence: a mistake that the user can fix, and Ctrl-C."""

from __future__ import annotations

import contextlib
import difflib
import functools
import os
import re
from collections.abc import Callable, Iterable, Iterator
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_MOST = 12  # names that a message lists
_LONGEST = 2000  # characters of a message; only a quoted name or cell full of nonsense makes a message longer
_END = 600  # characters that a shortened message keeps of its end, which says what to do
_CODE = re.compile(r" \[([a-z0-9]+(?:-[a-z0-9]+)+)\]$")


class UserError(Exception):
    """A mistake that the user can fix.

    The message is one clear sentence (or two): what was given, what was expected, what to do. It ends with a code, such as
    ``[store-format]``, which stays the same when the wording changes. The command line prints the message without a traceback
    and exits with code 2.

    Args:
        message: Message for the user of the machine on which the records are.
        public: The same message without names of records, for the logs of a cluster; the constructor appends the code of
            `message`. Default: `message`.
        command: Sentence about what to type on the command line. Only the command line prints this sentence: a Python
            program that calls dpfed has no command-line options.
    """

    def __init__(self, message: str, public: str | None = None, command: str = "") -> None:
        message = _shortened(message)
        super().__init__(message)
        self.public = f"{_shortened(public)} [{self.code}]" if public and self.code else _shortened(public or message)
        self.command = command

    def _render_traceback_(self) -> list[str]:
        """Returns the message alone, so that a notebook shows it without dpfed's stack frames."""
        return [f"{type(self).__name__}: {self}"]

    @property
    def code(self) -> str:
        """The code at the end of the message, such as ``store-format``; ``""``: the message has none."""
        match = _CODE.search(str(self))
        return match[1] if match else ""

    @property
    def sentence(self) -> str:
        """The message without its code, for quoting in another message."""
        return _CODE.sub("", str(self))


class Stopped(KeyboardInterrupt):
    """Ctrl-C, with a sentence for the user: how far the command got, and what resumes it."""


@contextlib.contextmanager
def goes_on(sentence: Callable[[], str]) -> Iterator[None]:
    """Turns a Ctrl-C within the block into `Stopped`, with a sentence for the user.

    Args:
        sentence: Function that makes the sentence; it is called only after a Ctrl-C.

    Raises:
        Stopped: If Ctrl-C interrupts the block.
    """
    try:
        yield
    except KeyboardInterrupt as stop:
        raise Stopped(sentence()) from stop


def short_traceback(function: Callable[P, R]) -> Callable[P, R]:
    """Shortens the traceback of a `UserError` to the caller's line; DPFED_TRACEBACK=1 keeps the whole traceback.

    Args:
        function: Function that users' programs call.
    """

    @functools.wraps(function)
    def called(*arguments: P.args, **options: P.kwargs) -> R:
        try:
            return function(*arguments, **options)
        except UserError as error:
            if os.environ.get("DPFED_TRACEBACK"):
                raise
            raise error.with_traceback(None) from error.__cause__

    return called


class Notice(UserWarning):
    """A warning by dpfed, such as about a slower way of computing. The command line prints it as a note."""


def _shortened(message: str) -> str:
    return message if len(message) <= _LONGEST else f"{message[: _LONGEST - _END]} ... {message[-_END:]}"


def nearest(given: str, valid: Iterable[str]) -> str:
    """Suggests the valid name nearest to a misspelt one.

    Args:
        given: Name that the user wrote.
        valid: Valid names.

    Returns:
        A phrase such as ``did you mean 'batch'?`` or, if no name is near, ``valid: a, b, c`` (at most 12 names, and the number
        of the others).
    """
    names = sorted(valid)
    match = difflib.get_close_matches(given, names, n=1, cutoff=0.6)
    if match:
        return f"did you mean '{match[0]}'?"
    return f"valid: {', '.join(names[:_MOST])}" + (f" and {len(names) - _MOST} more" if len(names) > _MOST else "")


def first_line(error: Exception) -> str:
    """Returns the first line of an error's message without its last punctuation; empty if there is no message."""
    return (str(error).splitlines() or [""])[0].rstrip(".:; ")
