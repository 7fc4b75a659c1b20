"""Keeps two replicas of a budget's ledger, in the store and in this user's registry, and searches for a store's budgets.

The registry is a folder of this user (or the folder that DPFED_BUDGETS names). It holds every budget that this user set or used
on this machine. So a store is recognised even if it was copied, if its ledger was removed, or if its ledger is older than the
last run. The registry recognises a copy of a store by the fingerprint of the records, and a repeated import of the same records
by the names of the training records, which are hashed with a secret of the registry. The union of two replicas counts, and each
replica receives the entries that it lacks.
"""

from __future__ import annotations

import contextlib
import os
import pwd
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dpfed.budgets.ledger import BudgetLedger
from dpfed.budgets.replicas import damaged, read, write_missing
from dpfed.budgets.samples import Samples
from dpfed.data.record_set import RecordSet
from dpfed.errors import UserError
from dpfed.files.hidden import visible_files
from dpfed.files.locking import file_lock

BUDGET_LEDGER = "budget.jsonl"
_LOCK = ".budget.lock"
_FOLDER = "DPFED_BUDGETS"
_MOSTLY = 0.5  # above this fraction of equal records, two stores hold the same record set
_WAIT = 60.0  # seconds to wait for another process; work under a lock takes less than a second


@dataclass(frozen=True)
class Found:
    """A budget that holds for a store.

    Attributes:
        budget: Ledger, as the union of its replicas.
        by_name: Fraction of the budget's sampled records whose names are in the store; ``None``: the store has the budget's
            fingerprint, or its ledger.
        equal: Fraction of the records with matching names whose contents match as well; ``None``: unknown.
    """

    budget: BudgetLedger
    by_name: float | None = None
    equal: float | None = None

    @property
    def asks(self) -> bool:
        """Whether record names are the only evidence that the budget holds, so that the user has to decide."""
        return self.by_name is not None and (self.equal or 0.0) <= _MOSTLY


def registry() -> Path:
    """Returns the folder of this user's registry.

    Raises:
        UserError: If the user has no home directory, like a random user id in a container; or if the path depends on the
            current folder, so that budgets could be overlooked.
    """
    if given := os.environ.get(_FOLDER):
        folder = _expanded(given)
        if not folder.is_absolute():
            raise UserError(
                f"{_FOLDER} = {given!r} depends on the folder in which a command starts, so budgets would be overlooked: give "
                "an absolute path. [registry-relative]"
            )
        return folder
    state = _expanded(os.environ.get("XDG_STATE_HOME", ""))
    if not state.is_absolute():  # the XDG specification says to ignore relative paths
        state = _home() / ".local" / "state"
    return state / "dpfed" / "budgets"


def _expanded(text: str) -> Path:
    return _home() / text[2:] if text.startswith("~/") else Path(text).expanduser()


def _home() -> Path:
    """Returns this user's home directory: $HOME if it is an absolute path, otherwise the directory in the user database."""
    home = os.environ.get("HOME", "")
    if os.path.isabs(home):
        return Path(home)
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError as error:
        raise UserError(
            f"the user {os.getuid()} has no home directory, where dpfed would keep the budgets of records: set HOME, or set "
            f"{_FOLDER} to a folder that is kept from run to run. [registry-no-home]"
        ) from error


def possible(folder: Path | None) -> bool:
    """Returns whether records may have a budget, without opening the records.

    Args:
        folder: Folder that may hold a replica of the budget's ledger; ``None``: the records have no folder.

    Raises:
        UserError: If the registry has no folder, see `registry`.
    """
    return (folder is not None and os.path.lexists(folder / BUDGET_LEDGER)) or bool(visible_files(registry(), ".jsonl"))


def budgets_of(store: RecordSet) -> list[Found]:
    """Returns the budgets that, as far as this user's files show, hold for a store's records. The function writes no file.

    Raises:
        UserError: If a replica of a ledger is damaged, if a sample or the secret in the registry is damaged, if two replicas of
            a ledger have different first lines, if the store's ledger belongs to other records, or if the registry has no
            folder.
    """
    if not possible(store.budget_folder):
        return []
    copy = _copy_beside(store)
    stored, (known, cut) = read(copy) if copy else None, _in_registry()
    if stored is not None and stored.head.fingerprint != store.budget_fingerprint:
        raise UserError(
            f"{copy} is the ledger of a budget for records that are not those of {store.path}: move it to the store of its own "
            "records, or, if this is a fit of PrivateCCA on other rows, give another folder=. [budget-other-records]"
        )
    if lost := [path for path in cut if path.stem not in known and not (stored and stored.head.id == path.stem)]:
        raise damaged(lost[0], 1)  # the damaged ledger may be this store's
    budgets = {
        id: _together(budget, stored if stored is not None and stored.head.id == id else None) for id, budget in known.items()
    }
    if stored is not None:
        budgets.setdefault(stored.head.id, stored)
    matches: list[Found] = []
    sampled = Samples(registry(), store)
    fractions = sampled.fractions(budgets.keys() - {stored.head.id if stored else None})
    for id, budget in budgets.items():
        if (stored is not None and stored.head.id == id) or budget.head.fingerprint == store.budget_fingerprint:
            matches.append(Found(budget))
        elif found := fractions.get(id):
            matches.append(Found(budget, *found))
    if stored is None and copy and os.path.lexists(copy) and not any(match.by_name is None for match in matches):
        raise damaged(copy, 1)
    own_ids = {match.budget.head.id for match in matches if match.by_name is None}
    distinct = {id for match in matches if match.by_name is None for id in match.budget.head.distinct}
    distinct |= {match.budget.head.id for match in matches if own_ids & match.budget.head.distinct.keys()}
    return [match for match in matches if match.by_name is None or match.budget.head.id not in distinct]


