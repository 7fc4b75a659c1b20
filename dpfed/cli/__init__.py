"""The `dpfed` command."""

from __future__ import annotations

import typer

from dpfed.cli import audit, data, federation, privacy, reproduce, runs, sweep
from dpfed.cli.entry import run

app = typer.Typer(
    name="dpfed",
    help="Contrastive pretraining on private records, under differential privacy.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
runs.register(app)
sweep.register(app)
reproduce.register(app)
app.add_typer(privacy.app, name="privacy")
app.add_typer(data.app, name="data")
app.add_typer(audit.app, name="audit")
app.add_typer(federation.federation, name="federation")
app.add_typer(federation.site, name="site")


def main() -> None:
    """Entry point."""
    run(app)
