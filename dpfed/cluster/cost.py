"""What a run would cost on 1, 8 or 64 GPUs, before one is rented: time, bytes and dollars."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Annotated, Any

import typer

from dpfed.cluster.estimate import Estimate, Machines, bottleneck, estimate
from dpfed.config import Config, load_config, parse_config
from dpfed.console.terminal import say
from dpfed.errors import UserError, nearest
from dpfed.files.reading import read_text
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.promise import large_delta, meaning, round_up
from dpfed.privacy.samplers import PoissonSampler

_RESTART = 120.0  # seconds from a death until all workers run again
_WIDTH = 116  # columns of the table: a pipe or a narrow terminal wraps its lines rather than cutting figures

app = typer.Typer(add_completion=False, rich_markup_mode="markdown", pretty_exceptions_enable=False)


@app.command()
def plan(
    workers: Annotated[list[int], typer.Option(help="W: workers, one GPU each; may be repeated.", show_default=False)],
    bandwidth: Annotated[float, typer.Option(help="GB/s over the slowest link between two workers.", show_default=False)],
    gpu_price: Annotated[float, typer.Option(help="Dollars per GPU and hour.", show_default=False)],
    config: Annotated[
        Path | None, typer.Option(help="A TOML file, or a name such as imagenet: the plan, and the parameters of its model.")
    ] = None,
    assignments: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override one key.")] = None,
    records: Annotated[int | None, typer.Option(help="N: training records; default: the store's, where it is.")] = None,
    batch: Annotated[int | None, typer.Option(help="B: expected records in a step.")] = None,
    steps: Annotated[int | None, typer.Option(help="T: steps.")] = None,
    group_size: Annotated[int | None, typer.Option(help="S: expected records in a group.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="The promise.")] = None,
    accountant: Annotated[str | None, typer.Option(help="pld (tight) or rdp (any numbers); default: the config's.")] = None,
    parameters: Annotated[int | None, typer.Option(help="P: trained parameters.")] = None,
    measured: Annotated[Path | None, typer.Option(help="A file of `python -m benchmarks.throughput`.")] = None,
    model: Annotated[str | None, typer.Option(help="Which model of the measured file.")] = None,
    throughput: Annotated[float | None, typer.Option(help="Records/s of one GPU, clipped group gradients only.")] = None,
    latency: Annotated[float | None, typer.Option(help="Fixed latency of a message, microseconds.")] = None,
    noise_seconds_per_million: Annotated[float | None, typer.Option(help="Noise, optimizer, per million parameters.")] = None,
    bookkeeping_seconds_per_million: Annotated[
        float | None, typer.Option(help="Digest, kept release and ledger, per million parameters.")
    ] = None,
    draws_seconds_per_million: Annotated[
        float | None, typer.Option(help="A worker's draws for a block of steps, per million of its records.")
    ] = None,
    decoding: Annotated[float | None, typer.Option(help="Images/s that one worker reads and decodes.")] = None,
    views: Annotated[float | None, typer.Option(help="Records/s whose views one worker makes.")] = None,
    checkpoint_seconds_per_million: Annotated[
        float | None, typer.Option(help="A checkpoint, per million parameters.", show_default=False)
    ] = None,
    failures: Annotated[float, typer.Option(help="Deaths of one worker per 1,000 hours.")] = 0.0,
    gpus_per_node: Annotated[int, typer.Option(help="GPUs that are rented together.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON only, for scripts.")] = False,
) -> None:
    """Step time, bytes, sigma, epsilon, hours and dollars of a run with many workers: no records and no cluster needed."""
    say(f"planning for {', '.join(map(str, workers))} workers", True)
    given = {"batch": batch, "steps": steps, "epsilon": epsilon, "group_size": group_size}
    wanted = _config(config, assignments or [], given, {} if accountant is None else {"accountant": accountant})
    promise = PrivacyPlan.from_config(_count(wanted, config, records), wanted)
    own = {
        "throughput": throughput,
        "latency": latency,
        "noise_seconds_per_million": noise_seconds_per_million,
        "bookkeeping_seconds_per_million": bookkeeping_seconds_per_million,
    }
    further = {
        "keys": draws_seconds_per_million,
        "decoding": _inverse("decoding", decoding),
        "views": _inverse("views", views),
        "checkpoint": checkpoint_seconds_per_million,
    }
    rented = {"price": gpu_price, "gpus_per_node": gpus_per_node}
    machines = _machines(
        _known(own, _measured(measured, model)), bandwidth, failures, rented | _further(measured, model), further
    )
    trained = _trained(wanted, config) if parameters is None else parameters
    every = wanted.training.checkpointed(promise.steps)
    rows = [estimate(promise, machines, trained, count, every) for count in workers]
    if as_json:
        print(json.dumps(_as_json(promise, machines, trained, rows)))
    else:
        _show(promise, machines, trained, rows)


def _machines(
    known: dict[str, float],
    bandwidth: float,
    failures: float,
    measured: dict[str, Any],
    own: dict[str, float | None],
) -> Machines:
    """The machines, from figures in the units of the command line; `own` ones stand before `measured` ones."""
    for name, value in {"bandwidth": bandwidth, "latency": known["latency"], "failures": failures}.items():
        if value < 0:  # said here, in the unit in which it was given
            raise UserError(f"{name} must not be negative, got {value:g}.")
    return Machines(
        throughput=known["throughput"],
        bandwidth=bandwidth * 1e9,
        latency=known["latency"] * 1e-6,
        noise=known["noise_seconds_per_million"],
        bookkeeping=known["bookkeeping_seconds_per_million"],
        failures=failures / 1000,
        restart=_RESTART,
        **measured | {name: value for name, value in own.items() if value is not None},
    )


def _known(own: dict[str, float | None], measured: dict[str, float | None]) -> dict[str, float]:
    """Figures of the command line, or else of a measured file."""
    figures = {name: measured.get(name) if value is None else value for name, value in own.items()}
    if missing := [f"--{name.replace('_', '-')}" for name, value in figures.items() if value is None]:
        raise UserError(f"no value is known for {', '.join(missing)}: give one, or a measured file with --measured.")
    return {name: value for name, value in figures.items() if value is not None}


def _config(path: Path | None, assignments: list[str], given: dict[str, float | None], further: dict[str, str]) -> Config:
    """The configuration that a file and the command line describe together; `given` is needed where there is no file."""
    sections = {"group_size": "bounding"}
    flags: dict[str, float | str] = {name: value for name, value in given.items() if value is not None}
    flags |= further
    if path is not None:
        return load_config(path, assignments + [f"{sections.get(key, 'privacy')}.{key}={flags[key]}" for key in flags])
    if assignments:
        raise UserError("--set overrides keys of a configuration: give one with --config.")
    if missing := [f"--{name.replace('_', '-')}" for name in given if name not in flags]:
        raise UserError(f"the plan is incomplete without {', '.join(missing)}: give them, or a configuration with --config.")
    tree: dict[str, Any] = {}
    for name, value in flags.items():
        tree.setdefault(sections.get(name, "privacy"), {})[name] = value
    return parse_config(tree, "command line")


def _count(config: Config, path: Path | None, records: int | None) -> int:
    """N: as given, or what the configuration's store holds."""
    from dpfed.data.sampling import protected_count
    from dpfed.data.store.records import RecordStore

    if records is not None:
        return records
    if path is not None and config.data.source in ("shapes", "procedural"):
        return config.data.records
    if config.data.source != "store" or config.data.path is None:
        raise UserError("the training records are in no store yet: give their number (of units, where protected) as --records.")
    try:
        return protected_count(RecordStore.open(config.data.path), config.privacy)
    except UserError as error:
        raise UserError(f"{error} Without the store, give the number of training records as --records.") from error


