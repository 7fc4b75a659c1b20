"""What a run says that was stopped: how far it came, and which command resumes it."""

from __future__ import annotations

from dpfed.artifacts.directory import RunDirectory
from dpfed.privacy.ledger import Ledger, has_begun


def stopped(run: RunDirectory, options: str = "") -> str:
    """How far a run came that the user ended, and which command resumes it.

    Args:
        run: its directory.
        options: of the command that resumes it.
    """
    done = Ledger.open(run.ledger).last_step + 1 if has_begun(run.ledger) else 0
    return f"stopped {f'after step {done:,}' if done else 'before the first step'}; {resuming_command(run, options)} resumes"


def resuming_command(run: RunDirectory, options: str = "") -> str:
    """The command that resumes a run, in words.

    Args:
        run: its directory.
        options: of the command.
    """
    institutions = run.terms.is_file() and not run.simulation.is_file()
    return "its server, started again (`flwr run`)," if institutions else f"`dpfed resume {run.path}{options}`"
