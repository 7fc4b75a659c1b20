"""Refusals of plans that a budget does not admit. For a single plan, the message says what would still fit."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence

from dpfed.budgets.ledger import BudgetLedger, Entry
from dpfed.budgets.registry import Found
from dpfed.data.record_set import RecordSet
from dpfed.errors import UserError
from dpfed.privacy import accounting
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.plan_checks import LEAST_EPSILON
from dpfed.privacy.plan_parts import MOST_DISCRETE
from dpfed.privacy.promise import round_up
from dpfed.privacy.renyi_filter import RenyiCurve, RenyiFilter, added
from dpfed.privacy.samplers import ADD_OR_REMOVE

_FINER = 1.01  # ratio of two successive tries for a smaller epsilon
_HALVINGS = 40  # steps of the bisection of the noise multiplier


def refuse_uncountable(plan: PrivacyPlan, found: Found, store: RecordSet) -> None:
    """Refuses a plan whose cost does not bound the privacy loss of what the budget protects: one record, or one user.

    Raises:
        UserError: If the plan's guarantee is not about adding or removing a record; if a budget for users was found by record
            names only; or if the plan protects another unit than the budget, and a user may have several records. The message
            suggests a change.
    """
    if plan.mechanism.sampler.relation != ADD_OR_REMOVE:
        raise UserError(
            f"the budget of {store.path} covers adding or removing one record, but bounding.method = "
            f"'{plan.bounding.method_name}' protects against replacing one: choose another method. [budget-relation]"
        )
    unit = found.budget.head.unit
    if unit == "user" and found.by_name is not None:
        raise UserError(
            f"the budget of {found.budget.head.store} is for users, and {related(found, store)}, but names do not tell whose "
            f"records they are: train on {found.budget.head.store}.{question(found, store)} [budget-user-names]"
        )
    if unit == plan.promise.unit or (store.units is not None and store.training_units == store.training_records):
        return  # with one record for each user, records and users are the same
    if unit == "user":
        raise UserError(
            f"the budget of {store.path} is for users with all their records, but this run protects single records, of which a "
            f"{store.unit_name or 'user'} may have several: set privacy.unit = 'user'. [budget-for-users]"
        )
    holds = store.path if found.by_name is None else found.budget.head.store
    raise UserError(
        f"the budget of {holds} is for single records, but this run protects whole units: nobody has proven what such a run "
        "costs a single record. The unit of a budget never changes, so set privacy.unit = 'record' (PrivateCCA: call fit "
        "without groups=). [budget-for-records]"
    )


def related(found: Found, store: RecordSet) -> str:
    """Returns half a sentence that explains why a budget found by record names holds for a store."""
    names = f"{_share(found.by_name or 0.0)} of the budget's record names are in {store.path}"
    if found.equal is None:
        return names
    return f"{names}, and {_share(found.equal)} of these records have equal images or captions"


def _share(part: float) -> str:
    return "less than 1%" if 0 < part < 0.01 else f"{part:.0%}"


def question(found: Found, store: RecordSet) -> str:
    """Returns the question to ask if record names are the only evidence that a budget holds for a store; otherwise ""."""
    if not found.asks:
        return ""
    return (
        f" Are these other records? Then `dpfed budget set {shlex.quote(str(store.path))} --epsilon E --delta D --distinct "
        "'WHY'` gives them a budget of their own."
    )


def does_not_fit(budget: RenyiFilter, spent: RenyiCurve, plans: Sequence[PrivacyPlan], shown: str, where: str) -> str:
    """Returns the message that refuses plans. For a single plan, it says what would still fit.

    Args:
        budget: Filter of the budget.
        spent: Cost of all other runs at each order.
        plans: Plans to be reserved together.
        shown: Description of the budget, see `shown`.
        where: Path of the store, or a phrase that names it.
    """
    wanted = added((budget.curve(plan.mechanism, plan.steps) for plan in plans), len(budget.orders))
    taken, needed = (percent(part) for part in (budget.part(spent), budget.part(wanted)))
    these = "this run" if len(plans) == 1 else "these runs"
    start = f"the lifetime budget of {where}, {shown}, has no room for {these}: {taken} is spent or reserved, and "
    if len(plans) > 1:
        return f"{start}the {len(plans)} runs take {needed}: ask for fewer runs, or for more noise. {_SEE}"
    (plan,) = plans
    promise = f"epsilon {round_up(plan.epsilon())} over {plan.steps:,} steps takes {needed}."
    return f"{start}{promise} {_what_fits(budget, spent, plan)} {_SEE}"


_SEE = "`dpfed budget show` has the numbers."


def _what_fits(budget: RenyiFilter, spent: RenyiCurve, plan: PrivacyPlan) -> str:
    steps, smaller = most_steps(budget, spent, plan), largest_epsilon(budget, spent, plan)
    if smaller is None:
        return f"What still fits is {_counted(steps)} with the noise of this plan." if steps else "Nothing fits any more."
    largest, sigma = smaller
    said = f"With this number of steps, epsilon {largest:g} still fits (noise multiplier {sigma:g})"
    return said + (f", or {_counted(steps)} with the noise of this plan." if steps else ".")


def _counted(steps: int) -> str:
    return f"{steps:,} step{'s' * (steps != 1)}"


def most_steps(budget: RenyiFilter, spent: RenyiCurve, plan: PrivacyPlan) -> int:
    """Returns how many steps at the plan's noise fit into the rest of the budget; never more than the plan has.

    The result is 0 if the method fixes the number of steps, and they do not all fit.
    """
    if plan.bounding.method.closed_form:
        return plan.steps if _fits(budget, spent, plan) else 0
    steps = min(plan.steps, budget.times(spent, budget.curve(plan.mechanism, 1)))
    while steps and not _fits(budget, spent, plan, steps):  # rounding may have given too many steps
        steps -= 1
    return steps


def largest_epsilon(budget: RenyiFilter, spent: RenyiCurve, plan: PrivacyPlan) -> tuple[float, float] | None:
    """Finds the largest epsilon, to three digits, at which a plan fits with its number of steps.

    The noise that is calibrated to this epsilon fits as well.

    Returns:
        Epsilon and noise multiplier; ``None``: the plan fits at no epsilon.
    """
    most = accounting.MOST_NOISE if plan.noise.kind == "gaussian" else MOST_DISCRETE
    low, high = plan.noise.multiplier, most
    if not _fits(budget, spent, _with(plan, high)):
        return None
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if _fits(budget, spent, _with(plan, middle)) else (middle, high)
    sigma = min(most, math.ceil(high * 1e4) / 1e4)
    epsilon = _rounded_down(_epsilon(_with(plan, sigma)))
    while epsilon >= LEAST_EPSILON:
        calibrated = accounting.calibrate(epsilon, plan.mechanism, plan.steps, plan.promise.delta, plan.promise.accountant)
        if _fits(budget, spent, _with(plan, calibrated.noise_multiplier)):
            return epsilon, calibrated.noise_multiplier
        epsilon = _rounded_down(epsilon / _FINER)
    return None


def _epsilon(plan: PrivacyPlan) -> float:
    try:
        return plan.epsilon()
    except accounting.Unresolved:
        return plan.epsilon(accountant="rdp")


def _with(plan: PrivacyPlan, sigma: float) -> PrivacyPlan:
    return plan.replace(noise_multiplier=sigma)


def _fits(budget: RenyiFilter, spent: RenyiCurve, plan: PrivacyPlan, steps: int | None = None) -> bool:
    cost = budget.curve(plan.mechanism, plan.steps if steps is None else steps)
    return budget.admits(added((spent, cost), len(budget.orders)))


def _rounded_down(value: float) -> float:
    if value < LEAST_EPSILON:
        return 0.0
    scale = 10.0 ** (2 - math.floor(math.log10(value)))
    return math.floor(value * scale) / scale


def shown(budget: BudgetLedger) -> str:
    """Describes a budget in a few words: epsilon, delta and the privacy unit."""
    unit = "record" if budget.head.unit == "record" else "user"
    return f"({budget.filter.epsilon!r}, {round_up(budget.filter.delta)}) for each {unit}"


def told(entry: Entry, budget: BudgetLedger) -> str:
    """Describes an entry that reserves or settles, in a few words."""
    verb = "reserved" if entry.event == "reserve" else "settled"
    return f"{verb} {entry.steps:,} steps, {percent(budget.filter.part(entry.curve))} of the budget"


def percent(part: float) -> str:
    """Formats a fraction of the budget in percent, rounded up; ``more than the whole`` if it is not finite."""
    if not math.isfinite(part):
        return "more than the whole"
    return f"{math.ceil(1000 * part) / 10:g} %"