def _trained(config: Config, path: Path | None) -> int:
    """P: of the configuration's model, built with random weights."""
    from dpfed.models.building import build_model
    from dpfed.models.centres import add_centres
    from dpfed.models.parameters import TrainableVector
    from dpfed.runs.resolution import settle_model

    if path is None:
        raise UserError("--parameters is missing: give the number of trained parameters, or a --config that has a model.")
    config = settle_model(config)
    model = build_model(config.model, config.objective, config.adaptation, config.data.size, load_weights=False)
    add_centres(model, config)
    return TrainableVector(model).numel


def _measured(path: Path | None, model: str | None) -> dict[str, float | None]:
    """What a result file of ``benchmarks.throughput`` says of one model; nothing without a file."""
    if path is None:
        if model is not None:
            raise UserError(f"--model {model!r} is a model of a measured file: give one with --measured.")
        return {}
    try:
        figures = json.loads(read_text(path))["figures"]
        models, coordinator = figures["gradients"], figures["coordinator"]
        latency = figures["transport"]["latency_microseconds"]
        if model is None or model not in models:
            found = f"has no model {model!r}" if model else "holds several models"
            raise UserError(f"{path} {found}: name one with --model; {nearest(model or '', models)}")
        own = {name: coordinator[name] for name in ("noise_seconds_per_million", "bookkeeping_seconds_per_million")}
        return {"throughput": models[model]["records_per_second"], "latency": latency, **own}
    except OSError as error:
        raise UserError(f"cannot read the measured file {path}: {error.strerror or error}.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} is not a result of `python -m benchmarks.throughput`: make one, or give the figures."
        ) from error


