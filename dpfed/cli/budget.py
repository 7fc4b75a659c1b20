"""`dpfed budget`: sets the lifetime privacy budget of a record set, and shows how much of it is spent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from dpfed.budgets.ledger import BudgetLedger, Entry
    from dpfed.budgets.registry import Found
    from dpfed.data.record_set import RecordSet

app = typer.Typer(no_args_is_help=True)

Store = Annotated[
    Path, typer.Argument(help="A record store, or a configuration (TOML) that names records.", show_default=False)
]
StoreOrRun = Annotated[
    Path,
    typer.Argument(
        help="A record store, a configuration (TOML) that names records, a run, or a folder of PrivateCCA fits.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON only, for scripts.")]


@app.command("set")
def set_(
    store: Store,
    epsilon: Annotated[float, typer.Option(help="Epsilon of all releases together.", show_default=False)],
    delta: Annotated[
        float,
        typer.Option(help="Delta of all releases together, at most 1/N, with N training records or units.", show_default=False),
    ],
    unit: Annotated[
        Literal["record", "user"] | None,
        typer.Option(
            help="What is protected: each record, or all records of a user. Default: as in the existing budget; in a new one, "
            "record.",
            show_default=False,
        ),
    ] = None,
    distinct: Annotated[
        str | None,
        typer.Option(
            metavar="WHY",
            help="Reason why these records are not those of an existing budget, although their record ids are identical.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Set or change the lifetime budget of a store's records, or of the data set that a configuration names.

    From then on, every run, sweep and federation reserves the cost of its whole plan before its first step. A plan that does
    not fit is refused.
    """
    from dpfed.console.terminal import say

    say(f"opening the records of {store}")
    from dpfed.budgets.spending import set_budget

    opened = _opened(store)
    budget = set_budget(opened, epsilon, delta, unit, distinct)
    _print(opened, budget)


@app.command()
def show(store: StoreOrRun, as_json: Json = False) -> None:
    """Show a store's lifetime budget: what is spent, and what is reserved."""
    from dpfed.console.terminal import say

    say(f"opening the records of {store}", as_json)
    from dpfed.budgets.refusals import question, related

    opened, matches = _found(store)
    if as_json:
        facts = [_facts(match.budget) | {"found_by_name": match.by_name, "equal_contents": match.equal} for match in matches]
        print(json.dumps(facts))
        return
    for match in matches:
        if match.by_name is not None and opened is not None:
            said = f"the budget of {match.budget.head.store} also holds for these records: {related(match, opened)}."
            _line("note", f"{said}{question(match, opened)}")
        _print(opened, match.budget)


@app.command()
def history(store: StoreOrRun, as_json: Json = False) -> None:
    """Show every entry of the budget's ledger, in order."""
    from dpfed.console.terminal import say

    say(f"opening the records of {store}", as_json)
    _, matches = _found(store)
    for match in matches:
        for entry in match.budget.entries:
            if as_json:
                print(entry.model_dump_json(exclude_none=True))
            else:
                _line(entry.day, _told(entry, match.budget))


@app.command()
def settle(
    run: Annotated[Path, typer.Argument(help="An abandoned run, a sweep's folder, or a site's folder.", show_default=False)],
) -> None:
    """Give back the part of a reservation that a run will not spend. Steps charged in the run's ledger stay spent."""
    from dpfed.console.terminal import say

    say(f"reading the ledger of {run}")
    from dpfed.budgets.refusals import percent, shown
    from dpfed.errors import UserError

    if any((folder / "site.toml").is_file() for folder in (run, run / "site")):
        from dpfed.federation.budgeting import settle_site
        from dpfed.federation.site.folder import SiteFolder

        budgets = settle_site(SiteFolder.open(run))
    else:
        from dpfed.runs.budgeting import settle_run

        budgets = settle_run(run)
    if not budgets:
        raise UserError(
            f"neither {run} nor its records have a budget, so nothing is reserved that could be given back. [budget-run-none]"
        )
    for budget in {budget.head.id: budget for budget in budgets}.values():
        _line("budget", f"{shown(budget)}: {percent(budget.filter.part(budget.spent))} is taken")


def _opened(store: Path) -> RecordSet:
    """Opens a store, or the records that a configuration names."""
    from dpfed.data.store.records import RecordStore

    if store.suffix != ".toml" or store.is_dir():
        return RecordStore.open(store)
    from dpfed.building.own import own_records
    from dpfed.config.reading import load_config
    from dpfed.runs.records import records_of

    config = load_config(store)
    return own_records(config) if config.data.is_own else records_of(config)


