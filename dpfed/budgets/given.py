"""Sets a lifetime budget that was given in Python, as with ``budget=`` of `dpfed.Trainer` and `dpfed.PrivateCCA`."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np

from dpfed.budgets.ledger import BudgetLedger, Unit
from dpfed.budgets.refusals import related, shown
from dpfed.budgets.registry import budgets_of
from dpfed.budgets.spending import set_budget
from dpfed.data.record_set import RecordSet
from dpfed.errors import Notice, UserError
from dpfed.privacy.accounting import default_delta

Budget = float | tuple[float, float]


def numbers_of(budget: Any) -> tuple[float, float | None]:
    """Returns epsilon and delta of a budget; delta is ``None`` if the budget gives only epsilon.

    Args:
        budget: Budget as epsilon, or as (epsilon, delta).

    Raises:
        UserError: If the budget has another form.
    """
    given = [
        number.item() if isinstance(number, np.generic) else number
        for number in (budget if isinstance(budget, tuple | list) else (budget,))
    ]
    if len(given) not in (1, 2) or not all(_is_number(number) for number in given):
        raise UserError(f"budget = {budget!r}: expected epsilon, or (epsilon, delta). [own-budget]")
    return float(given[0]), float(given[1]) if len(given) == 2 else None


def set_given(records: RecordSet, budget: Budget, unit: Unit) -> None:
    """Sets or changes the lifetime budget of records. Records that come from a record set with a budget keep that budget.

    Args:
        records: Records of the run.
        budget: Budget as epsilon, or as (epsilon, delta). Without delta, an existing budget keeps its delta, and a new one gets
            1/(N ln N), where N is the number of records (or units).
        unit: Privacy unit of the run.

    Raises:
        UserError: If `dpfed.budgets.spending.set_budget` refuses the budget, or if the records come from a record set with
            another budget, which they keep.
    """
    epsilon, delta = numbers_of(budget)
    matches = budgets_of(records)
    present = next((match.budget for match in matches if match.by_name is None), None)
    others = [match for match in matches if match.by_name is not None and not match.asks]
    if present is None and others:
        other = next((match for match in others if not has_numbers(match.budget, epsilon, delta)), None)
        if other is not None:
            raise UserError(
                f"budget = {budget!r}: some of these records have a budget already, {shown(other.budget)} "
                f"({related(other, records)}). That budget counts this run: leave budget= out, or give its numbers. "
                "[own-budget-other]"
            )
        return
    if present is not None and has_numbers(present, epsilon, delta):
        return
    before = None if present is None else shown(present)
    if delta is None:
        protected = (records.training_units or 0) if unit == "user" else records.training_records
        delta = default_delta(protected) if present is None else present.filter.delta
    after = set_budget(records, epsilon, delta, unit if present is None else None)
    if before is not None:
        warnings.warn(f"the lifetime budget of the records was {before}, and is {shown(after)} now", Notice, stacklevel=2)


def has_numbers(budget: BudgetLedger, epsilon: float, delta: float | None) -> bool:
    """Returns whether a budget has the given epsilon and delta.

    Args:
        budget: Present budget.
        epsilon: Epsilon to compare.
        delta: Delta to compare; ``None``: any.
    """
    return budget.filter.epsilon == epsilon and delta in (None, budget.filter.delta)


def _is_number(value: Any) -> bool:
    return isinstance(value, float | int) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
