"""Makes the procedural start of a model: an ordinary run, once, into the folder where every run that wants it finds it."""

from __future__ import annotations

from pathlib import Path

from dpfed.artifacts.directory import RunDirectory
from dpfed.config import Config
from dpfed.errors import UserError
from dpfed.progress import Silent, Watcher
from dpfed.runs.job import begin, take_up
from dpfed.runs.paths import with_absolute_paths
from dpfed.runs.preflight import Preflight
from dpfed.runs.resolution import settle_model
from dpfed.runs.running import run_job
from dpfed.runs.starts import procedural_place, recipe_for, start_is_there


def make_start(config: Config, watcher: Watcher | None = None) -> tuple[Path, bool]:
    """Makes the procedural start of a configuration's model, goes on with one that was interrupted, or finds it.

    Args:
        config: that it is for.
        watcher: sees the stages.

    Returns:
        Its run's directory, and whether it was there already.

    Raises:
        UserError: if it cannot be trained or is damaged, or another process is making it.
    """
    watcher = watcher or Silent()
    config = settle_model(with_absolute_paths(config))
    place = procedural_place(config)
    if RunDirectory.unused(place):
        recipe = recipe_for(config)
        watcher.note(f"making the procedural start of this model, once: {recipe.privacy.steps} steps, into {place}")
        try:
            job = begin(Preflight.of(recipe, place, watcher=watcher), watcher)
        except UserError as error:
            raise UserError(f"the procedural start, which goes into data.stores = {config.data.stores!r}: {error}") from error
        with job.run.locked():
            run_job(job, watcher)
        return place, False
    if start_is_there(config):
        return place, True
    run = RunDirectory.open(place)  # it was interrupted
    with run.locked():
        if not run.finished:
            watcher.note(f"resuming the procedural start in {place}")
            run_job(take_up(run, watcher), watcher)
    return place, False
