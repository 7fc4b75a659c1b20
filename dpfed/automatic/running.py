"""The main job in one line: a data set and an epsilon in, a run directory with model, card and report out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from dpfed.artifacts.directory import RunDirectory
from dpfed.automatic.choosing import Chosen, choose
from dpfed.automatic.request import Request
from dpfed.automatic.towers import given_towers
from dpfed.callbacks import Callback
from dpfed.config import Config
from dpfed.errors import UserError
from dpfed.files.toml_file import leaves
from dpfed.models.options import PROCEDURAL
from dpfed.paths import local_path
from dpfed.progress import Progress, Silent
from dpfed.runs import pretraining
from dpfed.runs.preflight import Preflight

_NAMES_A_MODEL = ("model.kind", "model.image", "model.architecture", "model.start")


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
        say: is called with what was chosen, before anything is spent.

    Raises:
        UserError: see `choose`; for a folder that holds another run.
    """
    progress = progress or Silent()
    config, comments = settle(request, folder, True, progress, say or (lambda chosen: None))
    preflight = Preflight.of(config, folder, 1, progress, resume=True, comments=comments)
    return pretraining.run_pretraining(preflight, progress, callbacks)


def settle(
    request: Request, folder: str | Path, resume: bool, progress: Progress, say: Callable[[Chosen], None]
) -> tuple[Config, Sequence[str]]:
    """The configuration of a request's run, and the lines that explain it. A procedural initialisation is made, if it has one.

    Args:
        request: of the user.
        folder: of the run.
        resume: a run may be there already. Its configuration was chosen before, and is not chosen again.
        progress: sees the stages.
        say: is called with what was chosen.

    Raises:
        UserError: see `choose`; for a folder that is in use, or holds another run.
    """
    if resume and not RunDirectory.unused(folder):
        refuse_another(request, folder)
        return RunDirectory.open(folder).config(), ()
    RunDirectory.refuse_unusable(folder)
    chosen = choose(request, progress)
    say(chosen)
    if chosen.config.model.start == PROCEDURAL:
        pretraining.make_start(chosen.config, progress)
    return chosen.config, chosen.comments


def refuse_another(request: Request, folder: str | Path) -> None:
    """Refuses a run in the folder of a request that is not the request's.

    Args:
        request: what it names is compared: data, epsilon, model, public records, and every key that it sets.
        folder: of the run.

    Raises:
        UserError: naming what differs.
    """
    config = RunDirectory.open(folder).config()
    given = request.given()
    asked: dict[str, Any] = {"data.path": str(local_path(request.data, "data")), **given}
    if request.model is not None:
        named = given_towers(request.model, config.model.reads_text, given).keys
        asked |= {key: value for key, value in named.items() if key in _NAMES_A_MODEL}
    if request.public is not None:
        asked["public.path"] = str(local_path(request.public, "--public"))
    kept = leaves(config.model_dump(mode="json"))
    for key, value in asked.items():
        if value is not None and not _same(kept.get(key), value):
            raise UserError(
                f"{folder} holds a run with {key} = {kept.get(key)}, and {value} is asked for now: choose another folder, or "
                "ask for the same. [automatic-other-run]",
                command="On the command line: --run DIR",
            )


def _same(kept: Any, asked: Any) -> bool:
    """Whether a run has what is asked for; its paths are absolute."""
    if isinstance(kept, str) and isinstance(asked, str):
        return asked in (kept, "auto") or os.path.realpath(os.path.expanduser(asked)) == os.path.realpath(kept)
    return bool(kept == asked or (isinstance(kept, list) and isinstance(asked, tuple) and kept == list(asked)))
