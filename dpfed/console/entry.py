"""The entry point of every command: it runs the command, and turns errors into one sentence and an exit code."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

import click
import typer

from dpfed.console import interruption, logs
from dpfed.errors import Notice, UserError
from dpfed.paths import without_proxy

_NO_HOME = "Could not determine home directory"  # message of pathlib
# Phrases in messages of torch and Triton about a GPU that fails.
_NO_GPU = ("cuda error", "cuda driver error", "cudnn_status", "cublas_status", "triton error")
_NO_MEMORY = ("can't allocate memory", "out of memory", "cannot allocate memory")  # phrases of torch, on a CPU and on a GPU


def run(app: typer.Typer) -> None:
    """Runs a command line. A user's mistake ends the command with one sentence and exit code 2, never with a traceback.

    An error of the machine, such as a full disk, a missing permission or too little memory, counts as a user's mistake. A bug
    in dpfed keeps its traceback. With JSON logs, the sentence or the traceback is one line of the log. Ctrl-C and SIGTERM end
    the command with one sentence.
    """
    with interruption.interruptible():
        _run(app)


def _run(app: typer.Typer) -> NoReturn:
    if isinstance(sys.stdout, io.TextIOWrapper):  # a character that the terminal cannot show must not end a run
        sys.stdout.reconfigure(errors="replace")
    os.environ.update(without_proxy(os.environ))
    warnings.showwarning = functools.partial(_note, warnings.showwarning)
    try:
        for number, word in enumerate(sys.argv[1:], start=1):
            _require_utf8(number, word)
        sys.exit(_carried_out(app))
    except click.ClickException as error:
        _log_as_asked(error)
        if logs.active():
            _end(error.format_message())
        from typer.rich_utils import rich_format_error

        rich_format_error(error)
        sys.exit(error.exit_code)
    except _Stop as stop:
        _end(str(stop) or "stopped.", interruption.exit_code() or interruption.CODES[signal.SIGINT])
    except click.Abort:
        _end("the question was not answered, so the command ended.")
    except UserError as error:
        _end(" ".join(filter(None, (error.sentence, error.command, error.code and f"[{error.code}]"))))
    except BrokenPipeError:  # the reader of the output, such as `head`, has ended
        sys.stderr.close()
        sys.exit(1)
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not _has_working_folder():
            _end("the folder that this command was started in is gone: change to another folder.")
        what = error.strerror or str(error)
        _end(f"{error.filename}: {what}." if error.filename else f"the operating system reports: {what}.")
    except MemoryError:
        _end(_memory(""))
    except RuntimeError as error:
        if _NO_HOME in str(error):
            _end("a path begins with ~, but this user's home folder is unknown: set HOME, or give the whole path.")
        said = (str(error).splitlines() or [""])[0].strip()
        if any(phrase in str(error).lower() for phrase in _NO_MEMORY):
            _end(_memory(f" ({said})"))
        if any(phrase in said.lower() for phrase in _NO_GPU):
            _end(
                f"the GPU failed ({said}). When a GPU works again, repeat the command; if it was a run, `dpfed resume RUN` "
                "resumes it. Released steps stay charged."
            )
        _crash(error)
    except Exception as error:
        _crash(error)


class _Stop(Exception):
    """Raised in place of Ctrl-C, which Typer would turn into an exit without a message."""


def _carried_out(app: typer.Typer) -> int:
    """Runs a command and returns its exit code. An error that an interruption causes counts as the interruption, not as a bug.

    Raises:
        _Stop: If the command was interrupted.
    """
    try:
        code = _command(app)(standalone_mode=False)
    except (Exception, KeyboardInterrupt) as error:
        if isinstance(error, _Stop) or (interruption.exit_code() is None and not isinstance(error, KeyboardInterrupt)):
            raise
        raise _Stop from error
    if interruption.exit_code() is not None:
        raise _Stop
    return code if type(code) is int else 0


def _command(app: typer.Typer) -> click.Command:
    """Returns the app's command, which raises `_Stop` in place of Ctrl-C."""
    command = typer.main.get_command(app)
    invoke = command.invoke

    def stoppable(context: click.Context) -> Any:
        try:
            return invoke(context)
        except KeyboardInterrupt as stop:
            raise _Stop(str(stop)) from stop

    command.invoke = stoppable  # type: ignore[assignment, method-assign]
    return command


def _has_working_folder() -> bool:
    try:
        return bool(os.getcwd())
    except FileNotFoundError:
        return False


def _log_as_asked(error: click.ClickException) -> None:
    """Sets up the logs that a wrong command line asks for.

    A command sets up the logs when it starts, but a wrong command line starts no command.
    """
    asked = error.ctx.params if isinstance(error, click.UsageError) and error.ctx is not None else {}
    if asked.get("log_format") and not logs.active():
        with contextlib.suppress(UserError):  # two mistakes in one line: only the first is reported
            logs.set_up(asked["log_format"])


def _note(otherwise: Callable[..., None], message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
    """Shows dpfed's own warnings as notes, and other warnings as Python does."""
    if issubclass(category, Notice):
        print(f"note: {_printable(str(message))}", file=sys.stderr)
    else:
        otherwise(message, category, *rest, **more)


def _require_utf8(number: int, word: str) -> None:
    try:
        os.fsencode(word).decode()
    except UnicodeError:
        raise UserError(f"argument {number}, {word!r}, is not UTF-8: rename the file or folder. [argument-not-utf8]") from None


def _memory(detail: str) -> str:
    return (
        f"there is not enough memory{detail}: use a machine with more. A run needs less with a smaller model, data.size, "
        "bounding.microbatch or (on a GPU) bounding.pass_records. An interrupted run keeps its charged steps."
    )


def _crash(error: Exception) -> NoReturn:
    if not logs.active():
        raise error
    logs.write("error", "error", text="".join(traceback.format_exception(error)))
    sys.exit(1)


def _end(sentence: str, code: int = 2) -> NoReturn:
    """Prints or logs the sentence, with control characters escaped, and exits."""
    interruption.accept()
    if logs.active():
        logs.write("error", "error", text=_printable(sentence))
    else:
        print(f"{'error: ' if code == 2 else ''}{_printable(sentence)}", file=sys.stderr)
    sys.exit(code)


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() or char == "\n" else repr(char)[1:-1] for char in text)
