"""What a run's claim changes in a book: a plan is reserved, or settled. Nothing is read or written here."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpfed.budgets.book import Account, Book, Entry, Event, What
from dpfed.budgets.refusals import does_not_fit, refuse_uncountable, shown
from dpfed.budgets.shelf import Found
from dpfed.data.store.records import RecordStore
from dpfed.errors import UserError
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.renyi_filter import added


@dataclass(frozen=True)
class Claim:
    """A plan that is to be carried out.

    Attributes:
        id: of the run.
        what: ``run``, ``site`` or ``sweep``.
        name: for people.
        place: the run's folder, absolute.
        plan: what it promises.
        charged: steps that its ledger holds.
        reserved_with: ids of the budgets that it wrote down as its own.
        is_at: whether this very run is at another place, too.
    """

    id: str
    what: What
    name: str
    place: Path
    plan: PrivacyPlan
    charged: int = 0
    reserved_with: tuple[str, ...] = ()
    is_at: Callable[[Path], bool] = lambda place: False


def reserved(found: Found, store: RecordStore, claims: Sequence[Claim]) -> Book:
    """A budget's book with reservations for the claims, as far as they have none.

    Args:
        found: the budget.
        store: the records.
        claims: the plans.

    Raises:
        UserError: see `dpfed.budgets.spending.reserve`.
    """
    book, entries = found.book, []
    for claim in claims:
        refuse_uncountable(claim.plan, found, store)
        known = book.accounts.get(claim.id)
        if known is None and claim.charged and book.head.id in claim.reserved_with:
            raise UserError(
                f"{claim.place} has reserved with the budget {book.head.id} and was charged {claim.charged} steps, and the "
                "budget's ledger has no such entry: it has lost lines. Restore it from a backup."
            )
        if claim.id not in book.replaced and not (known and _holds_already(known, claim)):
            number = known.number + 1 if known else 0
            entries.append(_entry("reserve", book, claim, claim.plan.steps, number, _foreseen(book, claim)))
    after = book.with_entries(entries)
    if after.spent != book.spent and not after.filter.admits(after.spent):
        new = [claim for claim in claims if any(entry.of == claim.id for entry in entries)]
        others = (account.cost for id, account in after.accounts.items() if id not in {claim.id for claim in new})
        where = f"{book.head.store}, whose records these are by their names" if found.by_name else str(store.path)
        spent = added(others, len(book.head.orders))
        raise UserError(does_not_fit(after.filter, spent, [claim.plan for claim in new], shown(book), where))
    return after


def _holds_already(known: Account, claim: Claim) -> bool:
    """Whether a claim need reserve nothing.

    Raises:
        UserError: if this is a copy of the run that reserved, or its plan has changed.
    """
    if known.what == "sweep" and known.plan.fingerprint != claim.plan.fingerprint:  # it has not begun
        return False
    _refuse_another_plan(known, claim)
    if known.settled:
        if claim.charged < known.steps:
            raise UserError(
                f"{claim.place} is an older copy of a run that has settled {known.steps} steps with the budget, and its ledger "
                f"holds {claim.charged}: resume the run itself, or start a new one."
            )
        return claim.charged >= claim.plan.steps
    _refuse_copy(known, claim)
    return known.place == str(claim.place)  # otherwise it was moved, and the entry says where to


def _refuse_another_plan(known: Account, claim: Claim) -> None:
    if known.what != "sweep" and known.plan.fingerprint != claim.plan.fingerprint:
        raise UserError(
            f"{claim.place} has reserved another plan than it has now ({known.plan.steps:,} steps with noise multiplier "
            f"{known.plan.noise.multiplier:g}, now {claim.plan.steps:,} with {claim.plan.noise.multiplier:g}): restore "
            "config.toml and the ledger, or start a new run."
        )


def _refuse_copy(known: Account, claim: Claim) -> None:
    if known.place != str(claim.place) and _is_elsewhere(known, claim):
        raise UserError(
            f"{claim.place} is a copy of {known.place}, which still exists, and only one of them can spend the "
            "reservation: resume the original, or start a new run."
        )


def _is_elsewhere(known: Account, claim: Claim) -> bool:
    """Whether the run is in another folder, too, and not only under another name of this one."""
    place = Path(known.place)
    try:
        same = place.exists() and claim.place.exists() and place.samefile(claim.place)
        return not same and claim.is_at(place)
    except PermissionError:
        return True  # nobody can tell


def _foreseen(book: Book, claim: Claim) -> str | None:
    """What a sweep reserved for the run at this place."""
    sweeps = (one for one in book.accounts.values() if one.what == "sweep" and claim.what == "run" and not one.settled)
    return next((one.id for one in sweeps if one.place == str(claim.place)), None)


def settled(book: Book, claim: Claim) -> Book:
    """A book that says what a run was charged, after its last step.

    Args:
        book: of the budget.
        claim: the run.

    Raises:
        UserError: see `dpfed.budgets.spending.settle`.
    """
    known = book.accounts.get(claim.id)
    if known is None and not claim.charged:
        return book
    if known is not None and claim.charged < known.least:
        raise UserError(
            f"the ledger of {claim.place} holds {claim.charged} steps, and it has settled {known.least} before: it has lost "
            "lines. Restore it."
        )
    if known is not None:
        _refuse_another_plan(known, claim)
    if known is not None and known.settled and known.steps == claim.charged:
        return book
    if known is not None and not known.settled:
        _refuse_copy(known, claim)  # its ledger may hold less than that of the run
    number = known.number + 1 if known else 0
    return book.with_entries([_entry("settle", book, claim, claim.charged, number)])


def _entry(event: Event, book: Book, claim: Claim, steps: int, number: int, instead: str | None = None) -> Entry:
    cost = book.filter.curve(claim.plan.mechanism, steps)
    return Entry.new(
        event,
        number=number,
        of=claim.id,
        what=claim.what,
        name=claim.name,
        place=str(claim.place),
        plan=claim.plan.as_dict(),
        steps=steps,
        cost=[value if math.isfinite(value) else None for value in cost],
        instead=instead,
    )
