"""`dpfed cluster`, and the options of `dpfed pretrain` and `dpfed resume` for many processes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dpfed.cli.lazy import lazy_group
from dpfed.errors import UserError

if TYPE_CHECKING:
    from dpfed.artifacts.directory import RunDirectory
    from dpfed.callbacks import Callback
    from dpfed.config import Config
    from dpfed.progress import Progress

cluster = typer.Typer(
    cls=lazy_group({"cost": "dpfed.cluster.cost", "status": "dpfed.cluster.status"}),
    help="For many workers of one organisation: estimate the cost of a run, and show what runs on a cluster.",
    no_args_is_help=True,
)

_DIGITS = 20  # most characters of a range of workers; no cluster is larger


def _option(help: str, metavar: str | None = None) -> typer.models.OptionInfo:
    return typer.Option(help=help, metavar=metavar, rich_help_panel="On a cluster", show_default=False)


Cluster = Annotated[Literal["ray", "torchrun"] | None, _option("Launcher of the workers; default: one process does all work.")]
Workers = Annotated[
    str | None,
    _option(
        "Number of processes that divide each batch; default 1. In a range, such as 4-8, the number follows free resources.",
        "N|MIN-MAX",
    ),
]
GpusPerWorker = Annotated[int | None, _option("GPUs per worker, 0 or 1; default: 1 if the cluster has GPUs.")]
CpusPerWorker = Annotated[
    int | None, _option("CPUs per worker; default: as many as possible while all workers fit on the cluster.")
]
Restarts = Annotated[int | None, _option("Maximum number of restarts after a worker has died; default 3.")]


def run_on_cluster(
    kind: str,
    folder: Path,
    config: Config | None,
    resume: bool,
    progress: Progress,
    callbacks: Sequence[Callback] = (),
    comments: Sequence[str] = (),
    **options: str | int | None,
) -> RunDirectory | None:
    """Begins or resumes a run in many processes.

    Args:
        kind: Launcher: ``ray`` or ``torchrun``.
        folder: Folder of the run.
        config: Configuration of a new run; ``None``: the run exists.
        resume: Whether to resume the run if it exists.
        progress: Progress, which shows the stages.
        callbacks: Callbacks, which run in the process of rank 0.
        comments: Lines that explain the configuration.
        options: Values of ``workers``, ``gpus``, ``cpus`` and ``restarts``; ``None``: not given.

    Returns:
        The finished run; ``None`` in torchrun's processes other than rank 0.

    Raises:
        UserError: If an option does not suit the launcher, ``workers`` is neither a number nor a range, or the run fails
            with a mistake that the user can fix.
    """
    from dpfed.cluster.work import Task
    from dpfed.runs.records import with_absolute_paths

    task = Task(
        folder.absolute(), config and with_absolute_paths(config), resume, callbacks=tuple(callbacks), comments=tuple(comments)
    )
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if kind == "torchrun":
        from dpfed.cluster.torchrun import take_part

        refuse_without(None, **given)
        return take_part(task, progress)
    from dpfed.cluster.launch import Resources, launch

    least, workers = _range(str(given.pop("workers", 1)))
    return launch(task, Resources(workers=workers, least=least, **given), progress)


def collected(
    kind: str | None, workers: str | None, gpus: int | None, cpus: int | None, restarts: int | None
) -> dict[str, str | int | None]:
    """Returns the options of Ray's workers by name, for `run_on_cluster`.

    Raises:
        UserError: If an option is given without ``--cluster``.
    """
    options = {"workers": workers, "gpus": gpus, "cpus": cpus, "restarts": restarts}
    refuse_without(kind, **options)
    return options


def refuse_without(kind: str | None, **options: str | int | None) -> None:
    """Refuses options of Ray's workers, unless there is a launcher.

    Args:
        kind: Launcher. With any launcher, this function refuses nothing; ``None``: it refuses every option that was given.
        options: Values of the options by name; ``None``: not given.

    Raises:
        UserError: If an option is given without a launcher; the message names the first of them.
    """
    for name, value in options.items():
        if kind is None and value is not None:
            flag = {"gpus": "--gpus-per-worker", "cpus": "--cpus-per-worker"}.get(name, f"--{name}")
            raise UserError(f"{flag} {value} works only with --cluster ray: give that, or leave {flag} out. [option-ray-only]")


def least_of(kind: str | None, workers: str | None) -> int:
    """Returns the least number of processes among which a run's groups will be divided.

    It is 1 if neither `workers` nor the environment that torchrun sets states a number.

    Args:
        kind: Launcher: ``ray`` or ``torchrun``; ``None``: one process does all work.
        workers: Value of ``--workers``, a number or a range; ``None``: not given.

    Raises:
        UserError: If `workers` is neither a number nor a range.
    """
    if kind != "ray" or workers is None:
        return int(os.environ.get("WORLD_SIZE", "1")) if kind == "torchrun" else 1
    least, most = _range(workers)
    return max(1, most if least is None else least)


def another_process(kind: str | None) -> bool:
    """Returns whether this is one of torchrun's processes other than rank 0, which must print nothing."""
    return kind == "torchrun" and os.environ.get("RANK", "0") != "0"


def _range(text: str) -> tuple[int | None, int]:
    """Reads the least and the largest number of workers: ``4`` gives ``(None, 4)``, ``2-8`` gives ``(2, 8)``."""
    least, dash, most = text.partition("-")
    if not (least.isdecimal() and (not dash or most.isdecimal())) or len(text) > _DIGITS:
        raise UserError(f"--workers {text}: expected a number, such as 4, or a range, such as 2-8. [option-workers-wrong]")
    return (int(least), int(most)) if dash else (None, int(least))
