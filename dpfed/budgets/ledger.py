"""A budget's ledger, and the meaning of its lines. `dpfed.budgets.replicas` reads and writes the ledger's replicas.

The first line identifies the budget. Every other line is an entry: the budget was set, a plan was reserved, a reservation was
settled, or something was released that no budget covers. Each entry has an id of its own, and the state of a budget does not
depend on the order of its entries. So diverged replicas are merged by adding to each the entries that it lacks. The state does
not depend on dates either: days are for readers only.
"""

from __future__ import annotations

import datetime
import functools
import secrets
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dpfed.errors import UserError
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.renyi_filter import RenyiCurve, RenyiFilter, added

Unit = Literal["record", "user"]
What = Literal["run", "site", "sweep"]
Event = Literal["set", "reserve", "settle", "uncovered"]
_Cost = Annotated[float, Field(ge=-1e-9)]  # rounding may make a tiny cost slightly negative; no cost returns budget


class Head(BaseModel):
    """The first line of a ledger: the budget's identity, and the Renyi orders at which cost is counted. The line never changes.

    Attributes:
        budget: Version of the ledger's format.
        id: Id of the budget, the same in every replica.
        unit: Privacy unit: a record, or all records of a user.
        fingerprint: Fingerprint of the record set.
        store: Path of the record set when the budget was set, for readers.
        orders: Renyi orders at which the budget's privacy filter counts cost.
        shares: Fractions of delta that are assigned to the orders, one for each order.
        distinct: Id of a budget of another record set with the same record names -> reason why the record sets differ.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    budget: Literal[1]
    id: str = Field(pattern="^[0-9a-f]{16}$")
    unit: Unit
    fingerprint: str
    store: str
    orders: list[float]
    shares: list[float]
    distinct: dict[str, str] = {}

    @model_validator(mode="after")
    def _filters(self) -> Head:
        RenyiFilter(1.0, 0.5, tuple(self.orders), tuple(self.shares))  # refuses orders and shares that no filter can have
        return self


class Entry(BaseModel):
    """A line of the ledger after the first.

    Attributes:
        id: Id of the entry.
        event: Kind of the entry.
        day: Day of the entry, UTC, for readers.
        number: Serial number. A larger one replaces a smaller one: among the entries about one account (`Account`), and among
            the entries of event ``set``. If two replicas of the ledger gave out the same number, the entry with more steps
            counts, or, for event ``set``, the one with the smaller epsilon.
        epsilon: New epsilon; event ``set``.
        delta: New delta; event ``set``.
        of: Id of the run that holds the account. This field and those up to `cost` belong to the events ``reserve`` and
            ``settle``.
        what: Kind of the account: ``run``, ``site`` (of a federation), or ``sweep`` (a run of a sweep, not started yet).
        name: Name of the run, for readers.
        place: Folder of the run.
        plan: Plan of the run, as in the header of its ledger.
        steps: Number of reserved or charged steps.
        cost: Cost of these steps at each order of the head; ``None`` instead of a number means infinite.
        instead: Id of the account that this account replaces; event ``reserve``.
        why: Description of the release and the operator's justification; event ``uncovered``.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    id: str = Field(pattern="^[0-9a-f]{16}$")
    event: Event
    day: str
    number: int = Field(0, ge=0)
    epsilon: float | None = Field(None, gt=0)
    delta: float | None = Field(None, gt=0, lt=1)
    of: str | None = None
    what: What | None = None
    name: str | None = None
    place: str | None = None
    plan: dict[str, Any] | None = None
    steps: int | None = Field(None, ge=0)
    cost: list[_Cost | None] | None = None
    instead: str | None = None
    why: str | None = None

    @model_validator(mode="after")
    def _complete(self) -> Entry:
        needed = {"set": "epsilon delta", "uncovered": "why"}.get(self.event, "of what name place plan steps cost").split()
        if any(getattr(self, name) is None for name in needed):
            raise ValueError(f"an entry '{self.event}' needs {', '.join(needed)}")
        if self.plan is not None:
            try:
                PrivacyPlan.from_dict(self.plan)
            except (TypeError, UserError) as error:
                raise ValueError(f"the plan of an entry is wrong: {error}") from None
        return self

    @property
    def curve(self) -> RenyiCurve:
        """Cost at each order, with infinity where no bound is known."""
        return tuple(float("inf") if value is None else max(0.0, value) for value in self.cost or ())

    @classmethod
    def new(cls, event: Event, **fields: Any) -> Entry:
        """Makes an entry with a new id and today's date."""
        day = datetime.datetime.now(datetime.UTC).date().isoformat()
        return cls(id=secrets.token_hex(8), event=event, day=day, **fields)


