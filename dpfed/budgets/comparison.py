"""What else could be said of a budget's runs than what the filter says, for comparison: it decides nothing."""

from __future__ import annotations

import math

from dpfed.budgets.book import Account, Book
from dpfed.privacy.accounting import Accountant, Unresolved, joint_epsilon
from dpfed.privacy.promise import round_up


def if_fixed(book: Book) -> dict[str, str]:
    """Epsilon of all runs at the budget's delta by each accountant, if all plans had been fixed before the first result.

    Composing loss distributions, or taking the best order afterwards, is valid for plans that do not depend on results.

    Returns:
        Accountant -> epsilon, as it is shown; those that can say nothing are left out.
    """
    said: dict[str, str] = {}
    runs = tuple((account.plan.mechanism, account.steps) for account in book.accounts.values() if account.steps)
    accountants: tuple[Accountant, ...] = ("rdp", "pld")
    for name in accountants if runs else ():
        try:
            said[name] = round_up(joint_epsilon(runs, book.filter.delta, name))
        except Unresolved:
            continue
    return said


def summed(book: Book) -> tuple[str, str]:
    """The sums of the epsilons and of the deltas that the runs' cards state (basic composition)."""
    accounts = [account for account in book.accounts.values() if account.steps]
    epsilon = math.fsum(map(_epsilon, accounts))
    return round_up(epsilon), round_up(math.fsum(account.plan.delta for account in accounts))


def _epsilon(account: Account) -> float:
    try:
        return account.plan.epsilon(account.steps)
    except Unresolved:
        return account.plan.epsilon(account.steps, "rdp")
