"""Makes the entries that a run adds to a budget's ledger: a reservation of its plan, or a settlement. No file is written."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpfed.budgets.ledger import Account, BudgetLedger, Entry, Event, What
from dpfed.budgets.refusals import does_not_fit, question, refuse_uncountable, related, shown
from dpfed.budgets.registry import Found
from dpfed.data.record_set import RecordSet
from dpfed.errors import UserError
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.renyi_filter import added


@dataclass(frozen=True)
class Reservation:
    """A run whose plan is to be reserved or settled.

    Attributes:
        id: Id of the run.
        what: Kind of the account: ``run``, ``site`` or ``sweep``.
        name: Name of the run, for readers.
        place: Folder of the run, absolute.
        plan: Plan of the run.
        charged: Number of steps charged in the run's ledger.
        reserved_with: Ids of the budgets with which the run reserved its plan, as the run recorded them.
        is_at: Function that returns whether a given folder holds this same run.
    """

    id: str
    what: What
    name: str
    place: Path
    plan: PrivacyPlan
    charged: int = 0
    reserved_with: tuple[str, ...] = ()
    is_at: Callable[[Path], bool] = lambda place: False


def reserved(found: Found, store: RecordSet, reservations: Sequence[Reservation]) -> BudgetLedger:
    """Returns a budget's ledger, extended by the reservations that it lacks.

    Args:
        found: Budget that applies to the records.
        store: Records of the runs.
        reservations: Runs to reserve.

    Raises:
        UserError: If a reservation is refused, see `dpfed.budgets.spending.reserve`.
    """
    budget, entries = found.budget, []
    for reservation in reservations:
        refuse_uncountable(reservation.plan, found, store)
        known = budget.accounts.get(reservation.id)
        if known is None and reservation.charged and budget.head.id in reservation.reserved_with:
            raise UserError(
                f"the run in {reservation.place} reserved its plan in the budget {budget.head.id} and was charged "
                f"{reservation.charged} steps, but the budget's ledger has no entry of this run: the ledger has lost lines. "
                "Restore it from a backup. [budget-entry]"
            )
        if reservation.id not in budget.replaced and not (known and _holds_already(known, reservation)):
            number = known.number + 1 if known else 0
            entries.append(
                _entry("reserve", budget, reservation, reservation.plan.steps, number, _expected(budget, reservation))
            )
    after = budget.with_entries(entries)
    if after.spent != budget.spent and not after.filter.admits(after.spent):
        new = [reservation for reservation in reservations if any(entry.of == reservation.id for entry in entries)]
        others = (account.cost for id, account in after.accounts.items() if id not in {reservation.id for reservation in new})
        where = str(store.path) if found.by_name is None else f"{budget.head.store} ({related(found, store)})"
        if found.by_name is None and budget.head.store != where:  # a copy, or rows of which a fit keeps no folder
            where = f"{where} (set for {budget.head.store})"
        spent = added(others, len(budget.head.orders))
        said = does_not_fit(after.filter, spent, [reservation.plan for reservation in new], shown(budget), where)
        raise UserError(f"{said}{question(found, store)} [budget-no-room]")
    return after


def _holds_already(known: Account, reservation: Reservation) -> bool:
    """Returns whether an account already holds what a reservation asks for, so that the ledger needs no further entry.

    Raises:
        UserError: If the run is a copy of the run that reserved, or its plan has changed.
    """
    if known.what == "sweep" and known.plan.fingerprint != reservation.plan.fingerprint:  # the run has not begun
        return False
    _refuse_another_plan(known, reservation)
    if known.settled:
        if reservation.charged < known.steps:
            raise UserError(
                f"{reservation.place} is an older copy of a run that has settled {known.steps} steps with the budget, but the "
                f"copy's ledger holds {reservation.charged}: resume the run itself, or start a new one. [budget-older-copy]"
            )
        return reservation.charged >= reservation.plan.steps
    _refuse_copy(known, reservation)
    return known.place == str(reservation.place)  # otherwise the run was moved, and a new entry records its folder


def _refuse_another_plan(known: Account, reservation: Reservation) -> None:
    if known.what != "sweep" and known.plan.fingerprint != reservation.plan.fingerprint:
        raise UserError(
            f"{reservation.place} has reserved another plan than it has now ({known.plan.steps:,} steps with noise multiplier "
            f"{known.plan.noise.multiplier:g}, now {reservation.plan.steps:,} with {reservation.plan.noise.multiplier:g}): "
            "restore config.toml and the ledger, or start a new run. [budget-other-plan]"
        )


def _refuse_copy(known: Account, reservation: Reservation) -> None:
    if known.place != str(reservation.place) and _is_elsewhere(known, reservation):
        raise UserError(
            f"{reservation.place} is a copy of {known.place}, which still exists, and only one of them can spend the "
            "reservation: resume the original, or start a new run. [budget-run-copied]"
        )


def _is_elsewhere(known: Account, reservation: Reservation) -> bool:
    """Returns whether the run also exists in the account's folder, which is another folder than the reservation's."""
    place = Path(known.place)
    try:
        same = place.exists() and reservation.place.exists() and place.samefile(reservation.place)
        return not same and reservation.is_at(place)
    except PermissionError:
        return True  # the folder cannot be examined


def _expected(budget: BudgetLedger, reservation: Reservation) -> str | None:
    """Returns the id of the account that a sweep opened in advance for a run.

    Args:
        budget: Ledger of the budget.
        reservation: The run; the sweep's account names the same folder.

    Returns:
        The id; ``None``: there is no such account, or it is settled.
    """
    sweeps = (
        account
        for account in budget.accounts.values()
        if account.what == "sweep" and reservation.what == "run" and not account.settled
    )
    return next((account.id for account in sweeps if account.place == str(reservation.place)), None)


def settled(budget: BudgetLedger, reservation: Reservation) -> BudgetLedger:
    """Returns a budget's ledger with an entry that settles a run after its last step, unless the ledger needs no such entry.

    Args:
        budget: Ledger of the budget.
        reservation: Run to settle.

    Raises:
        UserError: If the settlement is refused, see `dpfed.budgets.spending.settle`.
    """
    known = budget.accounts.get(reservation.id)
    if known is None and not reservation.charged:
        return budget
    if known is not None and reservation.charged < known.least:
        raise UserError(
            f"the ledger of {reservation.place} holds {reservation.charged} steps, but the run has settled {known.least} "
            "before: the ledger has lost lines. Restore it from a backup. [budget-steps-lost]"
        )
    if known is not None:
        _refuse_another_plan(known, reservation)
    if known is not None and known.settled and known.steps == reservation.charged:
        return budget
    if known is not None and not known.settled:
        _refuse_copy(known, reservation)  # the ledger of a copy may hold fewer steps than the run's
    number = known.number + 1 if known else 0
    return budget.with_entries([_entry("settle", budget, reservation, reservation.charged, number)])


def _entry(
    event: Event, budget: BudgetLedger, reservation: Reservation, steps: int, number: int, instead: str | None = None
) -> Entry:
    cost = budget.filter.curve(reservation.plan.mechanism, steps)
    return Entry.new(
        event,
        number=number,
        of=reservation.id,
        what=reservation.what,
        name=reservation.name,
        place=str(reservation.place),
        plan=reservation.plan.as_dict(),
        steps=steps,
        cost=[value if math.isfinite(value) else None for value in cost],
        instead=instead,
    )
