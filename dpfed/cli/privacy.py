"""`dpfed privacy calibrate` and `account`: the cost of a promise, without any records."""

from __future__ import annotations

import json
from typing import Annotated

import typer

app = typer.Typer(help="What a promise costs: noise for an epsilon, or epsilon for a noise.", no_args_is_help=True)

Records = Annotated[int, typer.Option(help="N: training records, or units where they are protected.")]
Batch = Annotated[int, typer.Option(help="B: expected records or units in a step.")]
Steps = Annotated[int, typer.Option(help="T: steps.")]
Delta = Annotated[float | None, typer.Option(help="Default 1/(N ln N).")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON only, for scripts.")]


@app.command()
def calibrate(
    records: Records,
    batch: Batch,
    steps: Steps,
    epsilon: Annotated[float, typer.Option(help="The promise.")],
    delta: Delta = None,
    as_json: Json = False,
) -> None:
    """The least noise multiplier that keeps (epsilon, delta), by RDP and by PLD."""
    _show({"records": records, "batch": batch, "steps": steps, "delta": delta}, {"epsilon": epsilon}, as_json)


@app.command()
def account(
    records: Records,
    batch: Batch,
    steps: Steps,
    noise_multiplier: Annotated[float, typer.Option(help="sigma: noise over sensitivity.")],
    delta: Delta = None,
    as_json: Json = False,
) -> None:
    """The epsilon that a noise multiplier gives, by RDP and by PLD."""
    fixed = {"noise_multiplier": noise_multiplier}
    _show({"records": records, "batch": batch, "steps": steps, "delta": delta}, fixed, as_json)


def _show(plan: dict, fixed: dict, as_json: bool) -> None:
    from rich.table import Table

    from dpfed.cli.terminal import console
    from dpfed.config import BoundingConfig, Config, PrivacyConfig
    from dpfed.plan import PrivacyPlan
    from dpfed.report.promise import large_delta, meaning, round_up

    privacy = {key: value for key, value in plan.items() if key != "records"} | fixed
    groups = BoundingConfig(group_size=1)
    plans = {
        name: PrivacyPlan.from_config(
            plan["records"], Config(privacy=PrivacyConfig(accountant=name, **privacy), bounding=groups)
        )
        for name in ("rdp", "pld")
    }
    figures = {name: {"noise_multiplier": p.noise_multiplier, "epsilon": p.epsilon()} for name, p in plans.items()}
    delta = plans["pld"].delta
    if as_json:
        print(json.dumps({**figures, "delta": delta}))
        return
    table = Table(box=None, pad_edge=False, title_justify="left", title_style="")
    table.title = f"N = {plan['records']:,}, B = {plan['batch']:,}, T = {plan['steps']:,}, delta = {round_up(delta)}"
    for column in ("accountant", "noise multiplier", "epsilon"):
        table.add_column(column, justify="left" if column == "accountant" else "right")
    for name, figure in figures.items():
        table.add_row(name.upper(), f"{figure['noise_multiplier']:.6g}", round_up(figure["epsilon"]))
    console.print(table)
    if warning := large_delta(delta, plan["records"]):
        console.print(warning, style="bold red", highlight=False, soft_wrap=True)
    console.print(meaning(figures["pld"]["epsilon"], delta), highlight=False, soft_wrap=True)
