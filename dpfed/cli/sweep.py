"""`dpfed sweep`: runs of one configuration, each with its own set of changes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:  # torch takes seconds to import
    from dpfed.runs.sweep import SweepOutcome


def sweep(
    base: Annotated[
        Path,
        typer.Argument(help="A TOML file, or a name such as cuhk-pedes: the settings that all runs share.", show_default=False),
    ],
    file: Annotated[Path, typer.Argument(help="A sweep file, or a name such as sweeps/table5.", show_default=False)],
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override one key of BASE.")
    ] = None,
    runs: Annotated[Path, typer.Option("--runs", help="Folder for the runs: each goes to RUNS/SWEEP/RUN.")] = Path("runs"),
) -> None:
    """Train every run of a sweep and compare them. Finished runs are kept, and interrupted runs resume.

    All runs read the same records, so their epsilons and deltas add up. The sum, the joint guarantee, is printed at the end.
    """
    from dpfed.console.terminal import chosen_config, say, say_if_shipped, watching

    loaded = chosen_config(base, assignments)
    say_if_shipped(file)
    say(f"{loaded.name}: the runs of {file} go to {runs}")
    with watching() as progress:
        progress.note("loading PyTorch")
        from dpfed.runs.sweep import sweep as run_sweep

        outcome = run_sweep(loaded, file, runs, progress)
    _show(outcome)


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
        row = [results.get(name) for name in columns]
        figures = ["–" if item is None else shown(item.trained, item.trained_interval) for item in row]
        table.add_row(run.name, *figures, "none" if run.void else round_up(run.epsilon))
    console.print(table)
    console.print(outcome.promise, highlight=False)
    console.print(f"[dim]comparison[/]  {outcome.comparison}", highlight=False, soft_wrap=True)


def register(app: typer.Typer) -> None:
    """Adds the command to the app."""
    app.command()(sweep)
