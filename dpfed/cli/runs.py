"""`dpfed pretrain`, `resume`, `evaluate`, `report` and `export`."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpfed.cli.automatic import (
    Batch,
    Data,
    Delta,
    DryRun,
    Epsilon,
    MethodName,
    Minutes,
    Model,
    Public,
    SaveConfig,
    Steps,
    requested,
    settled,
)
from dpfed.cli.cluster import (
    Cluster,
    CpusPerWorker,
    GpusPerWorker,
    Restarts,
    Workers,
    another_process,
    collected,
    least_of,
    run_on_cluster,
)
from dpfed.cli.parties import Colluders, Drops, Federated, Skew, TrustMode, simulated

if TYPE_CHECKING:
    from dpfed.artifacts.directory import RunDirectory
    from dpfed.callbacks import Callback
    from dpfed.progress import Progress

RunFolder = Annotated[Path, typer.Argument(help="A run directory.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON only, for scripts.")]
ReportTo = Annotated[
    str | None,
    typer.Option(
        "--report-to",
        metavar="NAMES",
        help="Send figures to tensorboard, wandb or mlflow, or to several, as in wandb,mlflow.",
        show_default=False,
    ),
]


def pretrain(
    config: Annotated[
        Path | None,
        typer.Argument(help="A TOML file, or a name such as quickstart (see `dpfed config list`).", show_default=False),
    ] = None,
    data: Data = None,
    epsilon: Epsilon = None,
    delta: Delta = None,
    model: Model = None,
    method: MethodName = None,
    minutes: Minutes = None,
    batch: Batch = None,
    steps: Steps = None,
    public: Public = None,
    dry_run: DryRun = False,
    save_config: SaveConfig = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override one key, such as privacy.epsilon=4.")
    ] = None,
    run: Annotated[Path | None, typer.Option("--run", help="Run directory; default: runs/NAME.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run if it exists.")] = False,
    as_json: Json = False,
    report_to: ReportTo = None,
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
    """Pretrain an encoder privately, from a configuration (CONFIG) or from a data set (--data and --epsilon).

    The run writes a model, a report and a privacy card.
    """
    from dpfed.config import Config
    from dpfed.console.terminal import say

    wanted = requested(
        config, data, assignments, epsilon=epsilon, delta=delta, model=model, method=method, minutes=minutes, batch=batch,
        steps=steps, public=public, dry_run=dry_run, save_config=save_config,
    )  # fmt: skip
    folder = run or Path("runs") / wanted.name
    if not another_process(cluster) and not (dry_run or save_config):
        say(f"{wanted.name}: the run goes to {folder}", as_json)
    options = collected(cluster, workers, gpus_per_worker, cpus_per_worker, restarts)
    simulation = simulated(federated, cluster, trust=trust, drops=drops, colluders=colluders, skew=skew)
    callbacks = _trackers(report_to, another_process(cluster))
    finished = resume and _finished(folder)

    def work(progress: Progress) -> RunDirectory | None:
        from dpfed.runs.preflight import Preflight

        whole, comments = settled(wanted, folder, cluster, progress, resume, (dry_run, save_config, as_json))
        world_size = simulation.sites if simulation else least_of(cluster, workers)
        preflight = Preflight.of(whole, folder, world_size, progress, resume, comments)
        progress.note("loading PyTorch")
        if simulation is not None:
            from dpfed.federation.simulation import run_simulation

            return run_simulation(preflight, simulation, progress, callbacks)
        if cluster is None:
            from dpfed.runs.pretraining import run_pretraining

            return run_pretraining(preflight, progress, callbacks)
        return run_on_cluster(cluster, folder, whole, resume, progress, callbacks, comments, **options)

    _watch(work, as_json, another_process(cluster), folder if finished else None)
    if isinstance(wanted, Config) and wanted.data.from_nothing and not as_json and not another_process(cluster):
        say("your own images, with or without captions: dpfed pretrain --data my-images --epsilon 8")


def resume(
    run: RunFolder,
    as_json: Json = False,
    report_to: ReportTo = None,
    cluster: Cluster = None,
    workers: Workers = None,
    gpus_per_worker: GpusPerWorker = None,
    cpus_per_worker: CpusPerWorker = None,
    restarts: Restarts = None,
) -> None:
    """Resume an interrupted run. For a finished run, the command only shows the results."""
    from dpfed.console.terminal import say

    options = collected(cluster, workers, gpus_per_worker, cpus_per_worker, restarts)
    from dpfed.artifacts.directory import RunDirectory

    finished = RunDirectory.open(run).finished
    callbacks = [] if finished else _trackers(report_to, another_process(cluster))
    if finished and not another_process(cluster):
        _say_finished(run, as_json)
    elif not another_process(cluster):
        say(f"resuming {run}", as_json)

    def work(progress: Progress) -> RunDirectory | None:
        if not finished:
            progress.note("loading PyTorch")
        if cluster is not None and not (finished and cluster == "ray"):  # a finished run needs no cluster
            return run_on_cluster(cluster, run, None, True, progress, callbacks, (), **options)
        from dpfed.federation.simulation import resume

        return resume(run, progress, callbacks)

    _watch(work, as_json, another_process(cluster))


def _trackers(names: str | None, silently: bool) -> list[Callback]:
    """Returns the trackers of ``--report-to``; an empty list without this option, and in a process other than rank 0."""
    if names is None or silently:
        return []
    from dpfed.callbacks import trackers

    return trackers(names)


def _finished(folder: Path) -> bool:
    """Returns whether a folder holds a finished run."""
    from dpfed.artifacts.directory import RunDirectory

    return not RunDirectory.unused(folder) and RunDirectory.open(folder).finished


def _say_finished(folder: Path, as_json: bool) -> None:
    """Prints that a run is finished, and that its results follow."""
    from dpfed.console.terminal import say

    say(f"{folder} is finished; these are its results", as_json)


def _watch(
    work: Callable[[Progress], RunDirectory | None], as_json: bool, silently: bool, only_shown: Path | None = None
) -> None:
    """Does the work of a run with visible progress, and shows the results.

    Args:
        work: Function that does the work and returns the finished run; ``None`` in a process other than rank 0.
        as_json: Whether to print the results as JSON only.
        silently: Whether to show nothing, because the user watches another process.
        only_shown: Folder of the run, if it was finished before this command began; otherwise ``None``. If it is given, a line
            tells the user that the run was finished already. The line comes after `work`, which refuses another run.
    """
    from dpfed.console.terminal import show_run, watching
    from dpfed.progress import Silent

    with contextlib.nullcontext(Silent()) if silently else watching(as_json) as progress:
        finished = work(progress)
    if finished is None:  # one of several processes, and not rank 0
        return
    if only_shown is not None:
        _say_finished(only_shown, as_json)
    if as_json:
        print(finished.results.read_text(encoding="utf-8"), end="")
    else:
        show_run(finished)


def evaluate(
    run: RunFolder,
    split: Annotated[str | None, typer.Option(help="Split: validation or test; default: the run's own.")] = None,
    task: Annotated[
        list[str] | None, typer.Option(help="Task: retrieval, zero_shot, knn or linear; may be repeated. Default: the run's.")
    ] = None,
    not_covered: Annotated[
        str | None,
        typer.Option(
            metavar="WHY",
            help="Justification for using training labels of records under a lifetime budget; the log of the budget keeps it.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Evaluate a run's model again, and also the model before training.

    The figures of a finished run are added to its results and its report. If the figures depend on private training labels, the
    run's privacy card says so.
    """
    from rich.markup import escape

    from dpfed.console.terminal import console, say, watching

    say(f"measuring {run} again", as_json)
    from dpfed.artifacts.directory import RunDirectory
    from dpfed.report.results import shown

    RunDirectory.open(run)  # before torch, which takes seconds to import
    with watching(as_json) as progress:
        progress.note("loading PyTorch")
        from dpfed.runs.reevaluation import evaluate_run

        figures = evaluate_run(run, split, task, progress, not_covered)
    if as_json:
        print(json.dumps([figure.facts() for figure in figures], indent=2))
        return
    for figure in figures:
        console.print(
            f"{figure.model:>10}  {escape(figure.name):<28} {shown(figure.value, figure.interval):>16}  "
            f"[dim]{escape(figure.protocol)}[/]",
            highlight=False,
            soft_wrap=True,
        )