def _found(store: Path) -> tuple[RecordSet | None, list[Found]]:
    """Opens records and returns them with their budgets; the records are ``None`` for the folder of a run or of fits."""
    from dpfed.artifacts.directory import RunDirectory
    from dpfed.budgets.registry import BUDGET_LEDGER, Found, budgets_of, known_by
    from dpfed.budgets.replicas import read
    from dpfed.errors import UserError
    from dpfed.paths import is_store
    from dpfed.runs.budgeting import reservations

    if store.is_dir() and not is_store(store):  # folder of a run, or of fits to arrays: the records are elsewhere
        known = [budget for _, budget, _ in reservations(RunDirectory(store)) if budget is not None]
        ledger = None if known else read(store / BUDGET_LEDGER)
        known += [] if ledger is None else [known_by(ledger.head.id, store) or ledger]
        if known:
            return None, [Found(budget) for budget in known]
        if RunDirectory(store).ledger.is_file():
            raise UserError(
                f"{store} is a run that reserved nothing in a lifetime budget: give its record store, or a configuration "
                "(TOML) that names its records, in place of the run. [option-run-no-budget]"
            )
    opened = _opened(store)
    matches = budgets_of(opened)
    if not matches:
        raise UserError(f"{store} has no budget: `dpfed budget set {store} --epsilon E --delta D` sets one. [option-no-budget]")
    return opened, matches


def _print(store: RecordSet | None, budget: BudgetLedger) -> None:
    from dpfed.budgets.refusals import percent

    facts = _facts(budget)
    places = "in the registry" if store is None or store.budget_folder is None else "in the store and in the registry"
    sides = "record" if budget.head.unit == "record" else f"{(store and store.unit_name) or 'user'} with all records"
    _line("budget", f"epsilon {facts['epsilon']!r}, delta {facts['delta']!r}, for each {sides}, over all runs")
    _line("ledger", f"{budget.head.id}, {places}; runs: {len(budget.accounts)}, entries: {len(budget.entries)}")
    _line(
        "taken",
        f"{percent(facts['taken'])}, added up by a privacy filter, so a run's plan may depend on the results of earlier runs",
    )
    for name, what in (("spent", True), ("reserved", False)):
        accounts = [account for account in budget.accounts.values() if account.settled == what]
        steps = sum(account.steps for account in accounts)
        if accounts:
            _line(name, f"{percent(facts[name])}, {len(accounts)} {'runs' if len(accounts) > 1 else 'run'}, {steps:,} steps")
    if budget.uncovered:
        releases = "releases" if len(budget.uncovered) > 1 else "release"
        said = f"{len(budget.uncovered)} {releases} that no epsilon covers: see `dpfed budget history`"
        _line("not covered", said)


def _facts(budget: BudgetLedger) -> dict[str, Any]:
    """Returns what ``--json`` prints of a budget."""
    from dpfed.privacy.renyi_filter import added

    def part(settled: bool) -> float:
        costs = [account.cost for account in budget.accounts.values() if account.settled == settled]
        return budget.filter.part(added(costs, len(budget.head.orders)))

    return {
        "id": budget.head.id,
        "unit": budget.head.unit,
        "epsilon": budget.filter.epsilon,
        "delta": budget.filter.delta,
        "taken": budget.filter.part(budget.spent),
        "spent": part(True),
        "reserved": part(False),
        "not_covered": len(budget.uncovered),
        "orders": budget.head.orders,
        "limits": list(budget.filter.limits),
        "cost": [value if value < float("inf") else None for value in budget.spent],
    }


def _told(entry: Entry, budget: BudgetLedger) -> str:
    """Returns a line that describes an entry of the ledger."""
    if entry.event == "set":
        return f"set: epsilon {entry.epsilon!r}, delta {entry.delta!r}"
    if entry.event == "uncovered":
        return f"not covered: {entry.why}"
    from dpfed.budgets.refusals import told

    return f"{told(entry, budget)}: {entry.what} {entry.name} at {entry.place} ({str(entry.of)[:16]})"


def _line(name: str, value: str) -> None:
    from dpfed.cli.parties import line
    from dpfed.data.reasons import visible

    line(name, visible(value), 11)
