"""Reserves the cost of a run's whole plan in the lifetime budgets of its records, and settles the charged steps at the end.

A budget leaves some releases uncovered, such as figures computed from training labels. If the records have a budget, such a
release is refused unless the operator gives a reason, which the budget's ledger then records.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dpfed.artifacts.directory import RunDirectory
from dpfed.artifacts.provenance import uses_labelled_bank
from dpfed.artifacts.verification import ledger_of
from dpfed.budgets.given import Budget, has_numbers, numbers_of, set_given
from dpfed.budgets.ledger import BudgetLedger, Entry
from dpfed.budgets.refusals import percent, question, related, shown
from dpfed.budgets.registry import BUDGET_LEDGER, budgets_of, known_by, possible, registry
from dpfed.budgets.reservations import Reservation
from dpfed.budgets.spending import note_uncovered, reserve, settle
from dpfed.config import Config
from dpfed.data.record_set import RecordSet
from dpfed.data.store.records import RecordStore
from dpfed.errors import UserError
from dpfed.evaluation.tasks import tasks_of
from dpfed.files.atomic import write_atomically
from dpfed.files.hidden import visible_files
from dpfed.paths import is_store
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.plan import PrivacyPlan
from dpfed.progress import Progress
from dpfed.runs.build import Parts

_ID = 16  # letters of a run's identity, as its card shows them
_NONE = "none was set (`dpfed budget set`, or budget= of dpfed.Trainer), so other runs on the same records are not counted here"
_AT_SITES = "each site has its own: `dpfed budget show STORE` shows it there"


def preflight_budget(folder: str | Path, config: Config, store: RecordSet, plan: PrivacyPlan) -> None:
    """Refuses a run that exceeds its records' budget, before anything is written. `hold` makes the final decision.

    Args:
        folder: Folder of the new run.
        config: Resolved configuration.
        store: Records of the run.
        plan: Plan of the run.

    Raises:
        UserError: See `dpfed.budgets.spending.reserve` and `note_uncovered`; also if ``privacy.not_covered`` gives a needless
            reason.
    """
    why, asked = config.privacy.not_covered, False
    for what in _uncovered(config, store, plan):
        asked |= note_uncovered(store, what, why, dry=True)
    if why is not None and not asked:
        raise UserError(
            "privacy.not_covered has no effect: the records have no lifetime budget, or the budget covers all that this run "
            "releases. Leave it out. [budget-run-covered]"
        )
    if plan.has_guarantee:
        reserve(store, [Reservation("", "run", config.name, Path(folder).resolve(), plan)], dry=True)


def hold(run: RunDirectory, parts: Parts, ledger: Ledger, progress: Progress) -> None:
    """Reserves the cost of a run's whole plan in every lifetime budget of the run's records, before the first step.

    A second call changes nothing. Nothing is reserved for a run without a guarantee, or by the coordinator of a federation,
    whose sites reserve the cost.

    Args:
        run: Directory of the run, locked by the caller.
        parts: Parts of the run.
        ledger: Ledger of the run.
        progress: Progress, which shows how much of the budget is taken.

    Raises:
        UserError: See `dpfed.budgets.spending.reserve` and `note_uncovered`; also if the run has a reservation in a budget
            whose ledger is gone.
    """
    if _of_institutions(run):  # the sites reserve
        return
    config, store = parts.config, parts.store
    for what in _uncovered(config, store, parts.plan):
        note_uncovered(store, f"{_called(run, config)}: {what}", config.privacy.not_covered)
    if not parts.plan.has_guarantee:
        return
    reservation = _reservation(run, config.name, ledger)
    budgets = reserve(store, [reservation], dry=True)
    if gone := set(reservation.reserved_with) - {budget.head.id for budget in budgets}:
        raise UserError(
            f"{run.path} has a reservation in the budget {', '.join(sorted(gone))} of {_noted(run.budget)['store']}, but that "
            f"budget's ledger is neither in {store.path} nor in {registry()}: restore the ledger from a backup, as "
            f"{store.path}/{BUDGET_LEDGER} or as ID.jsonl (the budget's id) in {registry()}. [budget-run-gone]"
        )
    if not budgets:
        return
    # Written before the reservation: if a budget's ledger does not know the reservation of a run with steps, it has lost lines.
    _write(run.budget, store, budgets)
    for match in budgets_of(store):
        if asked := question(match, store):
            progress.note(f"the budget of {match.budget.head.store} holds for these records: {related(match, store)}.{asked}")
    for budget in reserve(store, [reservation]):
        taken = f"{percent(budget.filter.part(budget.spent))} of the budget is taken"
        progress.note(f"the run's cost is reserved in the lifetime budget of {budget.head.store}, {shown(budget)}: {taken}")


def count_finished(run: RunDirectory, store: RecordSet, budget: Budget) -> None:
    """Sets the budget of a finished run's records, and charges the run to it; changes nothing if both were done before.

    A run without a guarantee is not charged.

    Args:
        run: Directory of the finished run.
        store: Records of the run, which are read only if something changes.
        budget: Budget: epsilon, or (epsilon, delta).

    Raises:
        UserError: See `dpfed.budgets.given.set_given` and `dpfed.budgets.spending.settle`.
    """
    epsilon, delta = numbers_of(budget)
    known = [known_by(id, run.path) for id in _ids(_noted(run.budget))]
    if known and all(counted is not None and has_numbers(counted, epsilon, delta) for counted in known):
        return
    ledger = ledger_of(run)
    set_given(store, budget, ledger.plan.promise.unit)
    if not ledger.plan.has_guarantee:
        return
    with run.locked():
        _write(run.budget, store, settled(run, ledger, store))


def may_have_budget(config: Config) -> bool:
    """Returns whether a configuration's records may have a budget, without opening the records."""
    path = config.data.path
    folder = Path(path).expanduser() if path else None
    return possible(folder or registry())


