"""How every command of the project ends."""

from __future__ import annotations

import io
import sys

import typer

from dpfed.errors import UserError


def run(app: typer.Typer) -> None:
    """Runs a command line: a user's mistake is one sentence and exit code 2, never a traceback."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a character that the terminal does not know must not end a run
        sys.stdout.reconfigure(errors="replace")
    try:
        app()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
