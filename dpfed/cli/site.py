"""`dpfed site`: the commands of a site, one of several institutions."""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from dpfed.cli.parties import line, show_findings, show_terms, site_settings, tell
from dpfed.console import logs
from dpfed.console.terminal import say

app = typer.Typer(no_args_is_help=True)

SiteDirectory = Annotated[Path, typer.Argument(help="The site's folder, or the folder of its kit.", show_default=False)]
KitFolder = Annotated[Path, typer.Argument(help="The folder of the site's kit.", show_default=False)]
Budget = Annotated[float | None, typer.Option(help="The largest epsilon that the site agrees to; default: any.")]
Delta = Annotated[
    float | None,
    typer.Option(
        help="The largest delta that the site agrees to; default: 1/N, with N records or units in the plan.", show_default=False
    ),
]
Declared = Annotated[
    int | None, typer.Option(help="Number of training records to declare publicly: the true number (default) or a larger one.")
]
_SHOWN = 20  # about this many of a ledger's steps are shown
_BEFORE_JOINING = (
    "\nCompare the terms' fingerprint with the coordinator's, over a channel other than the one that brought the kit: for "
    "example, by telephone. Joining reserves the whole plan in the lifetime budget of the records, if they have one. After "
    "that, this folder can never join other terms."
)
Json = Annotated[bool, typer.Option("--json", help="Print JSON only, for scripts.")]


@app.command("setup")
def set_up_site(
    kit: Annotated[Path, typer.Argument(help="The coordinator's kit.", show_default=False)],
    coordinator: Annotated[
        str, typer.Option(help="The coordinator's fingerprint, as its operator reads it out by telephone.", show_default=False)
    ],
    store: Annotated[Path, typer.Option(help="The site's record store.", show_default=False)],
    budget: Budget = None,
    delta: Delta = None,
    declared: Declared = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="A key of site.toml: device, engine, keep_features, or this site's copy of an agreed file, such as weights.",
        ),
    ] = None,
    into: Annotated[
        Path | None, typer.Option(help="Folder to make the site in; default: the current folder.", show_default=False)
    ] = None,
    proxy: Annotated[str | None, typer.Option(help="The network's HTTP proxy, http://HOST:PORT.", show_default=False)] = None,
) -> None:
    """Make a site from the coordinator's kit: check the kit, make keys, write the reply."""
    say(f"checking {kit}", True)
    from dpfed.federation.provisioning.site_paths import SitePaths

    options = {"declared": declared, "budget": budget, "delta": delta, "proxy": proxy, **site_settings(settings or [])}
    paths = SitePaths.set_up(kit, into, coordinator, store, **options)
    tell(f"Send {paths.reply} to the coordinator. The keys in {paths.path} stay here.")
    read_out = (
        f"Telephone the other sites, and read out the fingerprint of this site's card: {paths.site.own_card().fingerprint}"
    )
    tell(read_out)


@app.command("doctor")
def doctor_of_site(folder: KitFolder, as_json: Json = False) -> None:
    """Check clock, ports, certificates, versions, records and budget of a site, and give advice."""
    say(f"examining {folder}", True)
    from dpfed.federation.provisioning.doctor import examine_site

    show_findings(examine_site(folder), as_json)


@app.command()
def leave(folder: KitFolder) -> None:
    """Leave the federation permanently. What was spent stays spent; `dpfed budget settle FOLDER` gives the rest back."""
    say(f"reading {folder}", True)
    from dpfed.federation.provisioning.site_paths import SitePaths
    from dpfed.privacy.ledger import Ledger
    from dpfed.privacy.promise import round_up

    paths = SitePaths.open(folder)
    opened = paths.site
    paths.leave()
    tell(f"{opened.path} has left permanently. Its secret key for draws and noise is destroyed.")
    if opened.ledger.exists():
        ledger = Ledger.open(opened.ledger)
        spent = f"epsilon {round_up(ledger.epsilon)} at delta {round_up(ledger.plan.promise.delta)}"
        line("spent", f"{spent}, {ledger.charged} of {ledger.plan.steps} steps. It stays spent: keep {opened.ledger}")
    tell(f"Send {paths.reply} to the coordinator, and stop the SuperNode.")


@app.command()
def confirm(
    folder: SiteDirectory,
    cards: Annotated[list[str], typer.Argument(help="Fingerprints of other sites' cards, in quotes.", show_default=False)],
) -> None:
    """Confirm other sites' cards, whose fingerprints you heard from the sites themselves."""
    say(f"reading {folder}", True)
    from dpfed.federation.site.folder import SiteFolder
    from dpfed.protocol.statement import confirmation

    opened = SiteFolder.open(folder)
    opened.confirm(cards)
    if not opened.joined:
        confirmed = len(opened.confirmed())
        tell(f"{confirmed} card{'s' * (confirmed != 1)} of other sites {'is' if confirmed == 1 else 'are'} confirmed.")
        return
    terms = opened.terms()
    text = confirmation(terms, terms.number_of(opened.identity().signing_key), opened.confirmed())
    tell(f"confirmed  {text}")


