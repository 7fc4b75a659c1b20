"""`dpfed federation` and `dpfed site`: what the coordinator and the institutions of a federation do."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dpfed.console import logs
from dpfed.console.terminal import chosen_config, console, say

if TYPE_CHECKING:
    from dpfed.federation.protocol.terms import Terms

federation = typer.Typer(help="For the coordinator of several institutions: make the terms, show them.", no_args_is_help=True)
site = typer.Typer(help="For one of several institutions: make a site, join a federation, serve it.", no_args_is_help=True)

SiteDirectory = Annotated[Path, typer.Argument(help="The site's folder.", show_default=False)]


@federation.command("create")
def create_federation(
    folder: Annotated[Path, typer.Argument(help="The coordinator's folder to make.", show_default=False)],
    config: Annotated[Path, typer.Argument(help="A TOML file, or a name. Its [data] names the coordinator's own records.")],
    cards: Annotated[list[Path], typer.Argument(help="card.json of each site.", show_default=False)],
    assignments: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override one key.")] = None,
    trust: Annotated[
        Literal["central", "distributed", "secure", "local"], typer.Option(help="Who adds the noise (docs/federation.md).")
    ] = "central",
    drops: Annotated[int, typer.Option(help="Sites that may drop out of a step (distributed, secure).")] = 0,
    colluders: Annotated[int, typer.Option(help="Sites that may tell others what they know (distributed, secure).")] = 1,
    deadline: Annotated[float, typer.Option(help="Seconds that a step waits for the slowest site.")] = 120.0,
    broadcast: Annotated[Literal["fp32", "bf16"], typer.Option(help="How parameters travel to the sites.")] = "fp32",
) -> None:
    """Make the terms of a federation from the cards of its sites."""
    say(f"making terms for {len(cards)} sites", True)
    from dpfed.console.terminal import watching
    from dpfed.federation.folders import CoordinatorFolder
    from dpfed.federation.protocol.terms import Terms
    from dpfed.progress import import_progress
    from dpfed.runs.making import make_start_if_wanted
    from dpfed.runs.paths import with_absolute_paths

    loaded = with_absolute_paths(chosen_config(config, assignments))
    options = {"trust": trust, "drops": drops, "colluders": colluders, "deadline": deadline, "broadcast": broadcast}
    with watching(as_json=True) as watcher:  # beside the output
        make_start_if_wanted(loaded, watcher)
        made = CoordinatorFolder.create(folder, loaded, cards, import_progress(watcher), **options)
    _show_terms(Terms.load(made.terms))
    console.print(f"\nGive {made.terms} to every site.", highlight=False, soft_wrap=True)


@federation.command("show")
def show_federation(terms: Annotated[Path, typer.Argument(help="A file of terms.", show_default=False)]) -> None:
    """Show what the terms mean, before anybody joins."""
    say(f"reading {terms}", True)
    from dpfed.federation.protocol.terms import Terms

    _show_terms(Terms.load(terms))


@site.command("create")
def create_site(
    folder: SiteDirectory,
    name: Annotated[str, typer.Option(help="The site's name in the federation.", show_default=False)],
    store: Annotated[Path, typer.Option(help="The site's record store.", show_default=False)],
    budget: Annotated[float | None, typer.Option(help="The largest epsilon that the site agrees to.")] = None,
    delta: Annotated[
        float | None, typer.Option(help="The largest delta that the site agrees to; default 1/N.", show_default=False)
    ] = None,
    declared: Annotated[
        int | None,
        typer.Option(help="Training records to declare. The number is public. Default: the true one; it may be larger."),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    weights: Annotated[str | None, typer.Option(help="This site's copy of model.weights.", show_default=False)] = None,
    architecture: Annotated[
        str | None, typer.Option(help="This site's copy of model.architecture, where that is a file.", show_default=False)
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(help="This site's copy of the starting weights, where a tower is frozen or adapted.", show_default=False),
    ] = None,
) -> None:
    """Make a site: its keys, its settings, and the card for the coordinator."""
    say(f"opening the records of {store}", True)
    from dpfed.federation.folders import SiteFolder

    own = {"weights": weights, "architecture": architecture, "start": start}
    made = SiteFolder.create(folder, name, store, declared, budget=budget, delta=delta, device=device, **own)
    console.print(f"Give {made.card} to the coordinator; all else in {made.path} is secret.", highlight=False, soft_wrap=True)
    read_out = f"Read its fingerprint out to the other sites, by telephone: {made.own_card().fingerprint}"
    console.print(read_out, highlight=False, soft_wrap=True)


@site.command()
def confirm(
    folder: SiteDirectory,
    cards: Annotated[
        list[str],
        typer.Argument(
            help="Fingerprints of other sites' cards, in quotes, or card.json as it came from them.", show_default=False
        ),
    ],
) -> None:
    """Note that other sites' cards are theirs: you have heard the fingerprints from the sites themselves."""
    say(f"reading {folder}", True)
    from dpfed.federation.folders import SiteFolder
    from dpfed.federation.protocol.statement import confirmation

    opened = SiteFolder.open(folder)
    opened.confirm(cards)
    if not opened.joined:
        console.print(f"{len(opened.confirmed.read())} cards of other sites are confirmed.", highlight=False, soft_wrap=True)
        return
    terms = opened.terms()
    text = confirmation(terms, terms.number_of(opened.identity().signing_key), opened.confirmed.read())
    console.print(f"confirmed  {text}", highlight=False, soft_wrap=True)


