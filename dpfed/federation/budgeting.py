"""Lifetime budgets at a site that joins a federation: on joining, the site reserves the cost of the whole plan."""

from __future__ import annotations

import contextlib
import hashlib
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

from dpfed.budgets.ledger import BudgetLedger
from dpfed.budgets.registry import possible
from dpfed.budgets.reservations import Reservation
from dpfed.budgets.spending import reserve, settle
from dpfed.data.store.records import RecordStore
from dpfed.errors import UserError
from dpfed.privacy.ledger import Ledger

if TYPE_CHECKING:
    from dpfed.protocol.identity import Identity
    from dpfed.protocol.terms import Terms

_LETTERS = 16


class Folder(Protocol):
    """The part of a site's folder that this module uses (`dpfed.federation.site.folder.SiteFolder`)."""

    path: Path
    ledger: Path

    @classmethod
    def open(cls, path: str | Path) -> Self: ...  # noqa: D102

    def settings(self) -> Any: ...  # noqa: D102

    def identity(self) -> Identity: ...  # noqa: D102

    def terms(self) -> Terms: ...  # noqa: D102

    def locked(self) -> AbstractContextManager[None]: ...  # noqa: D102


def reserve_site(folder: Folder, terms: Terms, store: RecordStore | None = None) -> list[BudgetLedger]:
    """Reserves the whole plan of a federation in the budgets of a site's records; a repeated call changes nothing.

    Args:
        folder: Folder of the site.
        terms: Terms of the federation.
        store: Records of the site, if they are open already; default: the store that the site's settings name is opened.

    Returns:
        The ledgers of the budgets; empty if the records have none.

    Raises:
        UserError: If the plan does not fit (the message has the numbers), if the folder is a copy of a folder that still
            exists, or for another reason, see `dpfed.budgets.spending.reserve`.
    """
    path = Path(folder.settings().store)
    if not possible(path):
        return []
    return reserve(RecordStore.open(path) if store is None else store, [_reservation(folder, terms)])


def settle_site(folder: Folder) -> list[BudgetLedger]:
    """Settles a site with the lifetime budgets of its records: gives back what the site has reserved and not spent.

    If the site is served again before its last step, it reserves its whole plan again.

    Returns:
        The ledgers of the budgets; empty if the records have none.

    Raises:
        UserError: If the site has joined no federation, if another process serves the site and the coordinator may still ask
            for steps, if the site's ledger has lost lines, or for another reason, see `dpfed.budgets.spending.settle`.
    """
    with contextlib.ExitStack() as stack:
        if not is_over(folder):
            try:
                stack.enter_context(folder.locked())
            except UserError as error:
                if error.code != "file-locked":
                    raise
                raise UserError(
                    f"{folder.path} is served by another process, and its coordinator may ask for more steps: stop that "
                    "process, then settle. After the last step, a served site settles by itself. [budget-site-served]"
                ) from None
        return settle_locked(folder)


def is_over(folder: Folder) -> bool:
    """Returns whether the coordinator has asked for the last step, so that the site's ledger no longer changes."""
    if not folder.ledger.exists():
        return False
    ledger = Ledger.open(folder.ledger)
    return ledger.last_step + 1 >= ledger.plan.steps


def settle_locked(folder: Folder) -> list[BudgetLedger]:
    """Settles as `settle_site` does, for a folder whose ledger no other process changes now."""
    return settle(RecordStore.open(folder.settings().store), (), _reservation(folder, folder.terms()))


def _reservation(folder: Folder, terms: Terms) -> Reservation:
    """Returns what a site reserves: the whole plan of the terms, with the steps that the site's ledger has charged."""
    key = folder.identity().signing_key
    id = hashlib.sha256(f"{terms.fingerprint}/{key}".encode()).hexdigest()[:_LETTERS]
    name = f"{terms.sites[terms.number_of(key)].name}, terms {terms.fingerprint[:_LETTERS]}"
    charged = Ledger.open(folder.ledger).charged if folder.ledger.exists() else 0

    def is_at(path: Path) -> bool:
        try:
            return type(folder).open(path).identity().signing_key == key
        except UserError:
            return False

    return Reservation(id, "site", name, folder.path.resolve(), terms.privacy_plan, charged, is_at=is_at)