def _further(path: Path | None, model: str | None) -> dict[str, Any]:
    """What a file says of a worker and of checkpoints, in the names and units of `Machines`."""
    if path is None:
        return {}
    figures = json.loads(read_text(path))["figures"]  # `_measured` has read it
    worker, coordinator, one = figures.get("worker", {}), figures["coordinator"], figures["gradients"][model]
    found = {
        "keys": worker.get("gaps_seconds_per_million_keys"),
        "drawn": worker.get("seconds_per_million_drawn"),
        "decoding": _inverse("decoding", one.get("decoded_per_second")),
        "views": _inverse("views", one.get("views_per_second")),
        "ahead": one.get("reads_ahead"),
        "each_step": coordinator.get("seconds_per_step"),
        "checkpoint": coordinator.get("checkpoint_seconds_per_million"),
    }
    return {name: value for name, value in found.items() if value is not None}


def _inverse(name: str, per_second: float | None) -> float | None:
    """Seconds of one."""
    if per_second is not None and not 0 < per_second < math.inf:
        raise UserError(f"impossible estimate: {name} must be positive and finite, got {per_second}.")
    return None if per_second is None else 1 / per_second


def _as_json(plan: PrivacyPlan, machines: Machines, parameters: int, rows: list[Estimate]) -> dict[str, Any]:
    return {
        "plan": {**plan.as_dict(), "groups": plan.groups, "epsilon": plan.epsilon() if plan.promises else None},
        "machines": dataclasses.asdict(machines),
        "parameters": parameters,
        "workers": [row.figures() for row in rows],
    }


def _show(plan: PrivacyPlan, machines: Machines, parameters: int, rows: list[Estimate]) -> None:
    from rich.console import Console
    from rich.table import Table

    promise, records, size, epsilon = plan.promise, plan.sampling.records, plan.bounding.group_size, plan.epsilon()
    said = f"N = {records:,}, B = {plan.sampling.batch:,}, T = {plan.steps:,}, S = {size:,}, K = {plan.groups:,}"
    if plan.promises:
        said += f"\nsigma {plan.noise.multiplier:.4f}: epsilon {round_up(epsilon)} at delta {round_up(promise.delta)}"
        said += f" ({promise.accountant.upper()}), with any number of workers"
        words = meaning(epsilon, promise.delta, promise.protected)
        said += f"\n{' '.join([large_delta(promise.delta, records, promise.protected), words]).strip()}"
    else:
        said += f"\nno promise (bounding.method = '{plan.bounding.method_name}')"
    said += f"\n{parameters:,} trained parameters; {machines.throughput:,.6g} records/s per GPU"
    if unknown := [words for words, value in _counted(plan, machines).items() if not value]:
        said += f"\nnot counted, because no value is known: {', '.join(unknown)}"
    table = Table(box=None, pad_edge=False)
    heads = (
        "workers",
        "GPUs",
        "step",
        "data",
        "gradients",
        "network",
        "coord.",
        "sent/step",
        "sent/run",
        "effic.",
        "hours",
        "dollars",
    )
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    for row in rows:
        parts = (_seconds(part) for part in (row.step, row.data, row.gradients, row.transport, row.coordinator))
        sent = (_bytes(row.bytes_per_step), _bytes(row.bytes_per_run))
        costs = (f"{row.efficiency:.0%}", f"{row.hours:,.1f}", f"{row.dollars:,.0f}")
        table.add_row(str(row.workers), str(row.gpus), *parts, *sent, *costs)
    console = Console()
    console.width = max(_WIDTH, console.width)
    console.print(said + "\n", highlight=False)
    console.print(table)
    most = max(rows, key=lambda row: row.workers)
    if most.checkpoints or most.restarts:
        said = f"Of the {most.hours:,.1f} hours with {most.workers} workers, checkpoints take "
        said += f"{plan.steps * most.checkpoints / 3600:,.2f}, and deaths of workers {most.restarts:,.2f}."
        console.print("\n" + said, highlight=False)
    console.print("\n" + bottleneck(most), highlight=False)


def _counted(plan: PrivacyPlan, machines: Machines) -> dict[str, float]:
    """What else a step has, in words, and what is known of it."""
    return {
        "draws": machines.keys if isinstance(plan.mechanism.sampler, PoissonSampler) else 0.0,
        "reading images": machines.decoding,
        "views": machines.views,
        "checkpoints": machines.checkpoint,
    }


def _seconds(value: float) -> str:
    return f"{value:,.1f} s" if value >= 10 else f"{value:.2f} s" if value >= 0.1 else f"{value * 1e3:.1f} ms"


def _bytes(count: int) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count / 1e3:,.0f} kB"
