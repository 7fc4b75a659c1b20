"""The main job in one line: a data set and an epsilon in, a run directory with model, card and report out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from dpfed.artifacts.directory import RunDirectory
from dpfed.automatic.choosing import Chosen, choose
from dpfed.automatic.request import Request
from dpfed.callbacks import Callback
from dpfed.errors import UserError
from dpfed.models.options import PROCEDURAL
from dpfed.paths import local_path
from dpfed.progress import Progress, Silent
from dpfed.runs import pretraining
from dpfed.runs.preflight import Preflight


def pretrain(
    request: Request,
    folder: str | Path,
    progress: Progress | None = None,
    callbacks: Iterable[Callback] = (),
    say: Callable[[Chosen], None] | None = None,
) -> RunDirectory:
    """Chooses what a run needs, and trains; the same request resumes its run, or returns it if it is finished.

    Args:
        request: of the user.
        folder: of the run.
        progress: sees the stages.
        callbacks: look on while the model trains.
        say: told what was chosen, before anything is spent.

    Raises:
        UserError: see `choose`; for a folder that holds another run.
    """
    progress = progress or Silent()
    if not RunDirectory.unused(folder):
        refuse_another(request, folder)
        return pretraining.resume(folder, progress, callbacks)
    RunDirectory.refuse_unusable(folder)
    chosen = choose(request, progress)
    if say is not None:
        say(chosen)
    return pretraining.run_pretraining(prepared(chosen, folder, progress), progress, callbacks)


def prepared(chosen: Chosen, folder: str | Path, progress: Progress, world_size: int = 1) -> Preflight:
    """The preflight of a run, whose procedural initialisation is there.

    Args:
        chosen: for the run.
        folder: of the run.
        progress: sees the stages.
        world_size: processes that are to share the groups.
    """
    preflight = Preflight.of(chosen.config, folder, world_size, progress, comments=chosen.comments)
    make_start(chosen, progress)
    return preflight


def make_start(chosen: Chosen, progress: Progress) -> None:
    """Makes the procedural initialisation that the model starts from, unless it is there."""
    if chosen.config.model.start == PROCEDURAL:
        pretraining.make_start(chosen.config, progress)


def refuse_another(request: Request, folder: str | Path) -> None:
    """Refuses a run of other records, or of another epsilon, in the folder that a request is for.

    Raises:
        UserError: naming what differs.
    """
    config, given = RunDirectory.open(folder).config(), request.given()
    path = str(local_path(request.data, "data"))
    there = {"data": (config.data.path, path), "epsilon": (config.privacy.epsilon, float(request.epsilon))}
    for key, name in (("privacy.batch", "batch"), ("privacy.steps", "steps"), ("bounding.method", "method")):
        if key in given:
            section, _, last = key.partition(".")
            there[name] = (getattr(getattr(config, section), last), given[key])
    for name, (kept, asked) in there.items():
        if kept != asked:
            raise UserError(
                f"{folder} holds a run with {name} = {kept}, and {asked} is asked for now: choose another folder, or ask for "
                "the same. [automatic-other-run]",
                command="On the command line: --run DIR",
            )
