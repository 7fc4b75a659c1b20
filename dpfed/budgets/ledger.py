"""One budget's ledger: what its lines say. `dpfed.budgets.replicas` reads and writes it, as there may be several copies.

The first line says whose budget it is. Every other line is an entry: the budget was set, a plan was reserved, a reservation
was settled, or something was released that no budget covers. Each entry has an id of its own, and what follows from a ledger
does not depend on the order of its entries. So replicas that grew apart are made one by adding to each what it lacks. No clock
is asked: days are for people.
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
_Cost = Annotated[float, Field(ge=-1e-9)]  # rounding made some of next to nothing negative; no cost gives budget back


class Head(BaseModel):
    """The first line: whose budget this is, and at which orders it counts. It never changes.

    Attributes:
        budget: version of the format.
        id: of the budget, the same in every copy.
        unit: what is protected: a record, or all records of a user.
        fingerprint: of the record set.
        store: where it lay when the budget was set, for people.
        orders: of the filter.
        shares: of delta.
        distinct: budgets of other record sets that have records of the same names -> why they are others.
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
        RenyiFilter(1.0, 0.5, tuple(self.orders), tuple(self.shares))  # refuses orders and shares that are no filter's
        return self


class Entry(BaseModel):
    """A line behind the first.

    Attributes:
        id: of the entry.
        event: what happened.
        day: UTC, for people.
        number: what counts of several entries about one thing is the one with the largest number.
        epsilon: event ``set``.
        delta: event ``set``.
        of: event ``reserve`` and ``settle``: whose account: the run's id.
        what: the same: ``run``, ``site`` (of a federation), or ``sweep`` (a run of it that has not begun).
        name: the same, for people.
        place: the same: the folder.
        plan: the same: as a ledger's header has it.
        steps: the same: how many are reserved, or were charged.
        cost: the same: of these steps, at the orders of the head; ``None``: infinite.
        instead: event ``reserve``: an account that this one takes the place of.
        why: event ``uncovered``: what was released, and the operator's words.
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
            raise ValueError(f"an entry '{self.event}' has {', '.join(needed)}")
        if self.plan is not None:
            try:
                PrivacyPlan.from_dict(self.plan)
            except (TypeError, UserError) as error:
                raise ValueError(f"an entry has a plan: {error}") from None
        return self

    @property
    def curve(self) -> RenyiCurve:
        """The cost, with infinity where none is known."""
        return tuple(float("inf") if value is None else max(0.0, value) for value in self.cost or ())

    @classmethod
    def new(cls, event: Event, **fields: Any) -> Entry:
        """An entry of today."""
        day = datetime.datetime.now(datetime.UTC).date().isoformat()
        return cls(id=secrets.token_hex(8), event=event, day=day, **fields)


@dataclass(frozen=True)
class Account:
    """What a run holds of a budget, or has spent.

    Attributes:
        id: of the run.
        what: ``run``, ``site`` or ``sweep``.
        name: for people.
        place: its folder.
        plan: what it promises.
        steps: reserved, or charged where it is settled.
        cost: of these steps.
        settled: whether no step can follow.
        number: of its latest entry.
        least: the most steps that it was settled with.
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
    """What a budget's ledger says.

    Attributes:
        head: its first line.
        entries: the others, in the order of the file.
    """

    head: Head
    entries: tuple[Entry, ...] = ()

    @functools.cached_property
    def filter(self) -> RenyiFilter:
        """The budget as it is now.

        Raises:
            UserError: if no entry says it.
        """
        if not self.sets:
            raise UserError(f"the ledger of budget {self.head.id} lacks the line that set it: restore a backup. [budget-lost]")
        latest = max(self.sets, key=lambda entry: (entry.number, -(entry.epsilon or 0.0)))
        assert latest.epsilon is not None and latest.delta is not None  # an entry is complete
        return RenyiFilter(latest.epsilon, latest.delta, tuple(self.head.orders), tuple(self.head.shares))

    @functools.cached_property
    def accounts(self) -> dict[str, Account]:
        """By the run's id; those whose place another one has taken are left out."""
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
        """Accounts whose place another one has taken."""
        return {entry.instead for entry in self._of("reserve") if entry.instead}

    @property
    def spent(self) -> RenyiCurve:
        """The cost of all that was released, and of all that is reserved."""
        return added((account.cost for account in self.accounts.values()), len(self.head.orders))

    @property
    def uncovered(self) -> list[Entry]:
        """What was released without being counted."""
        return self._of("uncovered")

    @property
    def sets(self) -> list[Entry]:
        """How the budget was set."""
        return self._of("set")

    def lacks(self, other: BudgetLedger) -> list[Entry]:
        """The entries of another copy that this one does not have."""
        own = {entry.id for entry in self.entries}
        return [entry for entry in other.entries if entry.id not in own]

    def with_entries(self, entries: list[Entry]) -> BudgetLedger:
        """The same with further entries."""
        return BudgetLedger(self.head, (*self.entries, *entries))

    def _of(self, event: Event) -> list[Entry]:
        return [entry for entry in self.entries if entry.event == event]


def _rank(entry: Entry) -> tuple[int, int]:
    return entry.number, entry.steps or 0


def _account(entry: Entry, most: Entry | None) -> Account:
    """What the latest entry says, and no less than what was settled most: a run may have gone on in two places."""
    least = (most.steps or 0) if most else 0
    counts = most if most is not None and least > (entry.steps or 0) else entry
    of, what, name, place = (str(value) for value in (entry.of, entry.what, entry.name, entry.place))
    plan, settled = PrivacyPlan.from_dict(entry.plan or {}), entry.event == "settle"
    return Account(of, what, name, place, plan, counts.steps or 0, counts.curve, settled, entry.number, least)
