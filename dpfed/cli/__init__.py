"""The `dpfed` command."""

from __future__ import annotations

from typing import Annotated

import typer

import dpfed
from dpfed.cli import audit, budget, config, data, federation, forecast, live, privacy, reproduce, runs, starts, sweep
from dpfed.console.entry import run

app = typer.Typer(
    name="dpfed",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dpfed {dpfed.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """Contrastive pretraining on private records, under differential privacy."""


runs.register(app)
live.register(app)
starts.register(app)
forecast.register(app)
sweep.register(app)
reproduce.register(app)
app.add_typer(config.app, name="config")
app.add_typer(privacy.app, name="privacy")
app.add_typer(data.app, name="data")
app.add_typer(budget.app, name="budget")
app.add_typer(audit.app, name="audit")
app.add_typer(federation.federation, name="federation")
app.add_typer(federation.site, name="site")


def main() -> None:
    """Entry point."""
    run(app)
