"""Describes, for messages, what resumes an unfinished run."""

from __future__ import annotations

import shlex

from dpfed.artifacts.directory import RunDirectory
from dpfed.errors import UserError
from dpfed.files.toml_file import leaves
from dpfed.schema.named import in_python


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