def report(
    run: Annotated[list[Path], typer.Argument(help="Run directories; several are compared.", show_default=False)],
    out: Annotated[Path | None, typer.Option(help="File to write; default: RUN/report.html or comparison.html.")] = None,
    pictures: Annotated[
        Path | None,
        typer.Option(help="A public store, whose pictures the report's gallery and search show.", show_default=False),
    ] = None,
) -> None:
    """Write the report of a run, or a report that compares several runs."""
    from dpfed.console.terminal import console, say
    from dpfed.errors import UserError

    say(f"writing the report of {', '.join(map(str, run))}")
    if len(run) > 1 and pictures:
        raise UserError("--pictures belongs to the report of one run: give one run. [report-pictures-many]")
    from dpfed.artifacts.view import read_view
    from dpfed.report.html import write_report

    views = [read_view(folder) for folder in run]
    if pictures:
        from dpfed.artifacts.directory import RunDirectory
        from dpfed.encoder import load
        from dpfed.live.retrieval import public_store

        shown = load(run[0]).gallery(public_store(pictures), RunDirectory.open(run[0]).config())
        views = [dataclasses.replace(views[0], gallery=shown)]
    path = out or (run[0] / "report.html" if len(run) == 1 else Path("comparison.html"))
    if out is None and len(run) > 1 and path.exists():
        raise UserError(f"{path} exists: choose another file with --out. [report-exists]")
    write_report(path, views)
    console.print(path, highlight=False, soft_wrap=True)


