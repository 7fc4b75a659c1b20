"""`dpfed watch` and `dpfed serve`: live views of runs and federations, read from their files."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer

_AGAIN = 1.0  # seconds between two looks


def watch(
    run: Annotated[Path, typer.Argument(help="A run, a folder of runs, or a site's folder.", show_default=False)],
    once: Annotated[bool, typer.Option("--once", help="Print the state once, and exit.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the state once, as JSON, for scripts.")] = False,
) -> None:
    """Watch a run in the terminal: steps, time left, epsilon, utility, sites. The command writes no file."""
    from dpfed.console.terminal import console, say

    say(f"reading {run}", True)
    from dpfed.live.figures import figures
    from dpfed.live.scan import Scan
    from dpfed.live.terminal import fitted, view

    scan = Scan(run)
    single = scan.single is not None
    if as_json:
        print(json.dumps([_facts(seen.name, seen.state, figures(seen)) for seen in scan.all()], indent=1))
        if scan.left_out:
            say(scan.left_out, True)
        return
    if once or not console.is_terminal:
        console.print(view(scan.all(), single, scan.left_out), highlight=False)
        return
    from rich.live import Live

    from dpfed.console.interruption import until_ctrl_c

    with until_ctrl_c(), Live(console=console, refresh_per_second=4) as live:
        while True:
            seen = scan.all()
            shown = view(seen, single, scan.left_out)
            if single and (not seen or seen[0].state == "finished"):
                return live.update(shown)  # the whole view stays on the screen, which scrolls
            live.update(fitted(shown, console))
            time.sleep(_AGAIN)


def _facts(name: str, state: str, made: list) -> dict:
    return {
        "run": name,
        "state": state,
        "figures": [{"name": figure.key, "value": figure.value, "shown": figure.shown, **figure.labels} for figure in made],
    }


def serve(
    runs: Annotated[Path, typer.Argument(help="A folder of runs, a run, or a site's folder.", show_default=False)],
    port: Annotated[int, typer.Option(help="Port to listen on, for this machine only; 0: any free port.")] = 8642,
    pictures: Annotated[
        Path | None,
        typer.Option(help="A public store to search by text; default: the run's store, if public.", show_default=False),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(help="File with the page's access token, mode 0600; default: a new token each time.", show_default=False),
    ] = None,
) -> None:
    """Show live and finished runs and federations on a local, read-only web page."""
    from dpfed.console.terminal import console, say

    say(f"reading {runs}", True)
    from dpfed.live.access import Access
    from dpfed.live.scan import Scan
    from dpfed.live.serving import listen

    scan = Scan(runs)
    access = Access.of(port, token_file)

    def ready(address: str) -> None:
        console.print(f"{address}\nCtrl-C ends it.", highlight=False, soft_wrap=True)

    listen(scan, access, pictures, ready)


def register(app: typer.Typer) -> None:
    """Adds both commands to the app."""
    for command in (watch, serve):
        app.command()(command)
