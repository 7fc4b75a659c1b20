"""`dpfed privacy`: noise and epsilon of a plan before any record is read, what a run spent, the check of its privacy card."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, Any

import typer

_POINTS = 10  # number of points of epsilon over the steps
_SHOWN = {"event", "day", "steps"}  # fields of a reservation's entries
_SHOWN_LAST = 12  # largest number of interruptions that are listed, the latest ones

app = typer.Typer(no_args_is_help=True)

Records = Annotated[int, typer.Option(help="N: number of training records, or of units if the run protects units.")]
Batch = Annotated[int, typer.Option(help="B: expected number of records or units in a step.")]
Steps = Annotated[int, typer.Option(help="T: number of steps.")]
Delta = Annotated[float | None, typer.Option(help="Default: 1/(N ln N).")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON only, for scripts.")]


@app.command()
def calibrate(
    records: Records,
    batch: Batch,
    steps: Steps,
    epsilon: Annotated[float, typer.Option(help="The largest epsilon allowed.")],
    delta: Delta = None,
    as_json: Json = False,
) -> None:
    """Compute the smallest noise multiplier that guarantees (epsilon, delta), by RDP and by PLD."""
    _show({"records": records, "batch": batch, "steps": steps, "delta": delta}, {"epsilon": epsilon}, as_json)


@app.command()
def account(
    records: Records,
    batch: Batch,
    steps: Steps,
    noise_multiplier: Annotated[float, typer.Option(help="sigma: the noise's standard deviation divided by the sensitivity.")],
    delta: Delta = None,
    as_json: Json = False,
) -> None:
    """Compute the epsilon that a noise multiplier gives, by RDP and by PLD."""
    fixed = {"noise_multiplier": noise_multiplier}
    _show({"records": records, "batch": batch, "steps": steps, "delta": delta}, fixed, as_json)


@app.command()
def ledger(run: Annotated[Path, typer.Argument(help="A run directory.", show_default=False)], as_json: Json = False) -> None:
    """Show what a run spent and reserved, and where it was interrupted. The command checks every line of the ledger."""
    from dpfed.console.terminal import say

    say(f"reading the ledger of {run}", as_json)
    from dpfed.artifacts.directory import RunDirectory
    from dpfed.artifacts.verification import ledger_of
    from dpfed.budgets.refusals import shown, told
    from dpfed.privacy.promise import round_up
    from dpfed.protocol.statement import terms_at
    from dpfed.runs.budgeting import reservations, stated

    folder = RunDirectory.open(run)
    opened, terms = ledger_of(folder), terms_at(folder.terms)
    plan, promise, charged = opened.plan, opened.plan.promise, opened.charged
    marks = sorted({charged * part // _POINTS for part in range(1, _POINTS + 1)} - {0})
    curve = [(count, plan.epsilon(count)) for count in marks]
    promised = plan.has_guarantee or not plan.private  # the epsilon of a run without privacy is infinite, and is shown
    reserved = reservations(folder)
    artifacts = None if opened.artifacts is None else {"card": opened.artifacts.card, "model": opened.artifacts.model}
    if as_json:
        finite = [[count, epsilon if math.isfinite(epsilon) else None] for count, epsilon in curve]
        spent = {"epsilon": finite} if promised else {"epsilon": [[count, None] for count in marks], "claimed_epsilon": finite}
        facts: dict[str, Any] = {
            "charged": charged,
            "planned": plan.steps,
            "delta": promise.delta,
            "accountant": promise.accountant,
            **spent,
            "resumed": opened.resumed,
            "replays": opened.replays,
            "owners": opened.world_size if terms is None else len(terms.sites),
            "trust": None if terms is None else terms.trust,
            "hash": opened.head,
            "papers": artifacts,
        }
        facts["reservations"] = [
            {"budget": id, "known": known is not None, "entries": [entry.model_dump(include=_SHOWN) for entry in entries]}
            for id, known, entries in reserved
        ]
        print(json.dumps(facts))
        return
    rest = f"delta {round_up(promise.delta)} ({promise.accountant.upper()})"
    _print(f"{charged:,} of {plan.steps:,} planned steps are charged; {rest}")
    if not promised:
        _print(f"no guarantee: dpfed does not vouch for the claim of bounding.method = '{plan.bounding.method_name}'")
    for count, epsilon in curve:
        _print(f"  after {count:>9,} steps   {'' if promised else 'claimed '}epsilon {round_up(epsilon)}")
    _print(_interruptions(opened.resumed))
    _print(f"times that a charged release was computed again, bit for bit, at no further cost: {opened.replays:,}")
    if terms is None:
        _print(f"workers that saw sums without noise: at most {opened.world_size:,}")
    else:
        _print(f"{len(terms.sites):,} sites; trust: {terms.trust_model}")
    if not reserved:
        _print(f"lifetime budget of the records: {stated(folder)}")
    for id, known, entries in reserved:
        _print(f"lifetime budget {id}{': its ledger is gone' if known is None else f', {shown(known)}'}")
        if known is not None:
            for entry in entries:
                _print(f"  {entry.day}  {told(entry, known)}")
    _print(f"hash of all lines: {opened.head}" + ("" if artifacts else "; no privacy card was written yet"))


@app.command()
def verify(
    card: Annotated[Path, typer.Argument(help="A privacy card.", show_default=False)],
    run: Annotated[Path, typer.Argument(help="Run directory to verify the card against.", show_default=False)],
) -> None:
    """Verify a privacy card against the ledger, plan, results and model of its run."""
    from dpfed.console.terminal import say

    say(f"comparing {card} with {run}")
    from dpfed.artifacts.verification import verify
    from dpfed.errors import UserError

    checks = verify(card, run)
    for check in checks:
        _print(f"{'NO ' if check.wrong else 'yes'}  {check.what}" + (f": {check.wrong}" if check.wrong else ""))
    if wrong := sum(bool(check.wrong) for check in checks):
        raise UserError(
            f"{card} does not belong to {run}, or one of them was changed: {wrong} of {len(checks)} checks fail. "
            "[run-card-differs]"
        )


def _interruptions(resumed: list[int]) -> str:
    """Returns a phrase that states how often a run was interrupted, and after how many steps it resumed (the last 12 times)."""
    if not resumed:
        return "never interrupted"
    places = ", ".join(f"{step:,}" for step in resumed[-_SHOWN_LAST:])
    earlier = "... " if len(resumed) > _SHOWN_LAST else ""
    return f"interrupted: {len(resumed):,}; resumed after {earlier}{places} steps"


def _print(line: str) -> None:
    from rich.markup import escape

    from dpfed.console.terminal import console

    console.print(escape(line), highlight=False, soft_wrap=True)


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
    given = f"N = {numbers['records']:,}, B = {numbers['batch']:,}, T = {numbers['steps']:,}, delta = {round_up(delta)}"
    console.print(given, highlight=False, soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    for column in ("accountant", "noise multiplier", "epsilon"):
        table.add_column(column, justify="left" if column == "accountant" else "right")
    for name, figure in figures.items():
        table.add_row(name.upper(), f"{figure['noise_multiplier']:.6g}", round_up(figure["epsilon"]))
    console.print(table)
    told = figures["pld" if "pld" in figures else "rdp"]
    console.print(meaning(told["epsilon"], delta), highlight=False, soft_wrap=True)
    for name, reason in refusals.items():
        console.print(escape(f"No result by {name.upper()}: {reason}"), highlight=False, soft_wrap=True)


def _figures(numbers: dict[str, Any], fixed: dict[str, Any]) -> tuple[dict[str, dict[str, float]], float, dict[str, str]]:
    """Computes the noise and epsilon with each accountant.

    Returns:
        A mapping from accountants to their figures, delta, and a mapping from accountants that find no result to the reason.
        If any accountant finds a result, RDP does.
    """
    from dpfed.privacy.accounting import Accountant, Unresolved
    from dpfed.privacy.plan import PrivacyPlan

    accountants: tuple[Accountant, ...] = ("rdp", "pld")
    figures: dict[str, dict[str, float]] = {}
    refusals: dict[str, str] = {}
    delta = 0.0
    for name in accountants:
        try:
            plan = PrivacyPlan.calibrate(**numbers, **fixed, accountant=name, group_size=1, clip_norm=1.0)
            delta = plan.promise.delta
            figures[name] = {"noise_multiplier": plan.noise.multiplier, "epsilon": plan.epsilon()}
        except Unresolved as error:
            refusals[name] = str(error)
    return figures, delta, refusals
