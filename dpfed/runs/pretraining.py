"""The whole job, top to bottom: a configuration in, a run directory with model, card and report out."""

from __future__ import annotations

from pathlib import Path

from dpfed.artifacts.directory import RunDirectory
from dpfed.config import Config, load_config
from dpfed.errors import UserError
from dpfed.progress import Silent, Watcher
from dpfed.runs.job import begin
from dpfed.runs.preflight import Preflight
from dpfed.runs.resolution import settle
from dpfed.runs.resuming import resume as resume_run
from dpfed.runs.running import run_job


def pretrain(
    config: Config | str | Path, folder: str | Path, watcher: Watcher | None = None, resume: bool = False
) -> RunDirectory:
    """Trains an encoder privately into a new run directory.

    Args:
        config: what to do; a path, or the name of a config that dpfed ships, is read by `load_config`.
        folder: must not be in use, but by this very run if `resume`.
        watcher: sees the stages.
        resume: go on if the run is there already.

    Returns:
        The finished run.

    Raises:
        UserError: before anything is written, for whatever can be known to be wrong by then.
    """
    if isinstance(config, str | Path):
        config = load_config(config)
    if not isinstance(config, Config):
        raise UserError(
            f"expected the path of a configuration, or one of dpfed.load_config or dpfed.parse_config, got "
            f"{type(config).__name__}."
        )
    watcher = watcher or Silent()
    return carry_out(Preflight.of(config, folder, watcher=watcher, resume=resume), watcher)


def carry_out(preflight: Preflight, watcher: Watcher) -> RunDirectory:
    """Begins the run of a preflight in this process, or resumes the one that is there.

    Args:
        preflight: of the run.
        watcher: sees the stages.

    Raises:
        UserError: see `pretrain`.
    """
    if preflight.there:
        RunDirectory.open(preflight.folder).refuse_another(settle(preflight.config))
        return resume_run(preflight.folder, watcher)
    job = begin(preflight, watcher)
    with job.run.locked():
        return run_job(job, watcher)
