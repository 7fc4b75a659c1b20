"""`dpfed federation run`, `app`, `certificates` and `demo`: what the coordinator's operator starts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from dpfed.cli.simulation import Skew
from dpfed.console.terminal import chosen_config, say, show_run
from dpfed.errors import UserError


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("run")(run)
    app.command("app")(app_folder)
    app.command("certificates")(certificates)
    app.command("demo")(demo)


def run(
    folder: Annotated[Path, typer.Argument(help="What `dpfed federation provision` made.", show_default=False)],
    port: Annotated[int | None, typer.Option(help="Port of the SuperLink, on loopback.", show_default=False)] = None,
    keys_only: Annotated[bool, typer.Option("--register", help="Only register the SuperNodes' keys, and end.")] = False,
) -> int:
    """Register the SuperNodes' keys, and start or resume a provisioned federation's run."""
    from dpfed.federation.flower.operator import Unavailable, operate
    from dpfed.federation.provisioning.services import LINK_PORT

    try:
        return operate(folder, LINK_PORT if port is None else port, keys_only)
    except Unavailable as error:
        print(f"error: {error}", file=sys.stderr)
        return 1  # 2 is for what the operator must mend: a service manager leaves it at that


def app_folder(folder: Annotated[Path, typer.Argument(help="Must not exist.", show_default=False)]) -> None:
    """Make the app folder for `flwr run`."""
    from dpfed.federation.flower.app_folder import make_app_folder

    print(make_app_folder(folder))


def certificates(
    folder: Annotated[Path, typer.Argument(help="Where the files are put.", show_default=False)],
    hosts: Annotated[
        list[str] | None, typer.Option("--host", help="A name or IP address of the SuperLink; may be repeated.")
    ] = None,
    nodes: Annotated[list[str] | None, typer.Option("--node", help="Name of a SuperNode; may be repeated.")] = None,
) -> None:
    """Make a server's certificate, and key pairs of SuperNodes.

    For a host: ``server.pem`` and ``server.key``, and beforehand, where there is none yet, the authority that signs them:
    ``ca.crt``, which every site gets, and ``ca.key``, which should lie on no machine that is online. For a node: its key pair,
    in the form that ``ssh-keygen -t ecdsa -b 384`` writes; a site makes it at home and hands out only the public half.
    """
    from dpfed.federation.provisioning.certificates import make_certificates, make_node_key

    if not hosts and not nodes:
        raise UserError("give --host for a server's certificate, --node for a SuperNode's key pair, or both.")
    if hosts:
        make_certificates(folder, hosts)
    for name in nodes or ():
        make_node_key(folder, name)


def demo(
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
    """Train with several institutions, all on this machine; the same command resumes after an interruption."""
    say(f"reading {config}")
    from dpfed.artifacts.directory import RunDirectory

    loaded, place = chosen_config(config, assignments), run.absolute()
    if not RunDirectory.unused(place) and RunDirectory.open(place).finished:
        say(f"{run} is finished: nothing is left to do, and this is what came of it (another --run makes another)")
        show_run(RunDirectory(place))
        return
    say("loading PyTorch")
    from dpfed.federation.demo.one_machine import federate

    options: dict[str, str | int | float] = {"trust": trust, "drops": drops, "colluders": colluders, "deadline": deadline}
    federate(loaded, place, sites, 0.8 if skew is None else skew, options)
