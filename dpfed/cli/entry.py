"""How every command of the project ends."""

from __future__ import annotations

import sys

import typer

from dpfed.errors import UserError


def run(app: typer.Typer) -> None:
    """Runs a command line: a user's mistake is one sentence and exit code 2, never a traceback."""
    try:
        app()
    except UserError as error:
        print(f"error: {error} {error.command}".rstrip(), file=sys.stderr)
        sys.exit(2)
