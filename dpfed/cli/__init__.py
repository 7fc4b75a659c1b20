"""The `dpfed` command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import dpfed
from dpfed.cli import audit, budget, config, data, federation, forecast, live, privacy, reproduce, runs, site, starts, sweep
from dpfed.cli.cluster import cluster
from dpfed.console import logs
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
    log_format: Annotated[
        str | None, typer.Option(help="text, or json: a JSON object a line, on stderr.", envvar=logs.FORMAT, show_default=False)
    ] = None,
    log_file: Annotated[Path | None, typer.Option(help="Log file; it rotates.", envvar=logs.FILE, show_default=False)] = None,
) -> None:
    """Contrastive pretraining on private records, under differential privacy."""
    logs.set_up(log_format, log_file)


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
app.add_typer(site.site, name="site")
app.add_typer(cluster, name="cluster")


def main() -> None:
    """Entry point."""
    run(app)
