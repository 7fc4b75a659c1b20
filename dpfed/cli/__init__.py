"""The `dpfed` command."""

from __future__ import annotations

from typing import Annotated

import click
import typer
from typer.core import TyperGroup

import dpfed
from dpfed import discovery
from dpfed.cli import embedding, forecast, live, runs, starts, sweep
from dpfed.cli.cluster import cluster
from dpfed.cli.lazy import group_in
from dpfed.console import logs
from dpfed.console.entry import run

PANELS = {
    "From records to a model": ("data", "pretrain", "resume", "evaluate", "report", "export"),
    "Before a run": ("config", "forecast", "rehearse", "start", "sweep"),
    "Watch a run, use its model": ("watch", "serve", "embed", "search"),
    "Privacy": ("privacy", "budget", "audit"),
    "Many machines, several institutions": ("cluster", "federation", "site"),
}
# Each group is in the module of its name, which is imported only when the group is used.
GROUPS = {
    "config": "Show the configurations that dpfed ships, and every key with its meaning.",
    "privacy": "Compute the noise for an epsilon, or the epsilon of a noise. Show what a run spent; check its privacy card.",
    "data": "Import a data set into a record store, and count what is in it.",
    "budget": "Give a record set a lifetime budget over all runs, and show its use.",
    "audit": "Attack a run: test its claimed epsilon, and measure what its weights reveal.",
    "federation": "For the coordinator of several institutions: make a federation's terms, run it, or try one on this machine.",
    "site": "For one of several institutions: make a site, join a federation, answer its coordinator.",
}
_ORDER = [name for names in PANELS.values() for name in names]


class _Ordered(TyperGroup):
    """A group that lists its commands in the order of `PANELS`: the commands that a newcomer needs come first."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        names = super().list_commands(ctx)
        return sorted(names, key=lambda name: _ORDER.index(name) if name in _ORDER else len(_ORDER))


app = typer.Typer(
    name="dpfed",
    cls=_Ordered,
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
        str | None,
        typer.Option(
            help="Format of the logs: text, or json (one JSON object per line, on stderr).",
            envvar=logs.FORMAT,
            show_default=False,
        ),
    ] = None,
) -> None:
    """Contrastive pretraining on private records, under differential privacy."""
    logs.set_up(log_format)


runs.register(app)
embedding.register(app)
live.register(app)
starts.register(app)
forecast.register(app)
sweep.register(app)
if discovery.has("reproduce"):
    discovery.part("reproduce", "command").register(app)
for _name, _help in GROUPS.items():
    app.add_typer(typer.Typer(cls=group_in(f"dpfed.cli.{_name}"), help=_help, no_args_is_help=True), name=_name)
app.add_typer(cluster, name="cluster")


def _panel(name: object) -> str:
    return next((panel for panel, names in PANELS.items() if name in names), "More")


for _command in app.registered_commands:
    _command.rich_help_panel = _panel(_command.name or getattr(_command.callback, "__name__", ""))
for _group in app.registered_groups:
    _group.rich_help_panel = _panel(_group.name)


def main() -> None:
    """Runs the `dpfed` command; the entry point of the package."""
    run(app)
