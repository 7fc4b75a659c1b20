"""Writes logs for machines: one JSON object per line, on stderr, which service managers and containers collect.

Each line has a time, as operators expect. The duration of a step depends on the records that it drew, and epsilon does not
cover durations. So the logs must stay with the operator.
"""

from __future__ import annotations

import datetime
import json
import logging
import logging.handlers
import math
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dpfed.errors import UserError
from dpfed.progress import Progress

if TYPE_CHECKING:
    from dpfed.callbacks import StepSummary
    from dpfed.evaluation.measured import Evaluation

FORMAT = "DPFED_LOG_FORMAT"  # environment variable, for processes that other processes start
_EVERY = 15.0  # seconds between two lines of progress
_LOG = logging.getLogger("dpfed.log")


def set_up(form: str | None = None) -> None:
    """Chooses the format of this process's logs.

    Args:
        form: ``text`` or ``json``; ``None``: the value of ``DPFED_LOG_FORMAT`` in the environment, otherwise ``text``.

    Raises:
        UserError: If `form`, or the value in the environment, is neither ``text`` nor ``json``.
    """
    form = form or os.environ.get(FORMAT) or "text"
    if form not in ("text", "json"):
        raise UserError(f"--log-format, or {FORMAT}, is {form!r}: expected 'text' or 'json'. [log-format-unknown]")
    end()
    if form == "text":
        return
    _LOG.addHandler(logging.StreamHandler(sys.stderr))
    _LOG.setLevel(logging.INFO)
    _LOG.propagate = False
    logging.captureWarnings(True)
    logging.getLogger().addHandler(_OTHERS)


def end() -> None:
    """Ends JSON logging: from then on, output is text for people again."""
    logging.getLogger().removeHandler(_OTHERS)
    logging.captureWarnings(False)
    for handler in list(_LOG.handlers):
        _LOG.removeHandler(handler)
    _LOG.propagate = True


def active() -> bool:
    """Returns whether this process logs JSON lines."""
    return bool(_LOG.handlers)


def write(event: str, level: str = "info", **facts: Any) -> None:
    """Writes a line to the log, if this process logs JSON lines.

    Args:
        event: Name of the event: ``say``, ``note``, ``stage``, ``progress``, ``evaluated``, ``figures``, ``warning`` or
            ``error``.
        level: Level: ``info``, ``warning`` or ``error``.
        facts: Further fields of the line; values that are not JSON are written as text.
    """
    if active():
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        line = {"time": now, "level": level, "event": event, "process": os.getpid(), **facts}
        _LOG.log(logging.ERROR if level == "error" else logging.INFO, json.dumps(_finite(line), default=str, allow_nan=False))


class JsonProgress(Progress):
    """A `Progress` that writes JSON lines to the log."""

    def stage(self, name: str, total: int | None) -> Callable[[int], None]:
        """See `Progress`."""
        write("stage", name=name, total=total)
        last = time.monotonic()

        def advance(done: int) -> None:
            nonlocal last
            now = time.monotonic()
            if now - last >= _EVERY or done == total:
                last = now
                write("progress", name=name, done=done, total=total)

        return advance

    def note(self, text: str) -> None:
        """See `Progress`."""
        write("note", text=text)

    def on_evaluation(self, figures: list[Evaluation]) -> None:
        """See `Callback`."""
        for figure in figures:
            write("evaluated", name=figure.name, value=figure.value, model=figure.model, split=figure.split, step=figure.step)

    def on_step(self, step: StepSummary) -> None:
        """See `Callback`."""
        write("figures", step=step.done, values=step.scalars())


class _OfOthers(logging.Handler):
    """Handler that writes warnings of libraries and of Python as JSON lines, so that the log has no other lines."""

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`."""
        event = "error" if record.levelno >= logging.ERROR else "warning"
        write(event, event, logger=record.name, text=self.format(record))


_OTHERS = _OfOthers(logging.WARNING)


def _finite(value: Any) -> Any:
    """Returns a value that JSON can represent: nan and the infinities become text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value
