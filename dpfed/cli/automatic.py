"""`dpfed pretrain --data`: reads the command's options, and prints the choices that dpfed makes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpfed.errors import UserError

if TYPE_CHECKING:
    from dpfed.automatic.choosing import Chosen
    from dpfed.automatic.request import Request
    from dpfed.config import Config
    from dpfed.progress import Progress


_DATA = "A data set instead of CONFIG: dpfed chooses the rest"
_CHOICES = "Replace one of dpfed's choices"


def _option(*names: str, help: str, metavar: str | None = None, panel: str = _CHOICES) -> typer.models.OptionInfo:
    return typer.Option(*names, help=help, metavar=metavar, rich_help_panel=panel, show_default=False)


Data = Annotated[
    str | None, _option("--data", help="A folder of images, a table, another data set, or a record store.", panel=_DATA)
]
Epsilon = Annotated[
    float | None, _option("--epsilon", help="The guarantee: 1 is strong, 8 is usual, more is weak.", panel=_DATA)
]
Delta = Annotated[float | None, _option("--delta", help="Default: 1/(N ln N), with N training records (or protected units).")]
Model = Annotated[
    str | None,
    _option(
        "--model",
        help="timm/NAME, torchvision/NAME, open_clip/NAME (weights are fetched once), the folder of a public run or of an "
        "open_clip model, cnn, resnet18, or package.module:function.",
    ),
]
MethodName = Annotated[
    str | None,
    _option(
        "--method", help="How a record's influence is bounded: moments, group, public, or another method in docs/methods.md."
    ),
]
Minutes = Annotated[
    float | None,
    _option(
        "--minutes",
        help="Longest training time on this machine, in minutes. Default: dpfed shortens the plan to 20 minutes, if it can.",
        panel=_DATA,
    ),
]
Batch = Annotated[int | None, _option("--batch", help="B: expected number of records (or protected units) in a step.")]
Steps = Annotated[int | None, _option("--steps", help="T: number of noisy steps.")]
Public = Annotated[
    str | None,
    _option(
        "--public",
        help="Store of public records (`dpfed data import --public`). Only the method public uses them, whether --method names "
        "it or dpfed chooses it.",
        metavar="STORE",
    ),
]
DryRun = Annotated[bool, _option("--dry-run", help="Print the choices and the expected result, then stop.", panel=_DATA)]
SaveConfig = Annotated[
    Path | None, _option("--save-config", help="Write the choices as a configuration, then stop.", metavar="FILE", panel=_DATA)
]

_WIDE = 110  # characters that a terminal needs for a column of reasons
_FOR_CONFIGURATIONS = {
    "epsilon": "privacy.epsilon",
    "delta": "privacy.delta",
    "method": "bounding.method",
    "batch": "privacy.batch",
    "steps": "privacy.steps",
}


def requested(config: Path | None, data: str | None, assignments: list[str] | None, **options: Any) -> Request | Config:
    """Returns what the options of `dpfed pretrain` ask for: a complete configuration, or a request that dpfed makes into one.

    Args:
        config: Path or name of the configuration; ``None``: not given.
        data: Value of ``--data``; ``None``: not given.
        assignments: Values of ``--set``; ``None``: not given.
        options: Values of the other options, by name; ``None`` or ``False``: not given.

    Raises:
        UserError: If both `config` and `data` are given, or neither; if an option needs ``--data``, or ``--data`` lacks
            ``--epsilon``; if the configuration cannot be read.
    """
    if data is None:
        if config is None:
            raise UserError(
                "expected a configuration, such as `dpfed pretrain quickstart`, or a data set and an epsilon: "
                "`dpfed pretrain --data my-images --epsilon 8`. [pretrain-nothing]"
            )
        for name, value in options.items():
            if value is not None and value is not False:  # 0 and "" are given, too
                key = _FOR_CONFIGURATIONS.get(name)
                mend = f"write --set {key}={value}" if key else "leave it out, or give --data instead of a configuration"
                raise UserError(
                    f"--{name.replace('_', '-')} is for --data, but {config} is a configuration: {mend}. [pretrain-option]"
                )
        from dpfed.console.terminal import chosen_config

        return chosen_config(config, assignments)
    if config is not None:
        raise UserError(
            f"with --data dpfed makes the choices itself: give either --data or the configuration {config}. [pretrain-both]"
        )
    if options["epsilon"] is None:
        raise UserError("--data needs --epsilon, too: --epsilon 8 is usual, --epsilon 1 is strong. [pretrain-epsilon]")
    from dpfed.automatic.request import Request

    names = ("epsilon", "delta", "model", "method", "minutes", "batch", "steps", "public")
    return Request(data, assignments=tuple(assignments or ()), **{name: options[name] for name in names})


def show(chosen: Chosen, as_json: bool = False) -> None:
    """Prints the choices, each with its reason, and the expected result.

    In a wide terminal the reasons have a column of their own; otherwise each reason is below its choice.

    Args:
        chosen: Choices for the run.
        as_json: Whether the command prints JSON. The choices then go to standard error.
    """
    from rich.console import Group
    from rich.markup import escape
    from rich.padding import Padding
    from rich.table import Table

    from dpfed.console.terminal import beside, console

    out = beside if as_json else console
    wide = out.width >= _WIDE
    out.print(f"[bold]{escape(chosen.heading)}[/]", highlight=False, soft_wrap=True)
    table = Table.grid(padding=(0, 2), pad_edge=False)
    table.add_column(no_wrap=True, style="dim", justify="right")
    table.add_column(overflow="fold", max_width=out.width // 3 if wide else None)
    if wide:
        table.add_column(overflow="fold", style="dim")
    for topic, *cells in _rows(chosen):
        value, why = map(escape, cells)
        if wide:
            table.add_row(topic, value, why)
        else:
            table.add_row(topic, Group(value, Padding(f"[dim]{why}[/]", (0, 0, 0, 2))))
    out.print(table, highlight=False)
    out.print(f"[bold]expect[/] {escape(str(chosen.expectation))}", highlight=False, soft_wrap=not out.is_terminal)


def _rows(chosen: Chosen) -> Iterator[tuple[str, str, str]]:
    """Yields the rows of the table of choices: topic, value and reason."""
    from dpfed.models.options import PROCEDURAL
    from dpfed.privacy.promise import round_up
    from dpfed.progress import duration

    plan = chosen.plan
    yield from ((choice.topic, choice.value, choice.why) for choice in chosen.choices)
    promise = f"epsilon {round_up(plan.epsilon())}, delta {round_up(plan.promise.delta)}"
    counted = f"{plan.sampling.records:,} training {plan.promise.protected}s"
    yield "promise", promise, f"noise multiplier {plan.noise.multiplier:.3g}, for {counted}"
    if chosen.seconds is not None:
        why = "measured on this machine with artificial images"
        if chosen.config.model.start == PROCEDURAL or (
            plan.bounding.method.public_records and chosen.config.public.is_generated
        ):
            why += "; not counted: some minutes to make generated images or initial weights, if they are not there yet"
        if chosen.seconds == 0:
            yield "time", "under a minute", "earlier runs kept all features that this run needs"
        else:
            yield "time", f"about {duration(chosen.seconds)}", why


def settled(
    wanted: Request | Config,
    folder: Path,
    cluster: str | None,
    progress: Progress,
    resume: bool,
    stopping: tuple[bool, Path | None, bool],
) -> tuple[Config, Sequence[str]]:
    """Returns a run's configuration and the lines that explain it. ``--dry-run`` and ``--save-config`` end the command here.

    Args:
        wanted: Request of the user, or a configuration, which is returned unchanged.
        folder: Folder of the run.
        cluster: Launcher of the workers; ``None``: one process trains.
        progress: Progress, which shows the stages.
        resume: Whether to resume the run in `folder`, with the configuration that it began with.
        stopping: Values of ``--dry-run``, ``--save-config`` and ``--json``.

    Raises:
        UserError: If dpfed cannot choose, see `dpfed.automatic.choosing.choose`; if `wanted` is a request and `cluster` is
            torchrun; if `folder` is in use or holds another run; if the file of ``--save-config`` exists or cannot be written.
        typer.Exit: With ``--dry-run`` or ``--save-config``, after the choices are printed or written.
    """
    from dpfed.automatic.request import Request

    if not isinstance(wanted, Request):
        return wanted, ()
    dry_run, save, as_json = stopping
    if cluster == "torchrun":
        raise UserError(
            "--data does not work with torchrun, where each process would make its own choices: write the choices to a file "
            "(--save-config FILE), then start torchrun with that file. [automatic-torchrun]"
        )
    if save is not None:
        refuse_destination(save)
    progress.note("loading PyTorch")
    from dpfed.automatic import choosing, running

    if not dry_run and save is None:
        return running.settle(wanted, folder, resume, progress, lambda chosen: show(chosen, as_json))
    chosen = choosing.choose(wanted, progress)
    show(chosen, as_json)
    if save is not None:
        save_choices(chosen, save, f"dpfed pretrain {save}")
    if as_json:
        print(json.dumps(chosen.facts()))
    raise typer.Exit


def save_choices(chosen: Chosen, file: Path, next_command: str) -> None:
    """Writes the choices as a configuration.

    Args:
        chosen: Choices for a run.
        file: Path where no file exists.
        next_command: What the user is told to do next: a command, or a phrase.

    Raises:
        UserError: If the file exists, or cannot be written.
    """
    from dpfed.console.terminal import say
    from dpfed.files.atomic import create_file

    try:
        create_file(file, chosen.toml())
    except FileExistsError as error:
        raise _exists(file) from error
    except OSError as error:
        raise UserError(
            f"cannot write the configuration {file}: {error.strerror or error}. Choose another file with --save-config. "
            "[automatic-file-unwritable]"
        ) from error
    say(f"next: {next_command}")


def refuse_destination(file: Path) -> None:
    """Refuses, before long work begins, a file for ``--save-config`` that exists or whose folder does not exist.

    Raises:
        UserError: If the file exists, or its folder does not exist.
    """
    if os.path.lexists(file):
        raise _exists(file)
    if not file.absolute().parent.is_dir():
        raise UserError(
            f"--save-config {file}: there is no folder {file.absolute().parent}. Make it, or choose another file. "
            "[automatic-file-folder]"
        )


def _exists(file: Path) -> UserError:
    return UserError(f"{file} exists: choose another file with --save-config. [automatic-file-exists]")