@app.command()
def join(
    folder: KitFolder,
    kit: Annotated[Path, typer.Argument(help="The coordinator's kit that holds the terms.", show_default=False)],
    yes: Annotated[bool, typer.Option("--yes", help="Join without asking.")] = False,
    unconfirmed: Annotated[
        bool,
        typer.Option(
            "--unconfirmed",
            help="Join even if a lying coordinator and sites with unconfirmed cards could together exceed the budget.",
        ),
    ] = False,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Allow code that the terms name (package.module:object) to run here. May be repeated."
        ),
    ] = None,
) -> None:
    """Read a kit with terms, show what they mean, ask, and join. From then on the site answers only under these terms."""
    say(f"checking {kit}", True)
    from dpfed.errors import UserError
    from dpfed.federation.provisioning.site_paths import SitePaths
    from dpfed.federation.site.allowed import described_code
    from dpfed.protocol.terms import Terms

    paths = SitePaths.open(folder)
    opened = paths.site
    opened.refuse_if_left()

    def agreed(loaded: Terms) -> bool:
        show_terms(loaded, loaded.number_of(opened.identity().signing_key), opened.confirmed())
        for _, said in described_code(loaded):
            line("allowed here", said, 15)
        tell(_BEFORE_JOINING)
        try:
            return yes or typer.confirm("Join?")
        except typer.Abort:
            raise UserError(
                "nobody answered, so the site has not joined: --yes joins without asking. [option-yes-missing]"
            ) from None

    if kit.resolve() != paths.path:
        paths.unpack(kit)
    if opened.joined:
        tell(f"{paths.path} has joined already; its kit is number {paths.kit.serial} now.")
        return
    loaded = paths.join(agreed, unconfirmed, allow or [])
    if loaded is None:
        tell("The site has not joined, and nothing is reserved.")
        raise typer.Exit(1)
    from dpfed.federation.site.serving import require_copies  # with torch, which takes seconds

    try:
        require_copies(loaded, opened.settings())
    except UserError as error:
        tell(f"\nThe site has joined, but cannot be served yet: {error}")


@app.command()
def ledger(folder: SiteDirectory, as_json: Json = False) -> None:
    """Show how many steps a site has answered, and the epsilon spent after each of about 20 of them.

    The command checks every line of the ledger.
    """
    say(f"reading the ledger of {folder}", True)
    from dpfed.errors import UserError
    from dpfed.federation.site.folder import SiteFolder
    from dpfed.privacy.ledger import Ledger
    from dpfed.privacy.promise import round_up

    site = SiteFolder.open(folder)
    if not site.ledger.exists():
        site.terms()  # says how to join
        raise UserError(
            f"{site.ledger} is missing: what the site has spent is not known. Restore this file. [site-ledger-missing]"
        )
    opened = Ledger.open(site.ledger)
    plan = opened.plan
    every = max(1, math.ceil(opened.charged / _SHOWN))  # to account for each of thousands of steps would take minutes
    spent = [
        {"step": step, "epsilon": plan.epsilon(count)}
        for count, step in enumerate(opened.steps, 1)
        if count % every == 0 or count == opened.charged
    ]
    if as_json:
        whole = {"epsilon": opened.epsilon, "of": plan.epsilon(), "delta": plan.promise.delta, "steps": plan.steps}
        print(json.dumps({"site": site.own_card().name, **whole, "answered": opened.steps, "over_steps": spent}))
        return
    line("site", site.own_card().name)
    line("spent", f"epsilon {round_up(opened.epsilon)} of {round_up(plan.epsilon())}, delta {round_up(plan.promise.delta)}")
    line("answered", f"{opened.charged:,} of {plan.steps:,} steps; each was charged before its answer was sent")
    missed = sorted(set(range(opened.last_step + 1)) - set(opened.steps))
    if missed:
        line(
            "not answered", f"{len(missed):,} of the first {opened.last_step + 1:,} steps, most recently in step {missed[-1]:,}"
        )
    for row in spent:
        line(f"step {row['step']:,}", f"epsilon {round_up(row['epsilon'])} so far")


@app.command()
def serve(
    folder: SiteDirectory,
    socket: Annotated[
        Path | None, typer.Option(help="Unix socket to listen on; default: FOLDER/door/socket.", show_default=False)
    ] = None,
    group: Annotated[
        str | None, typer.Option(help="Unix group that may connect, such as the SuperNode's.", show_default=False)
    ] = None,
) -> None:
    """Load the site's records and model, and answer the coordinator until stopped.

    SIGTERM or Ctrl-C ends the command. While the command loads, it ends at once, with exit code 143 or 130; later it ends
    after the current answer, with exit code 0.
    """
    say(f"loading the records and the model of {folder}", True)
    from dpfed.errors import UserError
    from dpfed.federation.site.folder import SiteFolder

    if group is not None and socket is None:
        raise UserError(
            f"--group: members of {group} cannot enter the secret folder {folder}: choose a --socket outside it. "
            "[option-socket-secret]"
        )
    opened = SiteFolder.open(folder)
    opened.terms()  # before torch, which takes seconds to import
    from dpfed.federation.site.serving import serve_site

    serve_site(opened, socket or opened.socket, _say, group)


@app.command("supernode", context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []})
def supernode(context: typer.Context) -> None:
    """Run Flower's SuperNode with shorter polls and longer retries; takes the options of `flower-supernode`."""
    from dpfed.federation.flower.app_folder import require_flower

    require_flower()
    from dpfed.federation.flower.resident import main

    sys.argv = ["dpfed site supernode", *context.args]
    main()


@app.command("app")
def resident_app(
    runtime_api_address: Annotated[str, typer.Option(help="The SuperNode's --host and --port, as HOST:PORT.")],
    superexec_auth_secret_file: Annotated[Path, typer.Option(help="The same file as the SuperNode's.")],
) -> int:
    """Pass a SuperNode's messages to the site's worker, in one resident process."""
    from dpfed.errors import UserError
    from dpfed.federation.flower.app_folder import require_flower

    require_flower()
    from dpfed.federation.flower.resident import stay

    try:
        stay(runtime_api_address, superexec_auth_secret_file)
    except (UserError, OSError) as error:  # perhaps an error of the SuperNode: a service manager tries again
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _say(text: str) -> None:
    if logs.active():
        return logs.write("note", text=text)
    print(time.strftime("%H:%M:%S"), text, flush=True)