def hold_sweep(store: RecordSet, plans: dict[Path, tuple[str, PrivacyPlan]]) -> None:
    """Reserves the plans of all given runs of a sweep in the records' lifetime budgets, or none if not all of them fit.

    None of the runs may have begun. Each run takes over its reservation when it begins.

    Args:
        store: Records of the runs.
        plans: Name and plan of each run, by the run's folder.

    Raises:
        UserError: See `dpfed.budgets.spending.reserve`.
    """
    # The account of a run that has not begun is named after its folder, so that a resumed sweep finds it again.
    places = {folder.resolve(): named for folder, named in plans.items()}
    reserve(store, [Reservation(f"sweep {place}", "sweep", name, place, plan) for place, (name, plan) in places.items()])


def settle_at_end(run: RunDirectory, parts: Parts, ledger: Ledger, progress: Progress) -> None:
    """Charges a run's steps to the budgets of the run's records after the last step, even if a budget was set after the start.

    Args:
        run: Directory of the run, locked by the caller.
        parts: Parts of the run.
        ledger: Ledger of the run.
        progress: Progress, which shows why a run that began before the budget cannot be charged.

    Raises:
        UserError: See `settled`; for a run that reserved nothing before its first step, the error is shown as a note instead.
    """
    if run.budget.is_file():
        settled(run, ledger, parts.store)
    elif parts.plan.has_guarantee and not _of_institutions(run):
        try:
            if budgets_of(parts.store):
                settled(run, ledger, parts.store)
        except UserError as error:
            progress.note(f"this run is not in the lifetime budget that was set while it trained: {error}")


def reservations(run: RunDirectory) -> list[tuple[str, BudgetLedger | None, list[Entry]]]:
    """Looks a run up in the ledgers of all budgets in which it has a reservation.

    Returns:
        For each budget its id, its ledger (``None`` if it is gone), and the ledger's entries about the run.
    """
    noted, id = _noted(run.budget), run.identity[:_ID]
    budgets = {budget_id: known_by(budget_id, Path(noted["store"])) for budget_id in _ids(noted)}
    return [
        (budget_id, budget, [entry for entry in budget.entries if entry.of == id] if budget else [])
        for budget_id, budget in budgets.items()
    ]


def settle_run(folder: str | Path) -> list[BudgetLedger]:
    """Settles a run that will not be resumed, or releases what a sweep has reserved for runs that have not begun.

    Args:
        folder: Folder of the run, or of the sweep.

    Returns:
        The ledgers of the budgets; empty if the run has none.

    Raises:
        UserError: If the folder is neither a run nor a sweep with open reservations; if another process holds the run; if it
            is the run of a federation's coordinator; if its ledger is damaged or has lost lines; also see `settled`.
    """
    if not (Path(folder) / "config.toml").exists() and (budgets := _settle_sweep(Path(folder).resolve())):
        return budgets
    run = RunDirectory.open(folder)
    if _of_institutions(run):
        raise UserError(f"{folder} is the coordinator's run: each site runs `dpfed budget settle SITE`. [budget-run-federated]")
    with run.locked():
        return settled(run, ledger_of(run))


