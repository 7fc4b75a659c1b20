"""The function `dpfed.pretrain` for programs and notebooks, with visible progress.

The function trains from a configuration (`dpfed.runs.pretraining`), or from a data set and an epsilon (`dpfed.automatic`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfed.artifacts.directory import RunDirectory
from dpfed.automatic.request import Request
from dpfed.callbacks import Callback
from dpfed.callbacks.callback import listed
from dpfed.config import Config, load_config
from dpfed.console.terminal import console, watching
from dpfed.errors import UserError, short_traceback
from dpfed.progress import Progress, Silent
from dpfed.runs import pretraining

if TYPE_CHECKING:
    from dpfed.automatic.choosing import Chosen


@contextlib.contextmanager
def shown(progress: Progress | bool | None) -> Iterator[Progress]:
    """Yields the progress display that the caller asked for.

    Args:
        progress: A `Progress` to use; ``None``: bars in a terminal or notebook, nothing elsewhere; ``True``: bars in a terminal
            or notebook, elsewhere a line now and then; ``False``: nothing. A notebook without ipywidgets gets lines, not bars.

    Raises:
        UserError: If the value is none of these.
    """
    if isinstance(progress, Progress):
        yield progress
    elif progress is True or (progress is None and (console.is_terminal or console.is_jupyter)):
        with watching() as drawn:
            yield drawn
    elif not progress:
        yield Silent()
    else:
        raise UserError(
            f"progress= has the type {type(progress).__name__}: expected True, False or a "
            "dpfed.progress.Progress; a Callback goes into callbacks=[...]. [progress-type]"
        )


@short_traceback
def pretrain(
    config: Config | str | Path | None = None,
    folder: str | Path | None = None,
    progress: Progress | bool | None = None,
    resume: bool | None = None,
    callbacks: Iterable[Callback] = (),
    *,
    data: str | Path | None = None,
    epsilon: float | None = None,
    out: str | Path | None = None,
    delta: float | None = None,
    model: str | None = None,
    method: str | None = None,
    minutes: float | None = None,
    batch: int | None = None,
    steps: int | None = None,
    public: str | Path | None = None,
    overrides: Sequence[str] = (),
) -> RunDirectory:
    """Trains an encoder privately into a new run directory.

    Give either a configuration, or a data set and an epsilon, for which dpfed chooses all other settings::

        run = dpfed.pretrain("quickstart", "runs/quickstart")
        run = dpfed.pretrain(data="my-images", epsilon=8, out="runs/mine")

    If the folder already has the run, the second form resumes it, or returns it if it is finished; with ``resume=False`` it
    refuses the folder. Only this form takes
    `epsilon`, `delta`, `model`, `method`, `minutes`, `batch`, `steps` and `public`.

    Args:
        config: Configuration, its path, or the name of a configuration that dpfed ships (`load_config` reads path and name).
        folder: Folder of the run. It must be empty or not exist, unless it holds the run that `resume` continues.
        progress: Display of the progress. ``None``: bars in terminals and notebooks, and nothing elsewhere; ``True``: the same
            bars, and elsewhere a line now and then; ``False``: nothing at all.
        resume: Whether to continue a run that `folder` already holds; default: with `data`, yes; with a configuration, no.
        callbacks: A `Callback`, or a list of them; a callback sees the steps and evaluations while the model trains.
        data: Folder of images, a table, another data set that dpfed reads, or a record store.
        epsilon: Epsilon of the guarantee; 8 is usual, 1 is strong.
        out: Another name for `folder`.
        delta: Delta of the guarantee; default: 1/(N ln N), with N training records (or protected units).
        model: Encoder: ``timm/NAME``, ``torchvision/NAME``, ``open_clip/NAME``, the folder of a public run or of an open_clip
            model, ``cnn``, ``resnet18``, or ``package.module:function``; default: dpfed chooses it.
        method: Method that bounds what one record can change, such as ``group``; default: dpfed chooses it.
        minutes: Longest training time on this machine, in minutes; a plan that cannot be so short is refused. ``None``: dpfed
            shortens the plan to 20 minutes if it can.
        batch: B, the expected number of records (or protected units) in a step; default: dpfed chooses it.
        steps: T, the number of noisy steps; default: dpfed chooses it.
        public: Path of a public record store. The method ``public`` contrasts the store's records with the private ones; no
            other method uses the store.
        overrides: Further assignments ``section.key=value``, applied to the configuration or to the choices.

    Returns:
        The finished run.

    Raises:
        UserError: If the arguments, the configuration or the records cannot be used. Most mistakes are found before `folder` is
            made; a run that stops later can be resumed.
    """
    folder = _one_of(folder, out)
    options: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "model": model, "method": method, "minutes": minutes}
    options |= {"batch": batch, "steps": steps, "public": public}
    callbacks = listed(callbacks)
    if data is None:
        if config is None:
            raise UserError(
                "expected a configuration, as in dpfed.pretrain('quickstart', 'runs/quickstart'), or data and epsilon, as in "
                "dpfed.pretrain(data='my-images', epsilon=8, out='runs/mine'). [pretrain-what]"
            )
        if wrong := [name for name, value in options.items() if value is not None]:
            raise UserError(
                f"{wrong[0]}= needs data=..., but a configuration was given: leave {wrong[0]}= out; overrides=[...] changes "
                "keys of the configuration. [pretrain-belongs]"
            )
        if overrides:
            config = _overridden(config, overrides)
        with shown(progress) as seen:
            return pretraining.pretrain(config, folder, seen, bool(resume), callbacks)
    if config is not None:
        raise UserError("with data=... dpfed makes the choices itself: give either data or a configuration. [pretrain-two]")
    if epsilon is None:
        raise UserError("data=... needs an epsilon, too: epsilon=8 is usual, epsilon=1 is strong. [pretrain-promise]")
    from dpfed.automatic.running import pretrain as automatic

    with shown(progress) as seen:
        request = Request(data, assignments=overrides, **options)
        return automatic(request, folder, seen, callbacks, _say(seen), resume=resume is not False)


def _one_of(folder: str | Path | None, out: str | Path | None) -> str | Path:
    if folder is not None and out is not None:
        raise UserError("folder and out both name the run's folder: give one of them. [pretrain-folder-twice]")
    chosen = folder if folder is not None else out
    if chosen is None:
        raise UserError("the run's folder is missing: give one, such as out='runs/mine'. [pretrain-folder]")
    return chosen


def _overridden(config: Config | str | Path, overrides: Sequence[str]) -> Config:
    if isinstance(config, Config):
        raise UserError(
            "overrides= needs a configuration's path or name, but a Config was given: make the Config with these values. "
            "[pretrain-overrides]"
        )
    return load_config(config, overrides)


def _say(progress: Progress) -> Callable[[Chosen], None]:
    """Returns a function that shows each choice, and the expected result, as notes."""

    def say(chosen: Chosen) -> None:
        for line in (chosen.heading, *chosen.comments[1:]):
            progress.note(line)

    return say
