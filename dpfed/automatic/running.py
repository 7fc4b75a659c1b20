"""Trains from a data set and an epsilon; the result is a run directory with model, card and report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from dpfed.artifacts.directory import RunDirectory
from dpfed.automatic.choosing import Chosen, choose
from dpfed.automatic.request import Request
from dpfed.automatic.towers import given_towers
from dpfed.callbacks import Callback
from dpfed.config import Config
from dpfed.errors import UserError
from dpfed.files.toml_file import leaves, put
from dpfed.models.options import PROCEDURAL
from dpfed.paths import local_path
from dpfed.progress import Progress, Silent
from dpfed.runs import pretraining
from dpfed.runs.preflight import Preflight
from dpfed.runs.records import with_absolute_paths

_NAMES = {
    "privacy.epsilon": "epsilon",
    "privacy.delta": "delta",
    "privacy.batch": "batch",
    "privacy.steps": "steps",
    "bounding.method": "method",
}


def pretrain(
    request: Request,
    folder: str | Path,
    progress: Progress | None = None,
    callbacks: Iterable[Callback] = (),
    say: Callable[[Chosen], None] | None = None,
    resume: bool = True,
) -> RunDirectory:
    """Makes all choices and trains.

    If the folder already holds the run of this request, the function resumes that run, or returns it if it is finished.

    Args:
        request: Request of the user.
        folder: Folder of the run.
        progress: Display of the stages; ``None``: no display.
        callbacks: Callbacks that are called while the model trains.
        say: Function that is called with the choices, before any privacy budget is spent; ``None``: no function.
        resume: Whether `folder` may hold the run already; ``False``: it must not be in use.

    Returns:
        The directory of the finished run.

    Raises:
        UserError: If `choose` raises one; if the folder holds another run, is in use although `resume` is ``False``, or cannot
            be made; if another process trains the run; or if the run is damaged or its records have changed.
    """
    progress = progress or Silent()
    config, comments = settle(request, folder, resume, progress, say or (lambda chosen: None))
    preflight = Preflight.of(config, folder, 1, progress, resume=resume, comments=comments)
    return pretraining.run_pretraining(preflight, progress, callbacks)


def settle(
    request: Request, folder: str | Path, resume: bool, progress: Progress, say: Callable[[Chosen], None]
) -> tuple[Config, Sequence[str]]:
    """Returns the configuration of a request's run and the lines that explain it.

    If a new run starts from a procedural initialisation, the function also makes the initialisation.

    Args:
        request: Request of the user.
        folder: Folder of the run.
        resume: Whether `folder` may hold the run already. Its configuration is then read, not chosen again.
        progress: Display of the stages.
        say: Function that is called with the choices.

    Returns:
        The configuration, and the comment lines; no lines for a run that exists already.

    Raises:
        UserError: If `choose` raises one; if the folder holds another run, is in use although `resume` is ``False``, or cannot
            be made; or if the initialisation cannot be made.
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

    The comparison leaves out three kinds of settings: keys that the user did not set, or reset to their defaults by ``KEY=``
    (except ``model.start``); keys that the user set to ``auto``, for which the run chooses a value; and the minutes, which no
    run stores.

    Args:
        request: Request of the user. Its data set, epsilon, model, public records (if the run's method is ``public``) and
            every key that it sets must be those of the run.
        folder: Folder of the run.

    Raises:
        UserError: If the run differs; the message names the first difference.
    """
    config, given = RunDirectory.open(folder).config(), request.given()
    if request.model is not None:
        given = given_towers(request.model, config.model.reads_text, given).keys | given
    if request.public is not None and config.bounding.method == "public":
        given["public.source"], given["public.path"] = "store", str(local_path(request.public, "public"))
    tree = config.model_dump(mode="json", exclude_none=True)
    for key, value in given.items():
        put(tree, key, value)
    asked = with_absolute_paths(Config.unchecked(**tree).effective())
    kept, wanted = (leaves(settings.model_dump(mode="json")) for settings in (config, asked))
    there: dict[str, tuple[object, object]] = {"data": (config.data.path, str(local_path(request.data, "data").resolve()))}
    there["epsilon"] = (config.privacy.epsilon, float(request.epsilon))
    settled = {key for key, value in given.items() if value == "auto" or (value is None and key != "model.start")}
    there |= {_NAMES.get(key, key): (kept.get(key), wanted.get(key)) for key in given if key not in settled}
    for name, (value, other) in there.items():
        if value != other:
            value, other = ("its default" if shown is None else shown for shown in (value, other))
            raise UserError(
                f"{folder} holds a run with {name} = {value}, but this request has {other}: choose another folder, or give the "
                "same value. [automatic-other-run]",
                command="On the command line: --run DIR",
            )
