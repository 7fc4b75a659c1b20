"""What a privacy card states, as values: the caller reads them from the run, `dpfed.report.card` words them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpfed.report.marks import NOT_PROTECTED, Mark

if TYPE_CHECKING:
    from dpfed.privacy.plan import PrivacyPlan


@dataclass(frozen=True)
class CardFacts:
    """All that a card states.

    Attributes:
        name: of the run.
        version: of dpfed.
        plan: of the run, from which all further numbers follow.
        unit: of privacy, such as ``one record: an image with its captions``.
        protected: the unit in a word: ``record``, or what records share, such as ``person``.
        trained: what is trained and from where, such as ``all 234,567 parameters; starting weights: random``.
        epsilon_spent: for the steps charged so far.
        other_accountant: that cross-checks it.
        other_epsilon: its epsilon for the steps charged, None where there is none.
        steps_charged: steps in the ledger.
        sampler: such as ``Poisson: every record independently``.
        options: the method's own public numbers.
        grouping: how sampled records come into groups.
        trust_mode: who sees what.
        noise: its kind, such as ``Gaussian, in floating point``.
        noise_from: who adds the noise, such as ``added once a step``.
        sites: of a federation, a line each.
        outputs: what leaves the trust boundary.
        marks: what a reader must know beyond this.
        not_protected: what the guarantee leaves out.
        secrets: what must stay secret, and who has it.
        budget: the lifetime budget of the records, in words.
        audit: what attacks on the claim showed, in words; empty: nobody attacked it.
        provenance: which run this is, of which records, made with what: names and values.
    """

    name: str
    version: str
    plan: PrivacyPlan
    unit: str
    protected: str
    trained: str
    epsilon_spent: float
    other_accountant: str
    other_epsilon: float | None
    steps_charged: int
    sampler: str
    grouping: str
    trust_mode: str
    outputs: tuple[str, ...]
    noise: str = "Gaussian, in floating point"
    noise_from: str = "added once a step"
    sites: tuple[str, ...] = ()
    marks: tuple[Mark, ...] = ()
    not_protected: tuple[str, ...] = NOT_PROTECTED
    options: str = ""
    secrets: tuple[str, ...] = ()
    budget: str = ""
    audit: str = ""
    provenance: tuple[tuple[str, str], ...] = ()

    @property
    def complete(self) -> bool:
        """Whether all planned steps are charged."""
        return self.steps_charged >= self.plan.steps

    @property
    def of_units(self) -> bool:
        """Whether all records of a unit, such as a person, are protected together."""
        return self.protected != "record"

    @property
    def one(self) -> str:
        """Whom the guarantee is about, in words."""
        return f"{self.protected} with all its records" if self.of_units else "training record"
