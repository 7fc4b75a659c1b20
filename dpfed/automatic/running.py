"""Trains from a data set and an epsilon; the result is a run directory with model, card and report."""

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
    """Makes all choices and trains; the same request resumes an interrupted run, and returns a finished one.

    Args:
        request: what the user gave.
        folder: the run's folder.
        progress: shows the stages.
        callbacks: called while the model trains.
        say: called with the choices, before any privacy budget is spent.

    Raises:
        UserError: see `choose`; also if the folder holds another run.
    """
    progress = progress or Silent()
    config, comments = settle(request, folder, True, progress, say or (lambda chosen: None))
    preflight = Preflight.of(config, folder, 1, progress, resume=True, comments=comments)
    return pretraining.run_pretraining(preflight, progress, callbacks)


def settle(
    request: Request, folder: str | Path, resume: bool, progress: Progress, say: Callable[[Chosen], None]
) -> tuple[Config, Sequence[str]]:
    """Returns the configuration of a request's run and the lines that explain it, and makes its procedural initialisation.

    Args:
        request: what the user gave.
        folder: the run's folder.
        resume: whether `folder` may hold the run already. Its configuration is then read, not chosen again.
        progress: shows the stages.
        say: called with the choices.

    Raises:
        UserError: see `choose`; also if the folder is in use, or holds another run.
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
    """Refuses to resume a run that differs from the request.

    Args:
        request: its data set, epsilon, model and public records, and every key that it sets, must be those of the run.
        folder: the run's folder.

    Raises:
        UserError: it names the first difference.
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
                f"give {key} = {kept.get(key)}. [automatic-other-run]",
                command="On the command line: --run DIR",
            )


def _same(kept: Any, asked: Any) -> bool:
    """Whether a run's value equals the requested one; the run's paths are absolute."""
    if isinstance(kept, str) and isinstance(asked, str):
        return asked in (kept, "auto") or os.path.realpath(os.path.expanduser(asked)) == os.path.realpath(kept)
    return bool(kept == asked or (isinstance(kept, list) and isinstance(asked, tuple) and kept == list(asked)))