@dataclass(frozen=True)
class Account:
    """The part of a budget that a run has reserved or spent.

    Attributes:
        id: Id of the run.
        what: Kind of the account: ``run``, ``site`` or ``sweep``.
        name: Name of the run, for readers.
        place: Folder of the run.
        plan: Plan of the run.
        steps: Number of reserved steps, or of charged steps if the account is settled.
        cost: Cost of these steps at each order.
        settled: Whether the latest entry is a settlement.
        number: Number of the latest entry.
        least: Lower bound of the steps in the run's own ledger: the largest number of steps in any of its settlements.
    """

    id: str
    what: str
    name: str
    place: str
    plan: PrivacyPlan
    steps: int
    cost: RenyiCurve
    settled: bool
    number: int
    least: int


@dataclass(frozen=True)
class BudgetLedger:
    """The content of a budget's ledger.

    Attributes:
        head: First line of the ledger.
        entries: Other lines, in the order of the file.
    """

    head: Head
    entries: tuple[Entry, ...] = ()

    @functools.cached_property
    def filter(self) -> RenyiFilter:
        """Privacy filter of the budget, with the epsilon and delta that were set last.

        Raises:
            UserError: If no entry sets the budget.
        """
        if not self.sets:
            raise UserError(
                f"the ledger of budget {self.head.id} has no line that sets epsilon and delta: restore a backup. [budget-lost]"
            )
        latest = max(self.sets, key=lambda entry: (entry.number, -(entry.epsilon or 0.0)))
        assert latest.epsilon is not None and latest.delta is not None  # an entry is complete
        return RenyiFilter(latest.epsilon, latest.delta, tuple(self.head.orders), tuple(self.head.shares))

    @functools.cached_property
    def accounts(self) -> dict[str, Account]:
        """Accounts by the id of their run, without replaced accounts."""
        latest: dict[str, Entry] = {}
        most: dict[str, Entry] = {}
        for entry in (*self._of("reserve"), *self._of("settle")):
            of = str(entry.of)
            if entry.event == "settle" and (of not in most or (entry.steps or 0) > (most[of].steps or 0)):
                most[of] = entry
            if of not in latest or _rank(entry) > _rank(latest[of]):
                latest[of] = entry
        return {of: _account(entry, most.get(of)) for of, entry in latest.items() if of not in self.replaced}

    @functools.cached_property
    def replaced(self) -> set[str]:
        """Ids of the accounts that another account replaces."""
        return {entry.instead for entry in self._of("reserve") if entry.instead}

    @property
    def spent(self) -> RenyiCurve:
        """Cost of all releases and all reservations at each order."""
        return added((account.cost for account in self.accounts.values()), len(self.head.orders))

    @property
    def uncovered(self) -> list[Entry]:
        """Entries of releases that no budget covers."""
        return self._of("uncovered")

    @property
    def sets(self) -> list[Entry]:
        """Entries that set the budget."""
        return self._of("set")

    def lacks(self, other: BudgetLedger) -> list[Entry]:
        """Returns the entries of another replica that this replica lacks."""
        known = {entry.id for entry in self.entries}
        return [entry for entry in other.entries if entry.id not in known]

    def with_entries(self, entries: list[Entry]) -> BudgetLedger:
        """Returns the ledger with further entries."""
        return BudgetLedger(self.head, (*self.entries, *entries))

    def _of(self, event: Event) -> list[Entry]:
        return [entry for entry in self.entries if entry.event == event]


def _rank(entry: Entry) -> tuple[int, int]:
    return entry.number, entry.steps or 0


def _account(entry: Entry, most: Entry | None) -> Account:
    """Makes an account from its latest entry; steps and cost come from another settlement if that one has more steps.

    A run that was continued in two places may have several settlements.

    Args:
        entry: Latest entry about the account.
        most: Settlement of the account with the most steps; ``None``: the account was never settled.
    """
    least = (most.steps or 0) if most else 0
    counts = most if most is not None and least > (entry.steps or 0) else entry
    of, what, name, place = (str(value) for value in (entry.of, entry.what, entry.name, entry.place))
    plan, settled = PrivacyPlan.from_dict(entry.plan or {}), entry.event == "settle"
    return Account(of, what, name, place, plan, counts.steps or 0, counts.curve, settled, entry.number, least)
