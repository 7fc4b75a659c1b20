"""Makes the procedural start of a model: an ordinary run, once, into the folder where every run that wants it finds it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dpfed.artifacts.directory import RunDirectory
from dpfed.config import Config
from dpfed.config.sections import PROCEDURAL
from dpfed.errors import UserError
from dpfed.models.starting import MissingStart
from dpfed.privacy.method import method_named
from dpfed.progress import Silent, Watcher
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
        try:
            job = begin(recipe, place, watcher)
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
            watcher.note(f"going on with the procedural start in {place}")
            run_job(take_up(run, watcher), watcher)
    return place, False


def start_is_there(config: Config) -> bool:
    """Whether the procedural start of a configuration's model is there, whole.

    Args:
        config: that it is for, its model settled.

    Raises:
        UserError: if it is damaged.
    """
    place = procedural_place(config)
    try:
        return not RunDirectory.unused(place) and procedural_start(place) is not None
    except MissingStart:
        return False


def make_start_if_wanted(config: Config, watcher: Watcher, first: Callable[[Config], object]) -> None:
    """Makes the start of a run that begins with a procedural one, unless it is there; see `make_start`.

    Args:
        config: of the run.
        watcher: sees the stages.
        first: does whatever may refuse the run, without its start: training one takes minutes, and is for nothing then.

    Raises:
        UserError: whatever `first` and `make_start` raise.
    """
    if config.model.start != PROCEDURAL:
        return
    settled = settle_model(with_absolute_paths(config))
    if not start_is_there(settled):
        first(_without_start(config))
    make_start(config, watcher)


def _without_start(config: Config) -> Config:
    """The same run from random weights, by an engine that need not be chosen by timing."""
    model = config.model.model_copy(update={"start": None, "start_digest": None})
    engines = method_named(config.bounding.method).picks_engine and config.bounding.engine == "auto"
    bounding = config.bounding.model_copy(update={"engine": "loop"} if engines else {})
    return config.model_copy(update={"model": model, "bounding": bounding})
