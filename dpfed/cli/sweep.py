"""`dpfed sweep`: one configuration, trained with one set of changes after another; or a search that shows its best run only."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:  # torch takes seconds to import
    from dpfed.config import Config
    from dpfed.runs.sweep import SweepOutcome


def sweep(
    base: Annotated[
        Path,
        typer.Argument(help="A TOML file, or a name such as cuhk-pedes: what all runs have in common.", show_default=False),
    ],
    file: Annotated[Path, typer.Argument(help="A sweep file, or a name such as sweeps/table5.", show_default=False)],
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override one key of BASE.")
    ] = None,
    runs: Annotated[Path, typer.Option("--runs", help="Where the sweep goes, into RUNS/SWEEP/RUN.")] = Path("runs"),
    publish: Annotated[
        Literal["all", "best"],
        typer.Option(
            help="best: a secret number of runs, with random settings; only the best one is kept, as RUNS/SWEEP/best."
        ),
    ] = "all",
    score: Annotated[
        str | None,
        typer.Option(
            metavar="FIGURE",
            help="--publish best: the held-out figure that chooses, such as image_to_text_R@10.",
            show_default=False,
        ),
    ] = None,
    mean: Annotated[
        float | None, typer.Option(help="--publish best: mean of the number of runs; default 10.", show_default=False)
    ] = None,
    distribution: Annotated[
        Literal["geometric", "logarithmic", "poisson"] | None,
        typer.Option(help="--publish best: of the number of runs; default geometric.", show_default=False),
    ] = None,
) -> None:
    """Train every run of a sweep and compare them. Finished runs are kept, and interrupted runs go on.

    All runs spend from one privacy budget. The joint promise that is printed at the end is the sum of theirs. With --publish
    best nobody learns of the other runs, nor how many there were: that costs far less (docs/budget.md).
    """
    from dpfed.console.terminal import chosen_config, say, say_if_shipped, watching

    _refuse(publish, score, mean, distribution)
    loaded = chosen_config(base, assignments)
    say_if_shipped(file)
    if publish == "best":
        _search(loaded, file, runs, str(score), {"mean": mean, "distribution": distribution})
        return
    say(f"{loaded.name}: the runs of {file} go to {runs}")
    with watching() as watcher:
        watcher.note("loading PyTorch")
        from dpfed.runs.sweep import sweep as carry_out

        outcome = carry_out(loaded, file, runs, watcher)
    _show(outcome)


def _refuse(publish: str, score: str | None, mean: float | None, distribution: str | None) -> None:
    """Refuses options that go with a search where there is none, and a search without a figure that chooses."""
    from dpfed.errors import UserError

    given = {"--score": score, "--mean": mean, "--distribution": distribution}
    idle = [name for name, value in given.items() if value is not None]
    if publish == "all" and idle:
        raise UserError(f"{idle[0]} is for a search: add --publish best, or leave it out.")
    if publish == "best" and score is None:
        raise UserError(
            "--publish best needs the held-out figure that chooses: add --score, such as --score image_to_text_R@10. The "
            "held-out records are not protected."
        )


def _search(base: Config, file: Path, runs: Path, score: str, given: dict[str, Any]) -> None:
    from dpfed.console.terminal import console, say, show_run, watching

    say(f"{base.name}: a search over {file}, whose best run goes to {runs}")
    with watching() as watcher:
        watcher.note("loading PyTorch")
        from dpfed.runs.search import search

        chosen = {name: value for name, value in given.items() if value is not None}
        run = search(base, file, runs, score, watcher=watcher, **chosen)
    if run is None:
        console.print("The number of runs that was drawn is zero, so there is nothing to publish.", highlight=False)
    else:
        show_run(run)


def _show(outcome: SweepOutcome) -> None:
    from rich.markup import escape
    from rich.table import Table

    from dpfed.console.terminal import console
    from dpfed.privacy.promise import round_up
    from dpfed.report.results import headlines, label, shown

    tables = [{result.name: result for result in run.table} for run in outcome.runs]
    union = {name: result for table in reversed(tables) for name, result in table.items()}
    columns = [result.name for result in headlines(list(union.values()), 2)]
    table = Table(title=outcome.sweep.about or outcome.sweep.name, title_justify="left", box=None, pad_edge=False)
    table.add_column("run")
    for name in [*(escape(label(name)) for name in columns), "epsilon"]:
        table.add_column(name, justify="right")
    for run, results in zip(outcome.runs, tables, strict=True):
        found = [results.get(name) for name in columns]
        figures = ["–" if item is None else shown(item.trained, item.name, item.trained_interval) for item in found]
        table.add_row(run.name, *figures, "none" if run.void else round_up(run.epsilon))
    console.print(table)
    console.print(outcome.promise, highlight=False)
    console.print(f"[dim]comparison[/]  {outcome.comparison}", highlight=False, soft_wrap=True)


def register(app: typer.Typer) -> None:
    """Adds the command that trains a sweep."""
    app.command()(sweep)
