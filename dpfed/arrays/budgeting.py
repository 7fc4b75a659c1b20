"""Charges a fit to its rows' lifetime budget: reserves its plan before the first sum, and settles after the last."""

from __future__ import annotations

import warnings
from pathlib import Path

from dpfed.arrays.card import NO_BUDGET
from dpfed.arrays.records import ArrayRecords
from dpfed.arrays.refusal import ArrayError
from dpfed.budgets.refusals import shown
from dpfed.budgets.registry import budgets_of
from dpfed.budgets.reservations import Reservation
from dpfed.budgets.spending import reserve, set_budget, settle
from dpfed.errors import Notice
from dpfed.privacy.accounting import default_delta
from dpfed.privacy.plan import PrivacyPlan

Budget = float | tuple[float, float]


class Held:
    """A fit's reservation in the lifetime budgets of its rows.

    Args:
        records: the rows.
        plan: the fit's privacy plan.
        identity: the fit's id.
        place: the fit's folder.
        fixed_seed: whether a fixed seed makes the noise predictable.

    Raises:
        UserError: if a budget has no room for the plan.
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
        """Records the charge in the budgets' ledgers; returns the budgets in words, for the card."""
        if not self._ids:
            return NO_BUDGET
        budgets = settle(self._records, self._ids, self._reservation(charged))
        taken = (f"{shown(one)}, of which {one.filter.part(one.spent):.1%} is spent or reserved" for one in budgets)
        return "; ".join(taken)

    def _reservation(self, charged: int) -> Reservation:
        ids = tuple(self._ids) if charged else ()
        return Reservation(self._identity, "run", "PrivateCCA", self._place, self._plan, charged, ids)


def set_for(records: ArrayRecords, budget: Budget) -> None:
    """Sets the lifetime budget of rows, or changes it.

    Args:
        records: the rows; their folder keeps the budget's ledger.
        budget: epsilon, or (epsilon, delta).

    Raises:
        UserError: see `dpfed.budgets.spending.set_budget`.
    """
    try:
        epsilon, delta = budget if isinstance(budget, tuple | list) else (budget, default_delta(records.protected))
        epsilon, delta = float(epsilon), float(delta)
    except (TypeError, ValueError) as error:
        raise ArrayError(f"budget = {budget!r}: expected epsilon, or (epsilon, delta). [arrays-budget]") from error
    known = next((one.budget for one in budgets_of(records) if one.by_name is None), None)
    if known is not None and (known.filter.epsilon, known.filter.delta) == (epsilon, delta):
        return
    before = None if known is None else shown(known)
    after = set_budget(records, epsilon, delta, "record" if records.units is None else "user")
    if before is not None:
        warnings.warn(f"the lifetime budget of the rows was {before}, and is {shown(after)} now", Notice, stacklevel=2)
