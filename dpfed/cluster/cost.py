"""`dpfed cluster cost`: time, bytes and dollars of a run on any number of GPUs, before they are rented."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from dpfed.building.plan import plan_of
from dpfed.cluster.estimate import Estimate, Machines, bottleneck, estimate
from dpfed.config import Config, load_config
from dpfed.console.terminal import say
from dpfed.errors import UserError, nearest
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.promise import large_delta, meaning, round_up
from dpfed.privacy.samplers import PoissonSampler

_WIDTH = 116  # columns of the table: a pipe or a narrow terminal wraps its lines rather than cutting figures
_NEEDED = [field.name for field in dataclasses.fields(Machines) if field.default is dataclasses.MISSING]

app = typer.Typer(add_completion=False, rich_markup_mode="markdown", pretty_exceptions_enable=False)


@app.command()
def plan(
    config: Annotated[
        Path, typer.Argument(help="Configuration: a TOML file, or a shipped name, such as imagenet.", show_default=False)
    ],
    records: Annotated[int, typer.Option(help="N: training records (units, if units are protected).", show_default=False)],
    workers: Annotated[list[int], typer.Option(help="W: workers, one GPU each; may be repeated.", show_default=False)],
    assignments: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override one key.")] = None,
    assumed: Annotated[
        list[str] | None,
        typer.Option("--assume", metavar="FIGURE=VALUE", help="A figure of the machines (listed in cluster/README.md)."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON only, for scripts.")] = False,
) -> None:
    """Estimate step time, bytes, hours and dollars of a run with many workers; show sigma and epsilon.

    The command needs no records and no cluster.
    """
    say(f"planning for W = {', '.join(map(str, workers))}", True)
    wanted = load_config(config, assignments or [])
    promise = plan_of(records, wanted)
    machines = _machines(assumed or [])
    trained = _trained(wanted)
    rows = [estimate(promise, machines, trained, count, wanted.computes_features) for count in workers]
    if as_json:
        print(json.dumps(_as_json(promise, machines, trained, rows, wanted.computes_features)))
    else:
        _show(promise, machines, trained, rows, wanted.computes_features)


def _machines(assumed: list[str]) -> Machines:
    """Reads the figures of the machines from the values of ``--assume``.

    Raises:
        UserError: If a figure is unknown, not a valid number, given twice, or missing.
    """
    known = [field.name for field in dataclasses.fields(Machines)]
    figures: dict[str, Any] = {}
    for text in assumed:
        name, _, value = text.partition("=")
        if name not in known:
            raise UserError(f"--assume {text}: there is no figure {name!r}; {nearest(name, known)} [cluster-figure-unknown]")
        try:
            number = float(value)
        except ValueError:
            raise UserError(f"--assume {text}: expected a number. [cluster-figure-number]") from None
        if name in figures:
            raise UserError(f"--assume {text}: {name} is given twice; give each figure once. [cluster-figure-twice]")
        if name == "gpus_per_node" and not number.is_integer():
            raise UserError(f"--assume {text}: expected a whole number. [cluster-figure-whole]")
        if name == "ahead" and number not in (0, 1):
            raise UserError(f"--assume {text}: expected 1 (images are read while gradients are computed) or 0. [cluster-ahead]")
        figures[name] = {"gpus_per_node": int, "ahead": bool}.get(name, float)(number)
    if missing := [name for name in _NEEDED if name not in figures]:
        raise UserError(f"no value for {', '.join(missing)}: give --assume {missing[0]}=VALUE. [cluster-figure-missing]")
    return Machines(**figures)


def _trained(config: Config) -> int:
    """Returns P, the number of trained parameters of the configuration's model, built with random weights."""
    from dpfed.building.model import model_of
    from dpfed.models.parameters import TrainableVector
    from dpfed.runs.resolution import resolve_model_defaults

    config = resolve_model_defaults(config)
    return TrainableVector(model_of(config, load_weights=False)).numel


def _as_json(plan: PrivacyPlan, machines: Machines, parameters: int, rows: list[Estimate], cached: bool) -> dict[str, Any]:
    return {
        "plan": {**plan.as_dict(), "groups": plan.groups, "epsilon": plan.epsilon() if plan.has_guarantee else None},
        "machines": dataclasses.asdict(machines),
        "parameters": parameters,
        "features_cached": cached,
        "workers": [row.figures() for row in rows],
    }


def _show(plan: PrivacyPlan, machines: Machines, parameters: int, rows: list[Estimate], cached: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    promise = plan.promise
    records = plan.sampling.records
    epsilon = plan.epsilon()
    said = f"{records:,} {promise.protected}s, {plan.steps:,} steps; a step draws {plan.sampling.batch:,} {promise.protected}s "
    said += f"on average, in {plan.groups:,} group{'s' * (plan.groups != 1)}"
    if plan.has_guarantee:
        said += f"\nsigma {plan.noise.multiplier:.4f}: epsilon {round_up(epsilon)} at delta {round_up(promise.delta)}"
        said += f" ({promise.accountant.upper()}), with any number of workers"
        words = meaning(epsilon, promise.delta, promise.protected)
        said += f"\n{' '.join([large_delta(promise.delta, records, promise.protected), words]).strip()}"
    else:
        said += f"\nno privacy guarantee (bounding.method = '{plan.bounding.method_name}')"
    said += f"\n{parameters:,} trained parameters; {machines.throughput:,.6g} records/s per GPU"
    draws = machines.keys if isinstance(plan.mechanism.sampler, PoissonSampler) else 1.0
    counted = {"draws": draws}
    if cached:
        said += "\nfeatures are computed once and cached: their computation is not counted, and no step reads images"
    else:
        counted |= {"reading images": machines.decoding, "views": machines.views}
    if unknown := [words for words, value in counted.items() if not value]:
        said += f"\nnot counted, because no value is known: {', '.join(unknown)}"
    table = Table(box=None, pad_edge=False)
    for head in "workers GPUs step data gradients network coord. sent/step effic. hours dollars".split():
        table.add_column(head, justify="right", no_wrap=True)
    for row in rows:
        parts = (_seconds(part) for part in (row.step, row.data, row.gradients, row.transport, row.coordinator))
        costs = (f"{row.efficiency:.0%}", f"{row.hours:,.1f}", f"{row.dollars:,.0f}")
        table.add_row(str(row.workers), str(row.gpus), *parts, f"{row.bytes_per_step / 1e6:,.1f} MB", *costs)
    console = Console()
    console.width = max(_WIDTH, console.width)
    console.print(said + "\n", highlight=False)
    console.print(table)
    console.print("\n" + bottleneck(max(rows, key=lambda row: row.workers)), highlight=False)


def _seconds(value: float) -> str:
    return f"{value:,.1f} s" if value >= 10 else f"{value:.2f} s" if value >= 0.1 else f"{value * 1e3:.1f} ms"