def settled(run: RunDirectory, ledger: Ledger, store: RecordSet | None = None) -> list[BudgetLedger]:
    """Settles a run: records its charged steps in the ledgers of its budgets, and frees the rest of its reservation.

    Call this only when the run takes no further step.

    Args:
        run: Directory of the run, locked by the caller.
        ledger: Ledger of the run.
        store: Records of the run; ``None``: they are opened at the path that the run noted. If it noted none, they are opened
            at ``data.path``, if a store is there.

    Returns:
        The ledgers of the budgets.

    Raises:
        UserError: See `dpfed.budgets.spending.settle`.
    """
    noted = _noted(run.budget)
    if store is None and noted and is_store(noted["store"]):
        store = RecordStore.open(noted["store"])
    if store is None and not noted:
        config = run.config()
        store = RecordStore.open(config.data.path) if config.data.path and is_store(config.data.path) else None
    return settle(store, _ids(noted), _reservation(run, run.config().name, ledger))


def not_covered(run: RunDirectory, store: RecordSet, what: str, why: str | None) -> bool:
    """Handles the release of an exact figure, which a lifetime budget of the records does not cover.

    The function notes the release, with the operator's reason, in the budget's ledger; without a reason, it refuses the
    release.

    Args:
        run: Directory of the run that releases the figure.
        store: Records of the run.
        what: Description of the release.
        why: The operator's reason.

    Returns:
        Whether a budget holds for the records.

    Raises:
        UserError: If the records have a budget and there is no reason.
    """
    return note_uncovered(store, f"{_called(run, run.config())}: {what}", why)


def stated(run: RunDirectory) -> str:
    """Describes the records' lifetime budget, for the card of a run."""
    if _of_institutions(run):
        return _AT_SITES
    noted = _noted(run.budget)
    if not noted:
        return _NONE
    return "; ".join(entry["budget"] for entry in noted["budgets"]) + ", over all runs (docs/budget.md says who keeps it)"


def _uncovered(config: Config, store: RecordSet, plan: PrivacyPlan) -> Iterator[str]:
    """Yields descriptions of a run's releases about its training records that no epsilon covers."""
    if not plan.private:
        yield "a run without privacy releases exact functions of the records"
    elif not plan.bounding.method.sound:
        yield f"the claim of bounding.method = '{plan.bounding.method_name}' does not hold"
    if config.privacy.seed is not None and plan.private:
        yield "privacy.seed is fixed, so anybody can subtract the noise"
    if not store.public and uses_labelled_bank(tasks_of(store, config.evaluation, config.model)):
        yield "k-NN and linear probe (evaluation.tasks) are exact functions of training labels"


def _of_institutions(run: RunDirectory) -> bool:
    """Returns whether the training records are at the sites of a federation, which make their own reservations."""
    return run.terms.is_file() and not run.simulation.is_file()


def _called(run: RunDirectory, config: Config) -> str:
    return f"{config.name} ({run.identity[:_ID]})"


def _reservation(run: RunDirectory, name: str, ledger: Ledger) -> Reservation:
    def is_at(place: Path) -> bool:
        return bool(run.identity) and RunDirectory(place).identity == run.identity

    place, ids = run.path.resolve(), tuple(_ids(_noted(run.budget)))
    return Reservation(run.identity[:_ID] or str(place), "run", name, place, ledger.plan, ledger.charged, ids, is_at=is_at)


def _settle_sweep(folder: Path) -> list[BudgetLedger]:
    """Releases a sweep's reservations for runs that have not begun."""
    changed = []
    for path in visible_files(registry(), ".jsonl"):
        budget = known_by(path.stem)
        for account in budget.accounts.values() if budget is not None else ():
            place = Path(account.place)
            if account.what == "sweep" and not account.settled and place.parent == folder and RunDirectory.unused(place):
                changed += settle(None, [path.stem], Reservation(account.id, "sweep", account.name, place, account.plan))
    return changed


def _noted(file: Path) -> dict[str, Any]:
    """Reads ``budget.json``; returns an empty mapping if the file does not exist."""
    try:
        noted = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        if noted and not (isinstance(noted["store"], str) and all(isinstance(entry["id"], str) for entry in noted["budgets"])):
            raise ValueError("expected 'store', a text, and 'budgets', a list of objects with an 'id'")
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise UserError(f"{file} is damaged ({error}): restore it. [budget-run-damaged]") from error
    return noted


def _ids(noted: dict[str, Any]) -> Sequence[str]:
    return [entry["id"] for entry in noted.get("budgets", ())]


def _write(file: Path, store: RecordSet, budgets: Sequence[BudgetLedger]) -> None:
    known = _noted(file)
    listed = {entry["id"]: entry for entry in known.get("budgets", ())} | {
        budget.head.id: {"id": budget.head.id, "budget": shown(budget)} for budget in budgets
    }
    text = json.dumps({"store": str(store.budget_folder or store.path), "budgets": list(listed.values())}, indent=1) + "\n"
    if not file.is_file() or file.read_text(encoding="utf-8") != text:
        write_atomically(file, text)
