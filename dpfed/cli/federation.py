"""`dpfed federation`: the commands of the coordinator of several institutions.

`dpfed federation provision`, `plan` and `show` prepare a federation; `run` starts it; `demo` tries it on one machine.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from dpfed.cli.automatic import Batch, Delta, MethodName, Model, Public, Steps, refuse_destination, save_choices, show
from dpfed.cli.parties import Colluders, Drops, Skew, TrustMode, line, show_terms, simulated, tell
from dpfed.console.terminal import chosen_config, say, show_run

app = typer.Typer(no_args_is_help=True)


@app.command("provision")
def provision_federation(
    project: Annotated[Path, typer.Argument(help="Project file, TOML (docs/a-site-in-15-minutes.md).", show_default=False)],
    folder: Annotated[
        Path | None,
        typer.Option(help="Output folder; default: beside the project file, with the project's name.", show_default=False),
    ] = None,
) -> None:
    """Make a signed starter kit for each site, and the coordinator's folder. Repeat the command when the sites have replied."""
    say(f"reading {project}", True)
    from dpfed.console.terminal import watching
    from dpfed.federation.provisioning.project import Project
    from dpfed.federation.provisioning.provision import provision

    with watching(as_json=True) as progress:
        done = provision(Project.load(project), project.absolute(), folder, progress)
    for site, kit in done.kits.items():
        state = "has left" if site in done.left else "has not replied" if site in done.waiting else "has replied"
        line(site, f"{state}; {'new kit' if site in done.changed else 'kit unchanged'}: {kit}")
    for news in done.news:
        line("new", news)
    line(
        "read out", f"{done.fingerprint}   (the coordinator's fingerprint: tell it by telephone, and never send it with a kit)"
    )
    if done.waiting:
        tell(f"\nSend each site its kit. Put the replies into {done.folder / 'replies'}, then run this command again.")
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


@app.command("plan")
def plan_federation(
    records: Annotated[
        str, typer.Option(help="Training records of each site, such as 3000,1200,800.", metavar="N,N,...", show_default=False)
    ],
    epsilon: Annotated[float, typer.Option(help="The guarantee: 1 is strong, 8 is usual, more is weak.", show_default=False)],
    captions: Annotated[bool, typer.Option("--captions", help="The records are images with captions.")] = False,
    data: Annotated[str, typer.Option(help="The coordinator's own record store, for evaluation; default: none.")] = "",
    delta: Delta = None,
    model: Model = None,
    method: MethodName = None,
    batch: Batch = None,
    steps: Steps = None,
    public: Public = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override one key, such as privacy.epsilon=4.")
    ] = None,
    save_config: Annotated[
        Path | None, typer.Option(help="Write the plan as a configuration, then stop.", metavar="FILE", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON only, for scripts.")] = False,
) -> None:
    """Choose a federation's plan from the sites' numbers of records; print the reasons and the expected result."""
    say(f"{records} records: choosing a plan", True)
    if save_config is not None:
        refuse_destination(save_config)
    from dpfed.automatic.federation import plan_federation as chosen_for
    from dpfed.automatic.request import Request, counts_of

    options = {"delta": delta, "model": model, "method": method, "batch": batch, "steps": steps, "public": public}
    request = Request(data, epsilon, assignments=tuple(assignments or ()), **options)  # type: ignore[arg-type]
    chosen = chosen_for(request, counts_of(records), captions)
    show(chosen, as_json)
    if save_config is not None:
        first = (
            f"dpfed start {save_config}, and send each site the weights that this makes; then "
            if chosen.config.model.start
            else ""
        )
        said = f'{first}write config = "{save_config}" into project.toml (docs/a-site-in-15-minutes.md)'
        save_choices(chosen, save_config, said)
    if as_json:
        print(json.dumps(chosen.facts()))


@app.command("show")
def show_federation(terms: Annotated[Path, typer.Argument(help="A file of terms.", show_default=False)]) -> None:
    """Show what a federation's terms mean, before a site joins."""
    say(f"reading {terms}", True)
    from dpfed.protocol.terms import Terms

    show_terms(Terms.load(terms))


@app.command("run")
def run(
    folder: Annotated[Path, typer.Argument(help="Folder that `dpfed federation provision` made.", show_default=False)],
    port: Annotated[
        int | None, typer.Option(help="Port of the SuperLink, on loopback; default: as provisioned.", show_default=False)
    ] = None,
) -> int:
    """Register the SuperNodes' keys, and start or resume a provisioned federation's run."""
    from dpfed.federation.flower.operator import Unavailable, operate

    try:
        return operate(folder, port)
    except Unavailable as error:
        print(f"error: {error}", file=sys.stderr)
        return 1  # a service manager retries; 2 would mean that the operator must fix something


@app.command("demo")
def demo(
    config: Annotated[Path, typer.Argument(help="A TOML file, or a name such as federation.")],
    run: Annotated[Path, typer.Option(help="Run directory to make; the parties' folders are made beside it.")],
    assignments: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override one key.")] = None,
    sites: Annotated[int, typer.Option(min=2, max=1000, help="Number of institutions.")] = 3,
    trust: TrustMode = None,
    drops: Drops = None,
    colluders: Colluders = None,
    skew: Skew = None,
    deadline: Annotated[float, typer.Option(min=1, help="Seconds that a step waits for the slowest site.")] = 120.0,
) -> None:
    """Train with several institutions, all on this machine. The same command resumes an interrupted run."""
    say(f"reading {config}")
    from dpfed.artifacts.directory import RunDirectory

    loaded, path = chosen_config(config, assignments), run.absolute()
    asked = simulated(sites, None, trust=trust, drops=drops, colluders=colluders, skew=skew)
    assert asked is not None  # because `sites` is given
    if not RunDirectory.unused(path) and RunDirectory.open(path).finished:
        say(f"{run} is finished; these are its results (to train another run, give another --run)")
        show_run(RunDirectory(path))
        return
    asked.refuse(loaded)
    say("loading PyTorch")
    from dpfed.errors import goes_on
    from dpfed.federation.demo.one_machine import federate

    options = {"trust": asked.trust, "drops": asked.drops, "colluders": asked.colluders, "deadline": deadline}
    with goes_on(lambda: "stopped; the same command resumes"):
        federate(loaded, path, asked.sites, asked.skew, options)
