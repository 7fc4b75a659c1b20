"""Trains from a configuration, and makes a run directory with model, card and report.

This module also resumes an interrupted run, and makes the procedural initialisation of a model. The initialisation is itself an
ordinary run. dpfed makes it once, in a folder where every run that needs it finds it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from dpfed.artifacts.directory import RunDirectory
from dpfed.callbacks import Callback
from dpfed.config import Config, load_config
from dpfed.errors import UserError
from dpfed.progress import Progress, Silent
from dpfed.runs.job import create_job, refuse_federations, resume_job
from dpfed.runs.preflight import Preflight
from dpfed.runs.records import with_absolute_paths
from dpfed.runs.resolution import resolve_defaults, resolve_model_defaults
from dpfed.runs.running import run_job
from dpfed.runs.starts import procedural_path, recipe_for, start_is_there


def resume(folder: str | Path, progress: Progress | None = None, callbacks: Iterable[Callback] = ()) -> RunDirectory:
    """Resumes an interrupted run in this process; returns a finished run as it is.

    This function cannot resume a run with parts that were passed in Python (`dpfed.Trainer`): running the same lines of Python
    again resumes it.

    Args:
        folder: Folder of the run.
        progress: Progress, which shows the stages.
        callbacks: Callbacks that observe the training.

    Returns:
        The finished run.

    Raises:
        UserError: If the folder holds no run; if the run, its ledger or all its checkpoints are damaged; if its records have
            changed; if another process holds it; if parts of an interrupted run were passed in Python; or if it is the run of
            a federation, simulated or not.
    """
    progress = progress or Silent()
    run = RunDirectory.open(folder)
    if run.simulation.is_file():
        refuse_federations(run)
    with run.locked():
        if run.finished:
            run.delete_secrets()  # a crash may have prevented this before
            return run
        return run_job(resume_job(run, progress), progress, callbacks=callbacks)


def pretrain(
    config: Config | str | Path,
    folder: str | Path,
    progress: Progress | None = None,
    resume: bool = False,
    callbacks: Iterable[Callback] = (),
) -> RunDirectory:
    """Trains an encoder privately into a new run directory.

    Args:
        config: Configuration; `load_config` reads a path, or the name of a configuration that dpfed ships.
        folder: Folder of the new run. It must not be in use, except by this same run if `resume` is set.
        progress: Progress, which shows the stages.
        resume: Whether to continue the run if `folder` holds it already.
        callbacks: Callbacks that observe the training.

    Returns:
        The finished run.

    Raises:
        UserError: For every mistake that can be found before the run has a directory; for later mistakes see `resume`.
    """
    if isinstance(config, str | Path):
        config = load_config(config)
    if not isinstance(config, Config):
        raise UserError(
            f"expected the path of a configuration, or what dpfed.load_config or dpfed.parse_config returns, got "
            f"{type(config).__name__}. [run-config-type]"
        )
    progress = progress or Silent()
    return run_pretraining(Preflight.of(config, folder, progress=progress, resume=resume), progress, callbacks)


def run_pretraining(preflight: Preflight, progress: Progress, callbacks: Iterable[Callback] = ()) -> RunDirectory:
    """Begins the run that a preflight has checked, in this process, or resumes the run that its folder holds.

    Args:
        preflight: Preflight of the run.
        progress: Progress, which shows the stages.
        callbacks: Callbacks that observe the training.

    Returns:
        The finished run.

    Raises:
        UserError: See `pretrain`.
    """
    if preflight.there:
        RunDirectory.open(preflight.folder).refuse_another(resolve_defaults(preflight.config))
        return resume(preflight.folder, progress, callbacks)
    job = create_job(preflight, progress)
    with job.run.locked():
        return run_job(job, progress, callbacks=callbacks)


def make_start(config: Config, progress: Progress | None = None) -> tuple[Path, bool]:
    """Makes the procedural initialisation of a configuration's model; resumes it if interrupted, finds it if finished.

    Args:
        config: Configuration whose model is initialised.
        progress: Progress, which shows the stages.

    Returns:
        The directory of the initialisation's run, and whether a finished initialisation was found.

    Raises:
        UserError: If the initialisation cannot be trained or is damaged, or another process is making it.
    """
    progress = progress or Silent()
    config = resolve_model_defaults(with_absolute_paths(config))
    path = procedural_path(config)
    if RunDirectory.unused(path):
        recipe = recipe_for(config)
        progress.note(
            f"training initial weights on procedural (generated) images, once: {recipe.privacy.steps} steps, into {path}"
        )
        try:
            job = create_job(Preflight.of(recipe, path, progress=progress), progress)
        except UserError as error:
            raise UserError(
                f"the procedural initialisation in data.stores = {config.data.stores!r} cannot be made: {error.sentence} "
                "[start-failed]"
            ) from error
        with job.run.locked():
            run_job(job, progress)
        return path, False
    if start_is_there(config):
        return path, True
    run = RunDirectory.open(path)  # an interrupted run
    with run.locked():
        if not run.finished:
            progress.note(f"resuming the procedural initialisation in {path}")
            run_job(resume_job(run, progress), progress)
    return path, False
