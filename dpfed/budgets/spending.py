"""Carries out the operations on a budget: sets it, reserves a plan's whole cost, and settles a finished run's charges.

Every change is made under the locks of the ledgers, on the union of all replicas, and is on disk when the function returns: in
the registry, and in the budget's own store if the function was given that store (otherwise that store receives the new entries
when its budget changes next). So two processes cannot both take the rest of a budget. A crash can leave a reservation behind,
but never a charge that is not counted.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Sequence

from dpfed.budgets.ledger import BudgetLedger, Entry, Head, Unit
from dpfed.budgets.refusals import percent, question, refuse_uncountable, related, shown
from dpfed.budgets.registry import Found, budgets_of, held, keep, known_by, opened
from dpfed.budgets.reservations import Reservation, reserved, settled
from dpfed.data.record_set import RecordSet
from dpfed.data.store.counting import no_units
from dpfed.errors import UserError
from dpfed.privacy.plan_checks import require_epsilon
from dpfed.privacy.promise import round_up
from dpfed.privacy.renyi_filter import RenyiFilter


def set_budget(
    store: RecordSet, epsilon: float, delta: float, unit: Unit | None = None, distinct: str | None = None
) -> BudgetLedger:
    """Sets or changes the lifetime budget of a store's records.

    Args:
        store: Store of the records.
        epsilon: Epsilon of all releases together.
        delta: Delta of all releases together, at most 1/N, where N counts training records, or units if `unit` is ``user``.
        unit: Privacy unit, which never changes; ``None``: the unit of the existing budget, or a record for a new one.
        distinct: Reason why these records are not those of a known budget, although they have the same names; ``None``: no
            reason is given.

    Returns:
        The ledger of the budget.

    Raises:
        UserError: If the budget is impossible or lower than the cost already spent and reserved, if another budget holds for
            the records, if `unit` differs from the unit of the existing budget, if `distinct` has no effect, or if a
            ledger is damaged or cannot be written.
    """
    epsilon, delta = float(epsilon), float(delta)
    ledger = next((match.budget for match in budgets_of(store) if match.by_name is None), None)
    _check_numbers(store, epsilon, delta, ledger.head.unit if ledger else unit or "record")  # before a lock is written
    with held(store.budget_folder):
        matches = budgets_of(store)
        ledger = next((match.budget for match in matches if match.by_name is None), None)
        others = {match.budget.head.id: match for match in matches if match.by_name is not None}
        if distinct is not None and (same := next((match for match in others.values() if not match.asks), None)):
            raise UserError(
                "--distinct is wrong here, because these are the records of "
                f"{same.budget.head.store} ({related(same, store)}). Runs on them are charged to the budget of that store: "
                "leave --distinct out. [budget-same-records]"
            )
        if distinct is not None and (ledger is not None or not others):
            had = f"{store.path} has its own budget already" if ledger else "no other budget has records with the same names"
            raise UserError(f"--distinct has no effect: {had}. Leave it out. [budget-distinct]")
        if ledger is None:
            if others and distinct is None:
                raise _same_names(store, list(others.values()))
            ledger = _new(store, epsilon, delta, unit or "record", dict.fromkeys(others, distinct or ""))
        elif unit not in (None, ledger.head.unit):
            raise UserError(
                f"the budget of {store.path} is counted for each {ledger.head.unit}, and that cannot change: leave --unit out. "
                "[budget-unit]"
            )
        number = 1 + max((entry.number for entry in ledger.sets), default=-1)
        budget = ledger.with_entries([Entry.new("set", number=number, epsilon=epsilon, delta=delta)])
        if not budget.filter.admits(budget.spent):
            raise UserError(
                f"({epsilon!r}, {round_up(delta)}) is too small a budget: runs on the records of {store.path} have spent and "
                f"reserved {percent(budget.filter.part(budget.spent))} of it. Set a larger budget, or settle runs that will "
                "not continue; `dpfed budget show` has the numbers. [budget-below-spent]"
            )
        keep(budget, store)
        return budget


def reserve(store: RecordSet, reservations: Sequence[Reservation], dry: bool = False) -> list[BudgetLedger]:
    """Reserves plans in every budget that holds for a store's records: all of the plans, or none.

    When a run continues, it reserves nothing more, because its plan is reserved already. If the run was settled before, it
    reserves again what its settlement returned.

    Args:
        store: Store of the records.
        reservations: Runs to reserve.
        dry: Whether to check only, and write nothing.

    Returns:
        The ledgers of the budgets with the reservations; an empty list if no budget holds for the records.

    Raises:
        UserError: If a plan does not fit (the message has the numbers), if the budget cannot count a plan of this kind, if the
            run is a copy of another one or its plan is not the one that it reserved, or if a ledger has lost lines or cannot be
            written.
    """
    if dry:
        return [reserved(match, store, reservations) for match in budgets_of(store)]
    with opened(store) as matches:
        budgets = [reserved(match, store, reservations) for match in matches]
        for match, budget in zip(matches, budgets, strict=True):
            keep(budget, store if match.by_name is None else None)
    return budgets


def settle(store: RecordSet | None, ids: Sequence[str], reservation: Reservation) -> list[BudgetLedger]:
    """Notes in the budgets that a run takes no further step, and returns the unused part of its reservation to them.

    Args:
        store: Store of the records; ``None``: not available.
        ids: Ids of the budgets in which the run reserved its plan; budgets that hold for the store now are settled as well.
        reservation: Run with the charges of its ledger. Charges that were never reserved are recorded as well.

    Returns:
        The ledgers of the budgets after the settlement.

    Raises:
        UserError: If the run's ledger holds fewer steps than were settled before, if the run was never reserved and a budget
            cannot count its plan, if the run is a copy of another one or its plan is not the one that it reserved, or if
            a ledger cannot be written.
    """
    if not any(known_by(id) for id in ids) and (store is None or not budgets_of(store)):
        return []  # nothing is written into a store without a budget
    with held(None if store is None else store.budget_folder):
        matches = {} if store is None else {match.budget.head.id: match for match in budgets_of(store)}
        budgets = [match.budget for match in matches.values()]
        budgets += [budget for id in ids if id not in matches and (budget := known_by(id)) is not None]
        for match in matches.values():
            if store is not None and reservation.charged and reservation.id not in match.budget.accounts:
                refuse_uncountable(reservation.plan, match, store)
        after = [settled(budget, reservation) for budget in budgets]
        for budget in after:
            belongs = budget.head.id in matches and matches[budget.head.id].by_name is None
            keep(budget, store if belongs else None)
    return after


def note_uncovered(store: RecordSet, what: str, why: str | None, dry: bool = False) -> bool:
    """Notes, in the ledgers of a store's budgets, a release that no budget covers. The caller must release only afterwards.

    Args:
        store: Store of the records; without a budget for them, nothing is recorded.
        what: Description of the release and of its run.
        why: Justification by the operator; ``None``: none was given.
        dry: Whether to check only, and write nothing.

    Returns:
        Whether a budget holds for the records.

    Raises:
        UserError: If a budget holds for the records, and the justification is missing; or if a ledger is damaged or cannot be
            written.
    """
    with contextlib.nullcontext(budgets_of(store)) if dry else opened(store) as matches:
        for match in matches:
            if not (why or "").strip():
                raise UserError(
                    f"the records of {store.path} have a lifetime budget of {shown(match.budget)}, which does not cover this "
                    f"release: {what}. Do without the release, or give a reason.{question(match, store)} [budget-not-covered]",
                    command="On the command line: --not-covered 'WHY'; in a configuration: privacy.not_covered.",
                )
            said = f"{what}: {why}"
            if not dry and said not in {entry.why for entry in match.budget.uncovered}:
                budget = match.budget.with_entries([Entry.new("uncovered", why=said)])
                keep(budget, store if match.by_name is None else None)
    return bool(matches)


def _check_numbers(store: RecordSet, epsilon: float, delta: float, unit: Unit) -> None:
    require_epsilon("epsilon", epsilon)
    if unit == "user" and store.units is None:
        raise no_units(store.name)
    count = store.training_records if unit == "record" else store.training_units or 0
    if not count:
        raise UserError(f"{store.path} has no training records, so it cannot have a budget. [budget-no-records]")
    if not 0 < delta <= 1 / count:
        why = "a larger delta would allow publishing one whole record, drawn at random" if delta > 0 else "give such a delta"
        raise UserError(
            f"delta must be above 0 and at most 1/N = 1/{count:,}, got {round_up(delta) if delta > 0 else delta}: {why}. "
            "[budget-delta-large]"
        )
    if max(RenyiFilter.of(epsilon, delta).limits) <= 0:
        raise UserError(f"no run fits into ({epsilon!r}, {delta!r}): raise epsilon or delta. [budget-too-small]")


def _new(store: RecordSet, epsilon: float, delta: float, unit: Unit, distinct: dict[str, str]) -> BudgetLedger:
    new = RenyiFilter.of(epsilon, delta)
    return BudgetLedger(
        Head(
            budget=1,
            id=secrets.token_hex(8),
            unit=unit,
            fingerprint=store.budget_fingerprint,
            store=str(store.path),
            orders=list(new.orders),
            shares=list(new.shares),
            distinct=distinct,
        )
    )


def _same_names(store: RecordSet, others: list[Found]) -> UserError:
    told = "; ".join(f"{other.budget.head.store}, {shown(other.budget)}: {related(other, store)}" for other in others)
    asked = question(others[0], store) if all(other.asks for other in others) else ""
    return UserError(
        f"records of {store.path} have a budget already ({told}). Runs on these records are charged to it, and no other is "
        f"needed.{asked} [budget-names]"
    )
