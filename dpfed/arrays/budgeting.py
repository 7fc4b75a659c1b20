"""Charges a fit to its rows' lifetime budget: reserves the fit's plan before the first sum, and settles it after the last."""

from __future__ import annotations

from pathlib import Path

from dpfed.arrays.card import NO_BUDGET
from dpfed.arrays.records import ArrayRecords
from dpfed.arrays.refusal import ArrayError
from dpfed.budgets.given import Budget, set_given
from dpfed.budgets.refusals import percent, shown
from dpfed.budgets.registry import budgets_of
from dpfed.budgets.reservations import Reservation
from dpfed.budgets.spending import reserve, settle
from dpfed.privacy.plan import PrivacyPlan


class Held:
    """A fit's reservation in the lifetime budgets of its rows.

    Args:
        records: Rows of the fit.
        plan: Privacy plan of the fit.
        identity: Id of the fit.
        place: Folder of the fit.
        fixed_seed: Whether a fixed seed makes the noise predictable.

    Raises:
        UserError: If the rows have a budget and the seed is fixed; also see `dpfed.budgets.spending.reserve`.
    """

    def __init__(self, records: ArrayRecords, plan: PrivacyPlan, identity: str, place: Path, fixed_seed: bool) -> None:
        self._records, self._plan, self._identity, self._place = records, plan, identity, place.resolve()
        if fixed_seed and budgets_of(records):
            raise ArrayError(
                "the rows have a lifetime budget, and it covers no fit with a fixed random_state: leave random_state out. "
                "[arrays-seed-budget]"
            )
        self._ids = [budget.head.id for budget in reserve(records, [self._reservation(0)])]

    def settled(self, charged: int) -> str:
        """Writes the charge into the budgets' ledgers, and returns a description of the budgets for the privacy card.

        Args:
            charged: Number of releases that the fit's ledger has charged.

        Raises:
            UserError: See `dpfed.budgets.spending.settle`.
        """
        if not self._ids:
            return NO_BUDGET
        budgets = settle(self._records, self._ids, self._reservation(charged))
        return "; ".join(
            f"{shown(ledger)}, of which {percent(ledger.filter.part(ledger.spent))} is spent or reserved" for ledger in budgets
        )

    def _reservation(self, charged: int) -> Reservation:
        ids = tuple(self._ids) if charged else ()
        return Reservation(self._identity, "run", "PrivateCCA", self._place, self._plan, charged, ids)


def set_for(records: ArrayRecords, budget: Budget) -> None:
    """Sets or changes the lifetime budget of rows.

    Args:
        records: Rows; their folder keeps the budget's ledger.
        budget: Budget as epsilon, or as (epsilon, delta).

    Raises:
        UserError: If the budget is refused, see `dpfed.budgets.given.set_given`.
    """
    set_given(records, budget, "record" if records.units is None else "user")
