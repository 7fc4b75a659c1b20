"""`dpfed forecast` and `dpfed rehearse`: predictions of a private run, without reading a private record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpfed.errors import UserError
from dpfed.progress import duration

if TYPE_CHECKING:  # torch takes seconds to import
    from dpfed.config import Config
    from dpfed.planning.forecast import Forecast
    from dpfed.planning.rehearsal import Rehearsal
    from dpfed.privacy.plan import PrivacyPlan

ConfigFile = Annotated[
    Path, typer.Argument(help="A TOML file, or a name such as quickstart (see `dpfed config list`).", show_default=False)
]
Assignments = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override one key, such as privacy.epsilon=4.")
]
Public = Annotated[
    str | None,
    typer.Option(
        "--public",
        metavar="STORE",
        help="Public records in the place of the private ones: a store (`dpfed data import --public`), or procedural or "
        "shapes, which dpfed generates. Default: procedural. Leave it out with bounding.method = 'moments'.",
        show_default=False,
    ),
]
Records = Annotated[
    int | None,
    typer.Option(
        min=2,
        help="N: number of training records (or protected units); default: as in the configuration or its store.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON only, for scripts.")]


def forecast(
    config: ConfigFile, public: Public = None, records: Records = None, assignments: Assignments = None, as_json: Json = False
) -> None:
    """Forecast a private run in about a minute. No private record is read, and no privacy is spent.

    The forecast states noise, gradient, time and memory of the run, and compares other batches, group sizes and numbers of
    steps. For private moments the forecast follows from public numbers alone.
    """
    from dpfed.console.terminal import chosen_config, on_command_line, say, watching

    loaded = chosen_config(config, assignments)
    say(f"{loaded.name}: a forecast; no private record is read", as_json)
    from dpfed.planning.proxy import chosen, declared_plan
    from dpfed.runs.starts import checked_start

    with watching(as_json) as progress:
        checked_start(loaded)
        plan = declared_plan(loaded, records, progress)
        if plan.bounding.method.closed_form:
            if public is not None:
                raise UserError(
                    f"--public {public} has no effect with bounding.method = '{plan.bounding.method_name}': that forecast "
                    "follows from public numbers and measures nothing. Leave it out. [forecast-public-unused]"
                )
            return _forecast_moments(loaded, plan, as_json)
        stand = chosen(public, loaded, plan)
        progress.note("loading PyTorch")
        from dpfed.planning.forecast import forecast as made

        prediction = made(loaded, plan, stand, progress)
    if as_json:
        print(json.dumps(prediction.facts()))
    else:
        given = [("--public", public), ("--records", None if records is None else str(records))]
        assigned = (("--set", assignment) for assignment in assignments or ())
        _show_forecast(prediction, on_command_line(config, [*given, *assigned]))


def rehearse(
    config: ConfigFile,
    public: Public = None,
    records: Records = None,
    public_records: Annotated[int, typer.Option(min=16, help="Largest number of public records to train on.")] = 5_000,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for results and best configuration; default: rehearsals/NAME.", show_default=False),
    ] = None,
    assignments: Assignments = None,
    as_json: Json = False,
) -> None:
    """Try a private run's settings on public records, with the private run's noise, and write the best configuration.

    Sampling rate and noise multiplier are those of the private run, and so is the ratio of noise to signal. Learning rates,
    group sizes and numbers of steps are tried. No private record is read, and no privacy is spent. An interrupted rehearsal
    resumes.
    """
    from dpfed.console.terminal import chosen_config, say, watching

    loaded = chosen_config(config, assignments)
    folder = out or Path("rehearsals") / loaded.name
    say(f"{loaded.name}: a rehearsal on public records, in {folder}; no private record is read", as_json)
    from dpfed.planning.proxy import chosen, declared_plan
    from dpfed.runs.starts import checked_start

    with watching(as_json) as progress:
        checked_start(loaded)
        plan = declared_plan(loaded, records, progress)
        if plan.bounding.method.closed_form:
            raise UserError(
                f"bounding.method = '{plan.bounding.method_name}' has no learning rate, group size or number of steps to try: "
                "run `dpfed forecast`. [rehearse-moments]"
            )
        stand = chosen(public, loaded, plan)
        progress.note("loading PyTorch")
        from dpfed.planning.rehearsal import rehearse as run_rehearsal

        rehearsal = run_rehearsal(loaded, stand, folder, records, public_records, progress)
    if as_json:
        print(json.dumps(rehearsal.facts()))
    else:
        _show_rehearsal(rehearsal)


def _forecast_moments(config: Config, plan: PrivacyPlan, as_json: bool) -> None:
    """Prints the forecast for private moments. The forecast follows from public numbers, so nothing is measured."""
    from rich.table import Table

    from dpfed.runs.moment_forecast import forecast_moments

    prediction = forecast_moments(config, plan)
    if as_json:
        print(json.dumps(prediction.facts()))
        return
    _print(_promised(prediction.name, plan, plan.epsilon()), "bold")
    _print("two noisy releases determine the heads; the towers are frozen")
    table = Table(box=None, pad_edge=False)
    table.add_column("what if")
    for column in ("sigma", "records / sigma", "gain left"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in prediction.rows:
        table.add_row(row.what, f"{row.plan.noise.multiplier:.3g}", f"{row.ratio:,.0f}", f"{row.kept:.0%}")
    _console().print(table)
    _print(prediction.verdict, "bold")


def _promised(name: str, plan: PrivacyPlan, epsilon: float) -> str:
    from dpfed.privacy.promise import round_up

    promise = plan.promise
    said = "" if plan.has_guarantee else "no guarantee; claimed "
    said += f"epsilon {round_up(epsilon)}, delta {round_up(promise.delta)} ({promise.accountant.upper()})"
    return f"{name}: {plan.sampling.records:,} {promise.protected}s, {said}: sigma = {plan.noise.multiplier:.4g}"


def _show_forecast(prediction: Forecast, given: str) -> None:
    from rich.table import Table

    row, plan = prediction.configured, prediction.configured.plan
    _print(_promised(prediction.name, plan, prediction.epsilon), "bold")
    _print(f"trains {prediction.trained}")
    _print(f"measured on {prediction.measured_on}; no private record was read", "dim")
    for remark in prediction.remarks:
        _print(f"note: {remark}", "dim")
    _print("")
    over = f"the norm of the noise is {row.noise_over_gradient:,.1f} times that of the gradient"
    if row.noise_over_gradient == float("inf"):
        over = "the gradient on these records cannot be distinguished from chance"
    _print(f"one step     {over} (B = {plan.sampling.batch:,}, {plan.groups:,} groups)")
    _print(f"whole run    {plan.steps:,} noisy steps are worth about {row.reach:,.1f} steps without noise")
    there = f" of {_size(prediction.memory_there)}" if prediction.memory_there else ""
    memory = "" if prediction.memory is None else f"; at least {_size(prediction.memory)}{there} of memory"
    _print(f"this machine about {duration(row.seconds)}{memory}")
    _print("")
    table = Table(box=None, pad_edge=False)
    table.add_column("what if")
    for column in ("sigma", "noise / gradient", "worth, steps", "time"):
        table.add_column(column, justify="right", no_wrap=True)
    for each in prediction.rows:
        over = "–" if each.noise_over_gradient == float("inf") else f"{each.noise_over_gradient:,.1f}"
        cells = (f"{each.plan.noise.multiplier:.3g}", over, f"{each.reach:,.1f}", duration(each.seconds))
        table.add_row(each.what, *cells)
    _console().print(table)
    _print("")
    _print(_verdict(prediction), "bold")
    _print(f"next: dpfed rehearse {given}", "dim")


def _verdict(prediction: Forecast) -> str:
    """Returns a sentence on whether the plan can work, and on changes that would help."""
    from dpfed.planning.forecast import ENOUGH
    from dpfed.privacy.promise import round_up

    row, plan = prediction.configured, prediction.configured.plan
    what = f"Epsilon {round_up(prediction.epsilon)} {prediction.verdict} with {plan.sampling.records:,} records"
    if prediction.verdict == "can work":
        return f"{what}: the run makes the progress of {row.reach:,.0f} steps without noise; {ENOUGH:.0f} are usually enough."
    best = prediction.rows[-1]
    reached = f"T = {best.plan.steps:,} makes the progress of {best.reach:,.0f}"
    ways = []
    if best.reach >= ENOUGH:
        ways.append(f"B = {best.plan.sampling.batch:,}, S = {best.plan.bounding.group_size}, {reached}")
    if prediction.records_needed is not None:
        ways.append(f"about {_rounded(prediction.records_needed):,} records would be enough")
    otherwise = "; ".join(ways) or "no plan above is enough, so start from public weights, or raise epsilon or the steps"
    return (
        f"{what}: the run makes the progress of {row.reach:,.1f} steps without noise; {ENOUGH:.0f} are usually enough; "
        f"{otherwise}."
    )


def _show_rehearsal(rehearsal: Rehearsal) -> None:
    from rich.table import Table

    from dpfed.report.results import label, shown

    name = rehearsal.best.headline.name
    table = Table(box=None, pad_edge=False)
    table.add_column("tried")
    for column in ("sigma", label(name), "change", "time"):
        table.add_column(column, justify="right", no_wrap=True)
    for candidate in rehearsal.tried:
        figure = candidate.headline
        after = shown(figure.trained, figure.trained_interval)
        sigma, mark = f"{candidate.noise_multiplier:.4g}", " *" if candidate is rehearsal.best else ""
        table.add_row(f"{candidate.name}{mark}", sigma, after, figure.difference.partition(",")[0], duration(candidate.seconds))
    _console().print(table)
    _print(rehearsal.verdict, "bold")
    _print("A difference within its error may be chance.", "dim")
    _print("The noise was simulated on public records and protects nobody, so there is no privacy card.", "dim")
    _print(f"next: dpfed pretrain {rehearsal.file}", "dim")


def _rounded(count: int) -> int:
    """Returns a count rounded up to two significant digits."""
    scale = 10 ** max(0, len(str(count)) - 2)
    return -(-count // scale) * scale


def _size(count: int) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.0f} MB"


def _console():  # noqa: ANN202 rich is imported where it is used
    from dpfed.console.terminal import console

    return console


def _print(line: str, style: str | None = None) -> None:
    from rich.markup import escape

    _console().print(escape(line), style=style, highlight=False, soft_wrap=True)


def register(app: typer.Typer) -> None:
    """Adds both commands to the app."""
    for command in (forecast, rehearse):
        app.command()(command)
