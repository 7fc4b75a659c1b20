"""Words the messages of a stopped run: the number of steps that it has taken, and the command that resumes it."""

from __future__ import annotations

from dpfed.artifacts.directory import RunDirectory
from dpfed.privacy.ledger import Ledger, has_begun


def stopped(run: RunDirectory, options: str = "") -> str:
    """Describes how many steps a stopped run has taken, and which command resumes it.

    Args:
        run: Directory of the run.
        options: Options of the command that resumes the run, with a leading space.
    """
    done = Ledger.open(run.ledger).last_step + 1 if has_begun(run.ledger) else 0
    return f"stopped {f'after step {done:,}' if done else 'before the first step'}; {resuming_command(run, options)} resumes"


def resuming_command(run: RunDirectory, options: str = "") -> str:
    """Describes the command that resumes a run.

    Args:
        run: Directory of the run.
        options: Options of the command, with a leading space.
    """
    if run.terms.is_file() and not run.simulation.is_file():
        return "`dpfed federation run FOLDER` on the coordinator's machine"
    return f"`dpfed resume {run.path}{options}`"
