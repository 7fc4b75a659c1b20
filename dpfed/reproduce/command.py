"""The command `dpfed reproduce`: repeats the papers' experiments and compares our figures with the published ones."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:  # torch takes seconds to import
    from dpfed.reproduce.outcome import Outcome

_DATA = Path("data")


def reproduce(
    experiment: Annotated[str | None, typer.Argument(help="Name, such as table1, figure4 or methods; see --list.")] = None,
    data: Annotated[str | None, typer.Option(help="Data set; default: the first that the experiment offers.")] = None,
    path: Annotated[Path | None, typer.Option(help="Path of the data set's records; default: data/NAME.")] = None,
    epsilon: Annotated[list[float] | None, typer.Option(help="Train only for this epsilon; may be repeated.")] = None,
    scale: Annotated[
        Literal["cpu", "gpu"],
        typer.Option(help="gpu: the paper's hyperparameters; cpu: a smaller model, a smaller batch and fewer steps."),
    ] = "cpu",
    methods: Annotated[str | None, typer.Option(help="Compare only these methods, such as group,batch.")] = None,
    public: Annotated[
        bool, typer.Option("--public", help="Declare that anyone may see the records, and reports may show them.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder in which the runs and the results are written.")] = Path("runs/reproduce"),
    listed: Annotated[
        bool, typer.Option("--list", help="List the experiments, their data sets and their numbers of runs.")
    ] = False,
) -> None:
    """Repeat a table or figure of a paper: train its runs, and compare our figures with the paper's.

    Finished runs are kept, and interrupted runs resume. Runs that several experiments share are trained once.
    """
    from dpfed.errors import UserError

    if listed:
        _list(scale)
        return
    if experiment is None:
        raise UserError("name an experiment, such as table1; `dpfed reproduce --list` has them all. [experiment-no-name]")
    from dpfed.console.terminal import say, watching
    from dpfed.reproduce.comparison import data_set
    from dpfed.reproduce.experiments import experiment as named

    chosen = named(experiment)
    asked = data_set(chosen.data[0] if data is None else data, chosen.data)
    if asked.generated and path is not None:
        raise UserError(
            f"--path {path} has no effect: dpfed generates the records of {asked.name}. Leave --path out, or choose another "
            "data set with --data. [experiment-path-unused]"
        )
    say(f"{chosen.name} on {asked.name}: planning the runs")
    from dpfed.reproduce.outcome import reproduce as run_reproduction
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
    )
    with watching() as progress:
        outcome = run_reproduction(request, progress)
    _show(outcome)


def _list(scale: Literal["cpu", "gpu"]) -> None:
    from dpfed.console.terminal import console
    from dpfed.reproduce.experiments import EXPERIMENTS

    for item in EXPERIMENTS.values():
        runs = item.count("gpu" if item.pretrained else scale)
        gpu = "; needs a GPU (--scale gpu)" if item.pretrained else ""
        console.print(f"[bold]{item.name}[/]  {item.title}", highlight=False, soft_wrap=True)
        console.print(f"    [dim]{runs} runs for each of {', '.join(item.data)}{gpu}[/]", highlight=False, soft_wrap=True)
    console.print(
        "shapes is generated; for the others, give your copy of the data (--path). Scale cpu has a smaller model, a "
        "smaller batch and fewer steps than the paper, so its figures are not comparable with the paper's.",
        highlight=False,
        soft_wrap=True,
    )


def _show(outcome: Outcome) -> None:
    from rich.markup import escape
    from rich.table import Table

    from dpfed.console.terminal import console
    from dpfed.privacy.promise import round_up
    from dpfed.report.results import label

    request = outcome.request
    both = any(row.published is not None for row in outcome.rows)
    table = Table(title=request.experiment.title, title_justify="left", box=None, pad_edge=False)
    table.add_column("run")
    table.add_column("epsilon", justify="right")
    for metric in request.data.metrics:
        table.add_column(escape(label(metric)), justify="right")
        if both:
            table.add_column("paper", justify="right")
    for rows in outcome.lines():
        first = rows[0]
        name = first.name if first.x is None else f"{first.name}, {request.experiment.axis} = {first.x:g}"
        cells = [text for row in rows for text in (_figure(row.ours, row.interval), _figure(row.published))[: 1 + both]]
        table.add_row(name, "none" if math.isinf(first.epsilon) else round_up(first.epsilon), *cells)
    console.print(table)
    console.print(outcome.scale, highlight=False)
    console.print(outcome.promise, highlight=False)
    for kind, file in outcome.write().items():
        console.print(f"[dim]{kind:>9}[/]  {file}", highlight=False, soft_wrap=True)


def _figure(value: float | None, interval: tuple[float, float] | None = None) -> str:
    """Formats a figure in percent, with the larger half of its interval, rounded up; a missing figure becomes a dash."""
    if value is None:
        return "–"
    most = interval and max(interval[1] - value, value - interval[0])
    return f"{value:.1f}" + ("" if most is None else f" ± {math.ceil(round(10 * most, 9)) / 10:.1f}")


def register(app: typer.Typer) -> None:
    """Adds the command that reproduces experiments."""
    app.command()(reproduce)
