"""Writes the message of a stopped run: the number of steps that it has taken, and what resumes it."""

from __future__ import annotations

from dpfed.artifacts.directory import RunDirectory
from dpfed.artifacts.resuming import resuming_command
from dpfed.privacy.ledger import Ledger, has_begun


def stopped(run: RunDirectory, options: str = "") -> str:
    """Describes how many steps a stopped run has taken, and what resumes it.

    Args:
        run: Directory of the run.
        options: Options of the command that resumes the run, with a leading space.
    """
    done = Ledger.open(run.ledger).last_step + 1 if has_begun(run.ledger) else 0
    return f"stopped {f'after step {done:,}' if done else 'before the first step'}; {resuming_command(run, options)} resumes"
