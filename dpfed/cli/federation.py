"""`dpfed federation`: what the coordinator of several institutions does."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from dpfed.cli import operating
from dpfed.cli.parties import line, show_findings, show_terms, tell
from dpfed.console.terminal import chosen_config, say

federation = typer.Typer(
    help="For the coordinator of several institutions: make the terms, run the federation, try one on this machine.",
    no_args_is_help=True,
)
operating.register(federation)

Json = Annotated[bool, typer.Option("--json", help="Print JSON only, for scripts.")]


@federation.command("create")
def create_federation(
    folder: Annotated[Path, typer.Argument(help="The coordinator's folder to make.", show_default=False)],
    config: Annotated[Path, typer.Argument(help="A TOML file, or a name. Its [data] names the coordinator's own records.")],
    cards: Annotated[list[Path], typer.Argument(help="card.json of each site.", show_default=False)],
    assignments: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override one key.")] = None,
    trust: Annotated[
        Literal["central", "distributed", "secure", "local"],
        typer.Option(help="Who adds the noise (docs/a-site-in-15-minutes.md)."),
    ] = "central",
    drops: Annotated[int, typer.Option(help="Sites that may drop out of a step (distributed, secure).")] = 0,
    colluders: Annotated[int, typer.Option(help="Sites that may tell others what they know (distributed, secure).")] = 1,
    deadline: Annotated[float, typer.Option(help="Seconds that a step waits for the slowest site.")] = 120.0,
    broadcast: Annotated[Literal["fp32", "bf16"], typer.Option(help="How parameters travel to the sites.")] = "fp32",
) -> None:
    """Make the terms of a federation from the cards of its sites."""
    say(f"making terms for {len(cards)} sites", True)
    from dpfed.console.terminal import watching
    from dpfed.federation.coordinator.folder import CoordinatorFolder
    from dpfed.federation.protocol.terms import Terms
    from dpfed.runs.paths import with_absolute_paths

    loaded = with_absolute_paths(chosen_config(config, assignments))
    options: dict[str, Any] = {
        "trust": trust,
        "drops": drops,
        "colluders": colluders,
        "deadline": deadline,
        "broadcast": broadcast,
    }
    with watching(as_json=True) as watcher:  # beside the output
        made = CoordinatorFolder.create(folder, loaded, cards, watcher, **options)
    show_terms(Terms.load(made.terms))
    tell(f"\nGive {made.terms} to every site.")


@federation.command("provision")
def provision_federation(
    project: Annotated[Path, typer.Argument(help="A TOML file (docs/a-site-in-15-minutes.md).", show_default=False)],
    folder: Annotated[
        Path | None, typer.Option(help="Where everything goes; default: beside the project, with its name.", show_default=False)
    ] = None,
    renew: Annotated[
        Literal["certificate", "authority"] | None,
        typer.Option(help="Make a new server's certificate, or a new authority beside the old one.", show_default=False),
    ] = None,
) -> None:
    """Make one signed starter kit per site, and the coordinator's folder; again when the sites have replied."""
    say(f"reading {project}", True)
    from dpfed.console.terminal import watching
    from dpfed.federation.provisioning.project import Project
    from dpfed.federation.provisioning.provision import provision

    with watching(as_json=True) as watcher:
        done = provision(Project.load(project), project.absolute(), folder, renew, watcher)
    for site, kit in done.kits.items():
        state = "has left" if site in done.left else "has not replied" if site in done.waiting else "has replied"
        line(site, f"{state}; {'new kit' if site in done.changed else 'kit as before'}: {kit}")
    for news in done.news:
        line("new", news)
    line("read out", f"{done.fingerprint}   (the coordinator's fingerprint: by telephone, never beside a kit)")
    if done.waiting:
        tell(f"\nSend each site its kit. Put the replies into {done.folder / 'replies'}, and give this command again.")
        return
    if done.terms is not None:
        line("terms", done.terms.fingerprint)
    tell(
        f"\nSend each site its new kit, and start the coordinator: {done.folder / 'README.md'} says how."
        if done.changed
        else "\nNo kit is new."
        if done.news
        else "\nNothing is new."
    )


@federation.command("doctor")
def doctor_of_federation(
    folder: Annotated[Path, typer.Argument(help="The coordinator's folder.", show_default=False)], as_json: Json = False
) -> None:
    """Check clock, ports, certificates, disk, versions and records of a coordinator, and say what to do."""
    say(f"examining {folder}", True)
    from dpfed.federation.provisioning.doctor import examine_coordinator

    show_findings(examine_coordinator(folder), as_json)


@federation.command("show")
def show_federation(terms: Annotated[Path, typer.Argument(help="A file of terms.", show_default=False)]) -> None:
    """Show what the terms mean, before anybody joins."""
    say(f"reading {terms}", True)
    from dpfed.federation.protocol.terms import Terms

    show_terms(Terms.load(terms))
