"""Words the messages of a stopped run: the number of steps that it has taken, and what resumes it."""

from __future__ import annotations

import shlex

from dpfed.artifacts.directory import RunDirectory
from dpfed.errors import UserError
from dpfed.files.toml_file import leaves
from dpfed.privacy.ledger import Ledger, has_begun
from dpfed.schema.named import in_python


def stopped(run: RunDirectory, options: str = "") -> str:
    """Describes how many steps a stopped run has taken, and what resumes it.

    Args:
        run: Directory of the run.
        options: Options of the command that resumes the run, with a leading space.
    """
    done = Ledger.open(run.ledger).last_step + 1 if has_begun(run.ledger) else 0
    return f"stopped {f'after step {done:,}' if done else 'before the first step'}; {resuming_command(run, options)} resumes"


def resuming_command(run: RunDirectory, options: str = "") -> str:
    """Describes what resumes a run: a command, or the same lines of Python if the run has parts that were passed in Python.

    Args:
        run: Directory of the run.
        options: Options of the command, with a leading space.
    """
    if run.terms.is_file() and not run.simulation.is_file():
        return "`dpfed federation run FOLDER` on the coordinator's machine"
    if _has_parts_in_python(run):
        return "running the same lines of Python again"
    return f"`dpfed resume {shlex.quote(str(run.path))}{options}`"


def _has_parts_in_python(run: RunDirectory) -> bool:
    try:
        values = leaves(run.config().model_dump()).values()
    except (OSError, UserError):  # the reason for which the run stopped is told, and not this
        return False
    return any(isinstance(value, str) and in_python(value) for value in values)
