"""Logs for machines: a JSON object a line, on stderr or in a file.

Lines have a time, as every operator's log has. How long a step takes depends on what it drew, and epsilon does not cover it: so
logs stay with the operator, and never lie in a run's folder.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import logging.handlers
import math
import os
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfed.errors import UserError

if TYPE_CHECKING:
    from dpfed.evaluation.suite import Evaluation

FORMAT, FILE = "DPFED_LOG_FORMAT", "DPFED_LOG_FILE"  # in the environment, for processes that others start
_EVERY = 15.0  # seconds between two lines of progress
_LOG = logging.getLogger("dpfed.log")


def set_up(form: str | None = None, file: Path | None = None) -> None:
    """Chooses how this process logs.

    Args:
        form: ``text`` or ``json``; ``None``: as the environment says, otherwise ``text``.
        file: where JSON lines go; ``None``: as the environment says, otherwise stderr.

    Raises:
        UserError: for another format, a file without JSON, or one that cannot be written.
    """
    form = form or os.environ.get(FORMAT) or "text"
    file = file or (Path(os.environ[FILE]) if os.environ.get(FILE) else None)
    if form not in ("text", "json"):
        raise UserError(f"the format of logs is {form!r}: expected 'text' or 'json'.")
    end()
    if form == "text":
        if file is not None:
            raise UserError(f"{file} would hold lines for machines: give --log-format json as well, or leave --log-file out.")
        return
    if file is not None and any(map(_is_run_or_site, (file.absolute().parent.resolve() / file.name).parents)):
        raise UserError(f"{file} lies in a run's or a site's folder, and a log has times in it: choose another place.")
    _LOG.addHandler(_handler(file))
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
        with contextlib.suppress(OSError, ValueError):  # what is left of a full disk
            handler.close()


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


class JsonWatcher:
    """A `Watcher` that logs."""

    def stage(self, name: str, total: int | None) -> Callable[[int], None]:
        """See `Watcher`."""
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
        """See `Watcher`."""
        write("note", text=text)

    def evaluated(self, figures: list[Evaluation]) -> None:
        """See `Watcher`."""
        for figure in figures:
            write("evaluated", name=figure.name, value=figure.value, model=figure.model, split=figure.split, step=figure.step)

    def figures(self, step: int, values: dict[str, float]) -> None:
        """See `Watcher`."""
        write("figures", step=step, values=values)


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


def _is_run_or_site(folder: Path) -> bool:
    return (folder / "site.toml").exists() or ((folder / "config.toml").exists() and (folder / ".lock").exists())


def _handler(file: Path | None) -> logging.Handler:
    if file is None:
        return logging.StreamHandler(sys.stderr)
    try:
        descriptor = os.open(file, os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError as error:
        raise UserError(f"cannot write the log {file}: {error.strerror or error}; choose another --log-file.") from error
    with open(descriptor, "ab") as opened:
        mode = os.fstat(opened.fileno()).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISCHR(mode)):  # one end of a pipe: a process would wait for the other one for ever
        raise UserError(f"cannot write the log {file}: it is no ordinary file; choose another --log-file.")
    return _OwnersFile(file, encoding="utf-8")


class _OwnersFile(logging.handlers.WatchedFileHandler):
    """A file that only its owner reads, made anew when logrotate has taken it away. One that cannot be written ends no run.

    Several processes may write to one: each line is one write at the file's end.
    """

    def _open(self) -> Any:
        return open(
            self.baseFilename, self.mode, encoding=self.encoding, opener=lambda name, flags: os.open(name, flags, 0o600)
        )

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`."""
        with contextlib.suppress(OSError):
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  logging's name
        """See `logging.Handler`."""
