"""`dpfed privacy calibrate` and `account`: the cost of a promise, without any records."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

app = typer.Typer(help="Compute the noise for an epsilon, or the epsilon of a noise.", no_args_is_help=True)

Records = Annotated[int, typer.Option(help="N: training records, or units if the run protects units.")]
Batch = Annotated[int, typer.Option(help="B: expected records or units in a step.")]
Steps = Annotated[int, typer.Option(help="T: steps.")]
Delta = Annotated[float | None, typer.Option(help="Default 1/(N ln N).")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON only, for scripts.")]


@app.command()
def calibrate(
    records: Records,
    batch: Batch,
    steps: Steps,
    epsilon: Annotated[float, typer.Option(help="The epsilon to keep.")],
    delta: Delta = None,
    as_json: Json = False,
) -> None:
    """Compute the smallest noise multiplier that keeps (epsilon, delta), by RDP and by PLD."""
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
    """Compute the epsilon that a noise multiplier gives, by RDP and by PLD."""
    fixed = {"noise_multiplier": noise_multiplier}
    _show({"records": records, "batch": batch, "steps": steps, "delta": delta}, fixed, as_json)


def _show(numbers: dict[str, Any], fixed: dict[str, float], as_json: bool) -> None:
    from dpfed.console.terminal import say

    say("accounting by RDP and by PLD", as_json)
    from rich.markup import escape
    from rich.table import Table

    from dpfed.console.terminal import console
    from dpfed.privacy.promise import meaning, round_up

    figures, delta, refusals = _figures(numbers, fixed)
    if as_json:
        print(json.dumps({**figures, "delta": delta, **({"refused": refusals} if refusals else {})}))
        return
    table = Table(box=None, pad_edge=False, title_justify="left", title_style="")
    table.title = f"N = {numbers['records']:,}, B = {numbers['batch']:,}, T = {numbers['steps']:,}, delta = {round_up(delta)}"
    for column in ("accountant", "noise multiplier", "epsilon"):
        table.add_column(column, justify="left" if column == "accountant" else "right")
    for name, figure in figures.items():
        table.add_row(name.upper(), f"{figure['noise_multiplier']:.6g}", round_up(figure["epsilon"]))
    console.print(table)
    told = figures["pld" if "pld" in figures else "rdp"]
    console.print(meaning(told["epsilon"], delta), highlight=False, soft_wrap=True)
    for name, reason in refusals.items():
        console.print(escape(f"Not by {name.upper()}: {reason}"), highlight=False, soft_wrap=True)


def _figures(numbers: dict[str, Any], fixed: dict[str, Any]) -> tuple[dict[str, dict[str, float]], float, dict[str, str]]:
    """What each accountant says, delta, and why one says nothing: RDP always can where there is an answer."""
    from dpfed.privacy.accounting import Accountant, Unresolved
    from dpfed.privacy.plan import PrivacyPlan

    accountants: tuple[Accountant, ...] = ("rdp", "pld")
    figures: dict[str, dict[str, float]] = {}
    refusals: dict[str, str] = {}
    delta = 0.0
    for name in accountants:
        try:
            plan = PrivacyPlan.of_numbers(**numbers, **fixed, accountant=name)
            delta = plan.delta
            figures[name] = {"noise_multiplier": plan.noise_multiplier, "epsilon": plan.epsilon()}
        except Unresolved as error:
            refusals[name] = str(error)
    return figures, delta, refusals
