"""`dpfed pretrain`, `resume`, `evaluate`, `report` and `export`."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpfed.cli.cluster import Cluster, CpusPerWorker, GpusPerWorker, Restarts, Workers, collected
from dpfed.cli.cluster import carry_out as on_cluster
from dpfed.cli.simulation import Colluders, Drops, Federated, Skew, TrustMode, simulated

if TYPE_CHECKING:
    from dpfed.run import RunDirectory
    from dpfed.watching import Watcher

RunFolder = Annotated[Path, typer.Argument(help="A run directory.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON only, for scripts.")]


def pretrain(
    config: Annotated[
        Path, typer.Argument(help="A TOML file, or a name such as quickstart (see `dpfed config list`).", show_default=False)
    ],
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override one key, such as privacy.epsilon=4.")
    ] = None,
    run: Annotated[Path | None, typer.Option("--run", help="Where the run goes; default runs/NAME.")] = None,
    again: Annotated[bool, typer.Option("--resume", help="Go on if the run is there already.")] = False,
    as_json: Json = False,
    cluster: Cluster = None,
    workers: Workers = None,
    gpus_per_worker: GpusPerWorker = None,
    cpus_per_worker: CpusPerWorker = None,
    restarts: Restarts = None,
    federated: Federated = None,
    trust: TrustMode = None,
    drops: Drops = None,
    colluders: Colluders = None,
    skew: Skew = None,
) -> None:
    """Pretrain an encoder privately: a model, a report and a privacy card."""
    from dpfed.cli.terminal import chosen_config

    loaded = chosen_config(config, assignments)  # before torch, so that a mistake is answered at once
    folder = run or Path("runs") / loaded.name
    options = collected(cluster, workers, gpus_per_worker, cpus_per_worker, restarts)
    simulation = simulated(federated, cluster, trust=trust, drops=drops, colluders=colluders, skew=skew)
    if simulation is not None:
        from dpfed.federation.simulation import simulate

        _watch(lambda watcher: simulate(loaded, folder, simulation, watcher, again), as_json)
        return
    if cluster is None:
        from dpfed.pretraining import pretrain as carry_out

        _watch(lambda watcher: carry_out(loaded, folder, watcher, again), as_json)
        return
    _watch(lambda watcher: on_cluster(cluster, folder, loaded, again, watcher, **options), as_json)


def resume(
    run: RunFolder,
    as_json: Json = False,
    cluster: Cluster = None,
    workers: Workers = None,
    gpus_per_worker: GpusPerWorker = None,
    cpus_per_worker: CpusPerWorker = None,
    restarts: Restarts = None,
) -> None:
    """Go on with a run that was interrupted. A finished run is only shown."""
    from dpfed.pretraining import resume as carry_on

    options = collected(cluster, workers, gpus_per_worker, cpus_per_worker, restarts)
    if cluster is None:
        _watch(lambda watcher: carry_on(run, watcher), as_json)
    else:
        _watch(lambda watcher: on_cluster(cluster, run, None, True, watcher, **options), as_json)


def _watch(carry_out: Callable[[Watcher], RunDirectory | None], as_json: bool) -> None:
    """Has a run carried out before the user's eyes, and shows what came of it."""
    from dpfed.cli.terminal import show_run, watching
    from dpfed.watching import Silent

    with contextlib.nullcontext(Silent()) if as_json else watching() as watcher:
        finished = carry_out(watcher)
    if finished is None:  # one of several processes, and not the first
        return
    if as_json:
        print(finished.results.read_text(encoding="utf-8"), end="")
    else:
        show_run(finished)


def evaluate(
    run: RunFolder,
    split: Annotated[str | None, typer.Option(help="validation or test; default: the run's own.")] = None,
    task: Annotated[list[str] | None, typer.Option(help="retrieval, zero_shot, knn or linear; may be repeated.")] = None,
    as_json: Json = False,
) -> None:
    """Measure a run's model again, beside the one before training."""
    from rich.markup import escape

    from dpfed.cli.terminal import console
    from dpfed.reevaluation import evaluate_run
    from dpfed.report.results import shown

    figures = evaluate_run(run, split, task)
    if as_json:
        print(json.dumps([figure.facts() for figure in figures], indent=2))
        return
    for figure in figures:
        console.print(
            f"{figure.model:>10}  {escape(figure.name):<28} {shown(figure.value, figure.name, figure.interval):>16}  "
            f"[dim]{escape(figure.protocol)}[/]",
            highlight=False,
            soft_wrap=True,
        )


def report(
    run: Annotated[list[Path], typer.Argument(help="Run directories; several make a comparison.", show_default=False)],
    out: Annotated[Path | None, typer.Option(help="Where the page goes; default RUN/report.html or comparison.html.")] = None,
) -> None:
    """Write the report of a run, or one that compares several."""
    from dpfed.cli.terminal import console
    from dpfed.errors import UserError
    from dpfed.report.html import write_report
    from dpfed.report.run_view import RunView

    views = [RunView.read(folder) for folder in run]
    path = out or (run[0] / "report.html" if len(run) == 1 else Path("comparison.html"))
    if out is None and len(run) > 1 and path.exists():
        raise UserError(f"{path} exists: choose another file with --out.")
    write_report(path, views)
    console.print(path, highlight=False, soft_wrap=True)


def export(
    run: RunFolder,
    dest: Annotated[Path, typer.Argument(help="Where the model goes; must not exist.", show_default=False)],
    adapters: Annotated[bool, typer.Option("--adapters", help="Only the adapters, as one file.")] = False,
) -> None:
    """Copy a run's model out, for example for `open_clip.create_model("local-dir:DEST")`."""
    from dpfed.cli.terminal import console
    from dpfed.export import export_model
    from dpfed.run import RunDirectory

    for file in export_model(run, dest, adapters):
        console.print(f"{file}  [dim]{file.stat().st_size:,} bytes[/]", highlight=False, soft_wrap=True)
    opened = RunDirectory.open(run)
    page = opened.no_card if opened.no_card.exists() else opened.card
    console.print(f"[dim]What holds for it, and what does not, is in[/] {page}", highlight=False, soft_wrap=True)


def register(app: typer.Typer) -> None:
    """Adds the commands that deal with runs."""
    for command in (pretrain, resume, evaluate, report, export):
        app.command()(command)