@contextlib.contextmanager
def opened(store: RecordSet) -> Iterator[list[Found]]:
    """Yields the budgets of `budgets_of`, locked for this process until the ``with`` block ends; see `keep`.

    Raises:
        UserError: If `budgets_of` fails, or the replicas cannot be locked or written.
    """
    if not budgets_of(store):  # nothing is written into a store without a budget
        yield []
        return
    with held(store.budget_folder):
        yield budgets_of(store)


@contextlib.contextmanager
def held(store: Path | None) -> Iterator[None]:
    """Locks a store's ledger, and then the registry, for this process. The fixed order prevents deadlocks.

    Args:
        store: Folder of the store; ``None``: only the registry is locked.

    Raises:
        UserError: If another process holds a lock for a minute, or a folder cannot be written or locked.
    """
    taken = "another process has been writing the budget for a minute: try again when it has ended."
    folder = registry()
    with contextlib.ExitStack() as stack:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if store is not None:
                stack.enter_context(file_lock(store / _LOCK, taken, _WAIT))
            stack.enter_context(file_lock(folder / ".lock", taken, _WAIT))
        except OSError as error:
            raise UserError(
                f"{error.filename or folder}: {error.strerror or error}. A budget's ledger is written into the store and the "
                f"registry {folder} ({_FOLDER} can name another) before anything is spent: make both writable. [budget-folders]"
            ) from error
        yield


def keep(budget: BudgetLedger, store: RecordSet | None) -> None:
    """Writes a ledger to its replicas: to the registry first, then to the store of its records.

    Args:
        budget: Complete ledger; the caller holds the locks, see `held`.
        store: Store of the budget's own records, or a copy of the store; ``None``: not available, or only record names match.

    Raises:
        UserError: If a replica is damaged or cannot be written, or the registry's secret is damaged.
    """
    folder, id = registry(), budget.head.id
    write_missing(folder / f"{id}.jsonl", budget)
    if store is None:
        return
    try:
        Samples(folder, store).keep(id)
    except OSError as error:
        raise UserError(f"the registry {folder} cannot be written: {error.strerror or error}. [registry-unwritable]") from error
    copy = _copy_beside(store)
    stored = read(copy) if copy else None
    if copy and (stored is None or stored.head.id == id):
        write_missing(copy, budget)


def _copy_beside(store: RecordSet) -> Path | None:
    return None if store.budget_folder is None else store.budget_folder / BUDGET_LEDGER


def known_by(id: str, store: Path | None = None) -> BudgetLedger | None:
    """Returns a budget by its id, from the replicas in the registry and in a store; ``None``: neither has the budget.

    Args:
        id: Id of the budget.
        store: Folder that may hold a replica, and need not be a store any more; ``None``: only the registry is searched.

    Raises:
        UserError: If a replica is damaged, or the two replicas have different first lines.
    """
    in_registry, in_store = replicas_of(id, store)
    budget, stored = read(in_registry), read(in_store) if in_store else None
    if stored is None or stored.head.id != id:
        return budget
    return stored if budget is None else _together(budget, stored)


def replicas_of(id: str, store: Path | None = None) -> tuple[Path, Path | None]:
    """Returns the paths of a ledger's replicas, which need not exist: in the registry, and in the store if one is given."""
    return registry() / f"{id}.jsonl", store / BUDGET_LEDGER if store else None


def _in_registry() -> tuple[dict[str, BudgetLedger], list[Path]]:
    """Returns the registry's ledgers by id, and the files whose first line is truncated."""
    budgets: dict[str, BudgetLedger] = {}
    cut: list[Path] = []
    for path in visible_files(registry(), ".jsonl"):
        if (budget := read(path)) is not None:  # several files may be replicas of one budget
            budgets[budget.head.id] = _together(budget, budgets.get(budget.head.id))
        else:
            cut.append(path)
    return budgets, cut


def _together(first: BudgetLedger, second: BudgetLedger | None) -> BudgetLedger:
    """Returns the union of two replicas of a ledger; if the second is ``None``, the first."""
    if second is None:
        return first
    if second.head != first.head:
        raise UserError(
            f"two copies of the budget {first.head.id} begin differently (in the registry {registry()} and in the store "
            f"{second.head.store}): one was changed. Restore it from a backup. [budget-copies-differ]"
        )
    return first.with_entries(first.lacks(second))
