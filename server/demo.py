"""A federation on one machine, from records to the privacy card: what `make federation` does.

    python -m server.demo federation --run runs/federation

Every party is a process of its own, as on machines of their own (`server.one_machine`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpfed.cli.simulation import Skew
from dpfed.console.entry import run as run_app
from dpfed.console.terminal import chosen_config, say, show_run
from dpfed.runs.directory import RunDirectory

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    config: Annotated[Path, typer.Argument(help="A TOML file, or a name such as federation.")],
    run: Annotated[Path, typer.Option(help="Where the run goes; the parties' folders go beside it.")],
    assignments: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override one key.")] = None,
    sites: Annotated[int, typer.Option(min=2, help="Institutions.")] = 3,
    trust: Annotated[str, typer.Option(help="central, distributed, secure or local.")] = "central",
    drops: Annotated[int, typer.Option(help="Sites that may drop out of a step.")] = 0,
    colluders: Annotated[int, typer.Option(help="Sites that may tell others what they know.")] = 1,
    skew: Skew = 0.8,
    deadline: Annotated[float, typer.Option(help="Seconds that a step waits for the slowest site.")] = 120.0,
) -> None:
    """Train with several institutions, all on this machine; again after an interruption, to go on."""
    say(f"reading {config}")
    loaded, place = chosen_config(config, assignments), run.absolute()
    if not RunDirectory.unused(place) and RunDirectory.open(place).finished:
        say(f"{run} is finished: nothing is left to do, and this is what came of it (another --run makes another)")
        show_run(RunDirectory(place))
        return
    say("loading PyTorch")
    from server.one_machine import federate

    options: dict[str, str | int | float] = {"trust": trust, "drops": drops, "colluders": colluders, "deadline": deadline}
    federate(loaded, place, sites, 0.8 if skew is None else skew, options)


if __name__ == "__main__":
    run_app(app)
