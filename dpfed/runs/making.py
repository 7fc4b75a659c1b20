"""Makes the procedural start of a model: an ordinary run, once, into the folder where every run that wants it finds it."""

from __future__ import annotations

from pathlib import Path

from dpfed.config import Config
from dpfed.config.sections import PROCEDURAL
from dpfed.models.starting import MissingStart
from dpfed.progress import Silent, Watcher
from dpfed.runs.directory import RunDirectory
from dpfed.runs.job import begin, take_up
from dpfed.runs.paths import with_absolute_paths
from dpfed.runs.resolution import settle_model
from dpfed.runs.running import run_job
from dpfed.runs.starts import procedural_place, procedural_start, recipe_for


def make_start(config: Config, watcher: Watcher | None = None) -> tuple[Path, bool]:
    """Makes the procedural start of a configuration's model, goes on with one that was interrupted, or finds it.

    Args:
        config: that it is for.
        watcher: sees the stages.

    Returns:
        Its run's directory, and whether it was there already.

    Raises:
        UserError: if it cannot be trained, or another process is making it.
    """
    watcher = watcher or Silent()
    config = settle_model(with_absolute_paths(config))
    place = procedural_place(config)
    if RunDirectory.unused(place):
        recipe = recipe_for(config)
        watcher.note(f"making the procedural start of this model, once: {recipe.privacy.steps} steps, into {place}")
        job = begin(recipe, place, watcher)
        with job.run.locked():
            run_job(job, watcher)
        return place, False
    try:
        procedural_start(place)
        return place, True
    except MissingStart:  # it was interrupted
        run = RunDirectory.open(place)
    with run.locked():
        if not run.finished:
            watcher.note(f"going on with the procedural start in {place}")
            run_job(take_up(run, watcher), watcher)
    return place, False


def make_start_if_wanted(config: Config, watcher: Watcher) -> None:
    """Makes the start of a run that begins with a procedural one, unless it is there; see `make_start`."""
    if config.model.start == PROCEDURAL:
        make_start(config, watcher)
