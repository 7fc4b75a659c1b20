"""A lifetime budget that a program gives in Python: for records that have no store."""

from __future__ import annotations

import math
import warnings
from typing import Any

from dpfed.budgets.ledger import BudgetLedger, Unit
from dpfed.budgets.refusals import related, shown
from dpfed.budgets.registry import budgets_of
from dpfed.budgets.spending import set_budget
from dpfed.data.record_set import RecordSet
from dpfed.errors import Notice, UserError
from dpfed.privacy.accounting import default_delta

Budget = float | tuple[float, float]


def numbers_of(budget: Any) -> tuple[float, float | None]:
    """Epsilon and delta of a budget; ``None``: it does not say which delta.

    Args:
        budget: epsilon, or (epsilon, delta).

    Raises:
        UserError: for anything else.
    """
    given = budget if isinstance(budget, tuple | list) else (budget,)
    if len(given) not in (1, 2) or not all(_is_number(one) for one in given):
        raise UserError(f"budget = {budget!r}: expected epsilon, or (epsilon, delta). [own-budget]")
    return float(given[0]), float(given[1]) if len(given) == 2 else None


def set_given(records: RecordSet, budget: Budget, unit: Unit) -> None:
    """Sets the lifetime budget of records, or changes it. A part of other records keeps their budget.

    Args:
        records: of the run.
        budget: epsilon, or (epsilon, delta); delta is 1/(N ln N) at first, and then stays.
        unit: what the run protects.

    Raises:
        UserError: see `dpfed.budgets.spending.set_budget`; for other numbers than those of the budget that a part keeps.
    """
    epsilon, delta = numbers_of(budget)
    found = budgets_of(records)
    own = next((one.budget for one in found if one.by_name is None), None)
    others = [one for one in found if one.by_name is not None and not one.asks]
    if own is None and others:
        other = next((one for one in others if not has_numbers(one.budget, epsilon, delta)), None)
        if other is not None:
            raise UserError(
                f"budget = {budget!r}: some of these records have a budget already, {shown(other.budget)} "
                f"({related(other, records)}). It holds here as well: leave budget= out, or give the same. [own-budget-other]"
            )
        return
    if own is not None and has_numbers(own, epsilon, delta):
        return
    before = None if own is None else shown(own)
    if delta is None:
        protected = (records.training_units or 0) if unit == "user" else records.training_records
        delta = default_delta(protected) if own is None else own.filter.delta
    after = set_budget(records, epsilon, delta, unit if own is None else None)
    if before is not None:
        warnings.warn(f"the lifetime budget of the records was {before}, and is {shown(after)} now", Notice, stacklevel=2)


def has_numbers(budget: BudgetLedger, epsilon: float, delta: float | None) -> bool:
    """Whether a budget is of some epsilon, and of some delta.

    Args:
        budget: as it stands.
        epsilon: that was given.
        delta: the same; ``None``: any.
    """
    return budget.filter.epsilon == epsilon and delta in (None, budget.filter.delta)


def _is_number(value: Any) -> bool:
    return isinstance(value, float | int) and not isinstance(value, bool) and math.isfinite(value)
