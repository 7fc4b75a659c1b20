"""`dpfed reproduce`: the experiments of the papers, ours beside theirs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:  # torch takes seconds to import
    from dpfed.reproduce.outcome import Outcome

_DATA = Path("data")


def reproduce(
    experiment: Annotated[str | None, typer.Argument(help="Such as table1, figure4 or methods; see --list.")] = None,
    data: Annotated[str | None, typer.Option(help="Data set; default: the first that the experiment offers.")] = None,
    path: Annotated[Path | None, typer.Option(help="Where its records are; default data/NAME.")] = None,
    epsilon: Annotated[list[float] | None, typer.Option(help="Only this epsilon; may be repeated.")] = None,
    scale: Annotated[
        Literal["cpu", "gpu"],
        typer.Option(help="gpu: the paper's hyperparameters; cpu: a smaller model, batch and fewer steps."),
    ] = "cpu",
    methods: Annotated[str | None, typer.Option(help="Only these, such as group,batch.")] = None,
    public: Annotated[bool, typer.Option("--public", help="Anyone may see the records: raw figures may be written.")] = False,
    public_records: Annotated[
        Path | None, typer.Option(help="Record store for public contrast; default: generated records.", show_default=False)
    ] = None,
    out: Annotated[Path, typer.Option(help="Holds the runs and a folder for each result.")] = Path("runs/reproduce"),
    listed: Annotated[
        bool, typer.Option("--list", help="List the experiments, what each needs, and how many runs it takes.")
    ] = False,
) -> None:
    """Repeat a table or figure of a paper: train its runs, and put our figures beside the paper's.

    Finished runs are kept, and interrupted runs resume. Runs that several experiments share are trained once.
    """
    from dpfed.errors import UserError

    if listed:
        _list(scale)
        return
    if experiment is None:
        raise UserError("name an experiment, such as table1; `dpfed reproduce --list` has them all.")
    from dpfed.console.terminal import say, watching
    from dpfed.reproduce.comparison import data_set
    from dpfed.reproduce.experiments import experiment as named

    chosen = named(experiment)
    asked = data_set(data or chosen.data[0], chosen.data)
    say(f"{chosen.name} on {asked.name}: planning the runs")
    from dpfed.reproduce.outcome import reproduce as carry_out
    from dpfed.reproduce.page import write
    from dpfed.reproduce.runs import Request

    request = Request(
        experiment=chosen,
        data=asked,
        scale=scale,
        epsilons=tuple(epsilon or chosen.epsilons),
        methods=None if methods is None else tuple(name.strip() for name in methods.split(",")),
        path=path or _DATA / asked.name,
        public=public,
        out=out,
        public_records=public_records,
    )
    with watching() as watcher:
        outcome = carry_out(request, watcher)
    _show(outcome, write(outcome))


def _list(scale: Literal["cpu", "gpu"]) -> None:
    from dpfed.console.terminal import console
    from dpfed.privacy.promise import round_up
    from dpfed.reproduce.comparison import DATA_SETS
    from dpfed.reproduce.experiments import EXPERIMENTS

    for item in EXPERIMENTS.values():
        generated = [name for name in item.data if DATA_SETS[name].generated]
        needs = [f"nothing with --data {name}" for name in generated] or ["your copy of the data (--path)"]
        needs += ["public records (generated ones are)" if generated else "public records"] * item.needs_public
        if item.pretrained:
            needs.append("a GPU (--scale gpu)")
        console.print(f"[bold]{item.name}[/]  {item.title}", highlight=False, soft_wrap=True)
        runs = item.count("gpu" if item.pretrained else scale)
        own = [v.x for v in item.variants if v.x is not None] if item.axis == "epsilon" else item.epsilons
        epsilons = ", ".join(map(round_up, own))
        for words in (
            f"{runs} runs; epsilon {epsilons}; needs {', '.join(needs)}",
            f"data: {', '.join(item.data)}",
        ):
            console.print(f"    [dim]{words}[/]", highlight=False, soft_wrap=True)
    console.print(
        f"Runs are counted for one data set, all methods and every epsilon, at --scale {scale}. gpu has the paper's "
        "hyperparameters. cpu has a smaller model and batch, and fewer steps: its figures are not comparable with the "
        "paper's.",
        highlight=False,
        soft_wrap=True,
    )


def _show(outcome: Outcome, files: dict[str, Path]) -> None:
    from rich.markup import escape
    from rich.table import Table

    from dpfed.console.terminal import console
    from dpfed.report.results import label
    from dpfed.reproduce.page import compared, figure, lines, mechanisms

    both = compared(outcome)
    table = Table(title=outcome.request.experiment.title, title_justify="left", box=None, pad_edge=False)
    table.add_column("run")
    table.add_column("epsilon", justify="right")
    for metric in outcome.request.data.metrics:
        table.add_column(escape(label(metric)), justify="right")
        if both:
            table.add_column("paper", justify="right")
    for line in lines(outcome):
        cells = [text for row in line.rows for text in (figure(row.ours, row.interval), figure(row.published))[: 1 + both]]
        table.add_row(line.name, line.epsilon, *cells)
    console.print(table)
    if outcome.request.experiment.timed:
        second = Table(box=None, pad_edge=False)
        for column in ("method", "sound", "sensitivity", "noise per coordinate", "epsilon", "seconds per step", "over group"):
            second.add_column(column, justify="left" if column in ("method", "sound") else "right")
        for item in mechanisms(outcome):
            second.add_row(item.method, item.words, item.sensitivity, item.noise, item.epsilon, item.seconds, item.cost)
        console.print(second)
    console.print(outcome.scale, highlight=False)
    console.print(outcome.promise, highlight=False)
    for name, file in files.items():
        console.print(f"[dim]{name:>9}[/]  {file}", highlight=False, soft_wrap=True)


def register(app: typer.Typer) -> None:
    """Adds the command that reproduces experiments."""
    app.command()(reproduce)
