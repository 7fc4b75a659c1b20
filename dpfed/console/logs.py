"""Logs for machines: a JSON object a line, on stderr, which service managers and containers collect.

Lines have a time, as every operator's log has. How long a step takes depends on what it drew, and epsilon does not cover it: so
logs stay with the operator.
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

FORMAT = "DPFED_LOG_FORMAT"  # in the environment, for processes that others start
_EVERY = 15.0  # seconds between two lines of progress
_LOG = logging.getLogger("dpfed.log")


def set_up(form: str | None = None) -> None:
    """Chooses how this process logs.

    Args:
        form: ``text`` or ``json``; ``None``: as the environment says, otherwise ``text``.

    Raises:
        UserError: for another format.
    """
    form = form or os.environ.get(FORMAT) or "text"
    if form not in ("text", "json"):
        raise UserError(f"the format of logs is {form!r}: expected 'text' or 'json'. [log-format-unknown]")
    end()
    if form == "text":
        return
    _LOG.addHandler(logging.StreamHandler(sys.stderr))
    _LOG.setLevel(logging.INFO)
    _LOG.propagate = False
    logging.captureWarnings(True)
    logging.getLogger().addHandler(_OTHERS)


def end() -> None:
    """Lines are for people again."""
    logging.getLogger().removeHandler(_OTHERS)
    logging.captureWarnings(False)
    for handler in list(_LOG.handlers):
        _LOG.removeHandler(handler)
    _LOG.propagate = True


def active() -> bool:
    """Whether lines are for machines."""
    return bool(_LOG.handlers)


def write(event: str, level: str = "info", **facts: Any) -> None:
    """A line, if lines are for machines.

    Args:
        event: what happened: ``say``, ``note``, ``stage``, ``progress``, ``evaluated``, ``figures``, ``warning`` or ``error``.
        level: ``info``, ``warning`` or ``error``.
        facts: whatever is JSON.
    """
    if active():
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        line = {"time": now, "level": level, "event": event, "process": os.getpid(), **facts}
        _LOG.log(logging.ERROR if level == "error" else logging.INFO, json.dumps(_finite(line), default=str, allow_nan=False))


class JsonProgress(Progress):
    """A `Progress` that logs."""

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
    """What libraries and Python warn of, as lines of ours: whoever reads the log meets nothing else."""

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`."""
        event = "error" if record.levelno >= logging.ERROR else "warning"
        write(event, event, logger=record.name, text=self.format(record))


_OTHERS = _OfOthers(logging.WARNING)


def _finite(value: Any) -> Any:
    """The same as JSON can say it: a number that is none becomes a word."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, list | tuple) else value
