"""`dpfed pretrain --data`: its options, and what it says of its choices."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpfed.errors import UserError

if TYPE_CHECKING:
    from dpfed.automatic.choosing import Chosen
    from dpfed.automatic.request import Request
    from dpfed.config import Config
    from dpfed.progress import Progress


def _option(*names: str, help: str, metavar: str | None = None) -> typer.models.OptionInfo:
    panel = "Without a configuration: everything else is chosen"
    return typer.Option(*names, help=help, metavar=metavar, rich_help_panel=panel, show_default=False)


Data = Annotated[str | None, _option("--data", help="A folder of images, a table, another data set, or a record store.")]
Epsilon = Annotated[float | None, _option("--epsilon", help="The promise: 1 is strong, 8 usual, more is weak.")]
Delta = Annotated[float | None, _option("--delta", help="Default: 1/(N ln N).")]
Model = Annotated[
    str | None,
    _option(
        "--model",
        help="timm/NAME, torchvision/NAME, open_clip/NAME (weights are fetched once), a public run, or package:function.",
    ),
]
MethodName = Annotated[str | None, _option("--method", help="Instead of the chosen one: moments, group, public, ...")]
Minutes = Annotated[float | None, _option("--minutes", help="That the training may take on this machine; default 20.")]
Batch = Annotated[int | None, _option("--batch", help="B: expected records of a step.")]
Steps = Annotated[int | None, _option("--steps", help="T: noisy steps.")]
Public = Annotated[
    str | None,
    _option("--public", help="A store of public records (imported with --public) to contrast with.", metavar="STORE"),
]
DryRun = Annotated[bool, _option("--dry-run", help="Say what would be chosen and what to expect, and stop.")]
SaveConfig = Annotated[
    Path | None, _option("--save-config", help="Write the choices as a configuration, and stop.", metavar="FILE")
]

_FOR_CONFIGURATIONS = {
    "epsilon": "privacy.epsilon",
    "delta": "privacy.delta",
    "method": "bounding.method",
    "batch": "privacy.batch",
    "steps": "privacy.steps",
}


def requested(config: Path | None, data: str | None, assignments: list[str] | None, **options: Any) -> Request | Config:
    """What the options ask for: a configuration that says everything, or a request that leaves the rest to be chosen.

    Args:
        config: the configuration that was given.
        data: what ``--data`` says.
        assignments: of ``--set``.
        options: the others, by name; ``None``: not given.

    Raises:
        UserError: for both or neither, and for options without ``--data``.
    """
    if data is None:
        if config is None:
            raise UserError(
                "expected a configuration, such as `dpfed pretrain quickstart`, or a data set and a promise: "
                "`dpfed pretrain --data my-images --epsilon 8`. [pretrain-nothing]"
            )
        for name, value in options.items():
            if value:
                key = _FOR_CONFIGURATIONS.get(name)
                mend = f"write --set {key}={value}" if key else "leave it out, or give --data instead of a configuration"
                raise UserError(
                    f"--{name.replace('_', '-')} is for --data, and {config} is a configuration: {mend}. [pretrain-option]"
                )
        from dpfed.console.terminal import chosen_config

        return chosen_config(config, assignments)
    if config is not None:
        raise UserError(
            f"--data chooses everything, and the configuration {config} says everything: give one of them. [pretrain-both]"
        )
    if options["epsilon"] is None:
        raise UserError("--data needs the promise, too: --epsilon 8 is usual, --epsilon 1 strong. [pretrain-epsilon]")
    from dpfed.automatic.request import Request

    names = ("epsilon", "delta", "model", "method", "minutes", "batch", "steps", "public")
    return Request(data, assignments=tuple(assignments or ()), **{name: options[name] for name in names})


def show(chosen: Chosen, as_json: bool = False) -> None:
    """Says what was chosen, each with its reason, and what to expect."""
    from rich.markup import escape
    from rich.table import Table

    from dpfed.console.terminal import beside, console
    from dpfed.privacy.promise import round_up
    from dpfed.progress import duration

    out, plan = beside if as_json else console, chosen.plan
    out.print(f"[bold]{escape(chosen.heading)}[/]", highlight=False, soft_wrap=True)
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True, style="dim", justify="right")
    table.add_column(overflow="fold")
    table.add_column(overflow="fold", style="dim")
    for choice in chosen.choices:
        table.add_row(choice.topic, escape(choice.value), escape(choice.why))
    promise = f"epsilon {round_up(plan.epsilon())}, delta {round_up(plan.promise.delta)}"
    table.add_row(
        "promise", promise, f"noise of {plan.noise.multiplier:.3g} sensitivities, for {plan.sampling.records:,} records"
    )
    if chosen.seconds is not None:
        table.add_row("time", f"about {duration(chosen.seconds)}", "timed on noise, on this machine")
    out.print(table)
    out.print(f"[bold]expect[/] {escape(str(chosen.expectation))}", highlight=False, soft_wrap=True)


def settled(
    wanted: Request | Config,
    folder: Path,
    cluster: str | None,
    progress: Progress,
    resume: bool,
    stopping: tuple[bool, Path | None, bool],
) -> tuple[Config, Sequence[str]]:
    """The configuration of a run, with the lines that explain it; ends the command where only these were asked for.

    Args:
        wanted: by the user; a configuration is taken as it is.
        folder: of the run.
        cluster: launcher of the workers, if there is one.
        progress: sees the stages.
        resume: resume the run that is there; its configuration was chosen before.
        stopping: ``--dry-run``, ``--save-config`` and ``--json``.

    Raises:
        UserError: see `dpfed.automatic.choosing.choose`.
    """
    from dpfed.automatic.request import Request

    if not isinstance(wanted, Request):
        return wanted, ()
    dry_run, save, as_json = stopping
    if cluster == "torchrun":
        raise UserError(
            "with torchrun, each process would choose for itself: write the choices first (--save-config FILE), and give "
            "that file to all processes. [automatic-torchrun]"
        )
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
        chosen: what was chosen.
        file: must not be there.
        next_command: what the user runs next.

    Raises:
        UserError: if the file is there, or cannot be written.
    """
    from dpfed.console.terminal import say
    from dpfed.files.atomic import cannot_write, create_file

    try:
        create_file(file, chosen.toml())
    except FileExistsError as error:
        raise UserError(f"{file} exists: choose another file with --save-config. [automatic-file-exists]") from error
    except OSError as error:
        raise cannot_write(file, error) from error
    say(f"next: {next_command}")