@site.command()
def join(
    folder: SiteDirectory, terms: Annotated[Path, typer.Argument(help="The coordinator's terms.json.", show_default=False)]
) -> None:
    """Join a federation: from now on the site answers to these terms only."""
    say(f"checking {terms}", True)
    from dpfed.federation.folders import SiteFolder
    from dpfed.federation.protocol.terms import Terms

    loaded, opened = Terms.load(terms), SiteFolder.open(folder)
    opened.join(loaded)
    _show_terms(loaded, loaded.number_of(opened.identity().signing_key), opened.confirmed.read())
    compare = "\nCompare the fingerprint with the coordinator's, by another channel than the file's: for example, by telephone."
    console.print(compare, highlight=False, soft_wrap=True)


@site.command()
def serve(
    folder: SiteDirectory,
    socket: Annotated[
        Path | None, typer.Option(help="Where to answer; default: FOLDER/door/socket.", show_default=False)
    ] = None,
    group: Annotated[
        str | None, typer.Option(help="Unix group that may ask, such as the SuperNode's.", show_default=False)
    ] = None,
) -> None:
    """Load the site's records and model, and answer the coordinator until stopped."""
    say(f"loading the records and the model of {folder}", True)
    from dpfed.errors import UserError
    from dpfed.federation.folders import SiteFolder
    from dpfed.federation.site.serving import serve_site

    if group is not None and socket is None:
        raise UserError(f"--group {group} cannot reach a socket in {folder}, which is secret: give --socket outside of it.")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    opened = SiteFolder.open(folder)
    serve_site(opened, socket or opened.door, _say, stop, group)


@site.command()
def status(folder: SiteDirectory) -> None:
    """Show what the site has spent."""
    say(f"reading {folder}", True)
    from dpfed.federation.folders import SiteFolder
    from dpfed.federation.protocol.statement import confirmation
    from dpfed.privacy.ledger import Ledger
    from dpfed.privacy.promise import meaning, round_up

    opened = SiteFolder.open(folder)
    terms, ledger = opened.terms(), Ledger.open(opened.ledger)
    number = terms.number_of(opened.identity().signing_key)
    own = terms.sites[number]
    plan, budget = ledger.plan, opened.settings().budget
    for name, value in (
        ("site", f"{own.name}, {own.records:,} records declared, {own.groups} of {plan.groups} groups"),
        ("terms", terms.fingerprint),
        ("confirmed", confirmation(terms, number, opened.confirmed.read())),
        ("steps answered", f"{ledger.charged} of {plan.steps}"),
        ("epsilon spent", f"{round_up(ledger.epsilon)} at delta {round_up(plan.delta)}, of {round_up(plan.epsilon())} planned"),
        ("which means", meaning(plan.epsilon(), plan.delta, plan.protected, "what all planned steps release")),
        (
            "budget",
            f"{'none set' if budget is None else repr(budget)}, at a delta of {round_up(opened.most_delta(plan))} at most",
        ),
    ):
        console.print(f"{name:>15}  {value}", highlight=False, soft_wrap=True)


def _say(text: str) -> None:
    if logs.active():
        return logs.write("note", text=text)
    print(time.strftime("%H:%M:%S"), text, flush=True)


def _show_terms(terms: Terms, own: int | None = None, confirmed: Collection[str] = ()) -> None:
    from dpfed.federation.protocol.statement import statement

    for name, value in statement(terms, own, confirmed):
        console.print(f"{name:>15}  {value}", highlight=False, soft_wrap=True)
