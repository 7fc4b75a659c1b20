"""`dpfed.pretrain`, as a program or a notebook calls it: the run of `dpfed.runs.pretraining`, before the user's eyes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from dpfed.artifacts.directory import RunDirectory
from dpfed.callbacks import Callback
from dpfed.config import Config
from dpfed.console.terminal import console, watching
from dpfed.errors import UserError
from dpfed.progress import Progress, Silent
from dpfed.runs import pretraining


@contextlib.contextmanager
def shown(progress: Progress | bool | None) -> Iterator[Progress]:
    """The progress that a program asks for.

    Args:
        progress: itself; ``None``: bars in a terminal and in a notebook, and nothing elsewhere; ``True``: elsewhere a line now
            and then; ``False``: nothing.

    Raises:
        UserError: for anything else.
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
            f"progress is a {type(progress).__name__}: expected True, False or a dpfed.progress.Progress; a Callback goes into "
            "callbacks=[...]. [progress-type]"
        )


def pretrain(
    config: Config | str | Path,
    folder: str | Path,
    progress: Progress | bool | None = None,
    resume: bool = False,
    callbacks: Iterable[Callback] = (),
) -> RunDirectory:
    """Trains an encoder privately into a new run directory.

    Args:
        config: what to do; a path, or the name of a config that dpfed ships, is read by `load_config`.
        folder: must not be in use, but by this very run if `resume`.
        progress: ``False``: nothing is shown; ``None``: bars in terminals and notebooks (`shown`).
        resume: continue if the run is there already.
        callbacks: look on while the model trains.

    Returns:
        The finished run.

    Raises:
        UserError: before anything is written, for whatever can be known to be wrong by then.
    """
    with shown(progress) as seen:
        return pretraining.pretrain(config, folder, seen, resume, callbacks)