def export(
    run: RunFolder,
    dest: Annotated[Path, typer.Argument(help="Folder for the model; it must not exist.", show_default=False)],
    hub: Annotated[
        bool, typer.Option("--hub", help="Add a page for the Hugging Face hub: a README.md that contains the privacy card.")
    ] = False,
    license: Annotated[
        str | None,
        typer.Option(help="License of the weights, stated on the page of --hub, such as apache-2.0.", show_default=False),
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(
            help="Write only the files of one library: timm, open_clip, transformers, onnx or state-dict.", show_default=False
        ),
    ] = None,
) -> None:
    """Copy a run's model to a folder, for example for `open_clip.create_model("local-dir:DEST")`. Nothing is uploaded."""
    from dpfed.console.terminal import console, say

    say(f"copying the model of {run} to {dest}")
    from dpfed.artifacts.directory import RunDirectory
    from dpfed.artifacts.export import about_images, export_model

    for file in export_model(run, dest, hub, license, format):
        console.print(f"{file}  [dim]{file.stat().st_size:,} bytes[/]", highlight=False, soft_wrap=True)
    if said := about_images(run):
        console.print(said, markup=False, highlight=False, soft_wrap=True)
    if hub:
        console.print(f"`hf upload OWNER/NAME {dest}` uploads it.", markup=False, highlight=False, soft_wrap=True)
    opened = RunDirectory.open(run)
    page = opened.no_card if opened.no_card.exists() else opened.card
    console.print(f"[dim]What is guaranteed for this model, and what is not:[/] {page}", highlight=False, soft_wrap=True)


def register(app: typer.Typer) -> None:
    """Adds the commands of this module to the app."""
    for command in (pretrain, resume, evaluate, report, export):
        app.command()(command)
