"""Goes on with a run that was interrupted."""

from __future__ import annotations

from pathlib import Path

from dpfed.artifacts.directory import RunDirectory
from dpfed.progress import Silent, Watcher
from dpfed.runs.job import take_up
from dpfed.runs.running import run_job


def resume(folder: str | Path, watcher: Watcher | None = None) -> RunDirectory:
    """Goes on with a run that was interrupted; a finished run is returned as it is.

    Raises:
        UserError: if the run, its ledger or its checkpoint is damaged, or another process holds it.
    """
    watcher = watcher or Silent()
    run = RunDirectory.open(folder)
    if run.simulation.is_file():
        from dpfed.federation.simulation import resume_simulation  # what it imports, only few runs need

        return resume_simulation(run, watcher)
    with run.locked():
        if run.finished:
            run.forget_key()  # a crash may have come in between
            return run
        return run_job(take_up(run, watcher), watcher)
