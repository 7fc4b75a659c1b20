"""The facts that a privacy card states, as values. The caller reads them from the run; `dpfed.report.card` writes the card.

This module also has the texts of marks (statements that a reader must know besides the promise), and the texts about what no
promise covers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

STARTING_WEIGHTS = (
    "The starting weights: the guarantee does not cover the data that they were trained on. This matters unless these data are "
    "public."
)
AUDITS = (
    "The audits of this run (`dpfed audit`): the figures in `audit/` are exact functions of training records. Epsilon does not "
    "cover them."
)
PUBLIC_RECORDS = (
    "The public records that join every group: the model may remember them. dpfed cannot check that they were chosen without "
    "looking at the training records."
)
BASIS_RECORDS = (
    "The public records of the basis: the model holds the mean and main directions of their features. dpfed cannot check that "
    "they were chosen without looking at the training records."
)
DECLARED_PUBLIC = (
    "The records need not be kept secret: dpfed generated them, or the person who imported them declared them public."
)
LAST_BITS = (
    "The last bits of the noise: the proof is about real numbers, but the Gaussian noise is in floating point. dpfed claims no "
    "defence against attacks on these bits. privacy.noise = 'discrete' closes this gap."
)
ASSUMED_OF_BITS = (
    "A failure of one of the proof's two assumptions: on this device, what a group adds to the sum does not depend on other "
    "groups, not even in its last bits; and nobody can distinguish the output of AES-256 from uniform bits."
)
SHARED_PASSES = (
    "A machine on which a group's gradient depends on the groups computed with it (bounding.engine = 'layerwise'): the proof "
    "assumes that there is no such machine. Each machine was checked on generated groups before the first private ones; this "
    "is not a proof. bounding.engine = 'loop' computes every group by itself."
)
OTHER_RUNS = (
    "Other runs on the same records, such as a search for good settings, even if they were thrown away: they spend budget "
    "that this card does not count."
)
NOT_PROTECTED = (
    "Evaluation figures: they are exact functions of held-out records and labels.",
    OTHER_RUNS,
    "The public numbers: N (training records or units), q (sampling rate), K (groups), T (steps), C (clip norm) and sigma "
    "(noise multiplier) are known to everyone.",
    "Anything, against somebody who has a copy of the run's secret key: they can compute the noise again and subtract it.",
    LAST_BITS,
    "Timing: how long a step takes can depend on its records. Somebody who watches the machine, or sees the times of the run's "
    "files, may learn something about these records.",
    "Stops: a record that can no longer be read, or that makes a worker crash, stops the run in a step that needs it. The stop "
    "reveals that it was there.",
)


@dataclass(frozen=True)
class Mark:
    """A statement that a reader of the card must know.

    Attributes:
        text: Text of the mark.
        voids: Whether no guarantee holds because of the mark.
    """

    text: str
    voids: bool = False


FIXED_SEED = Mark("The seed was fixed: anyone can compute the noise again, so no privacy is guaranteed.", voids=True)
LABELLED_BANK = Mark(
    "k-NN and linear-probe figures are also exact functions of labelled training records. Epsilon covers the model itself, but "
    "not these figures."
)
NOT_PRIVATE = Mark(
    "The run was trained without privacy, as a reference (bounding.method = 'none'): nothing was clipped, no noise was added.",
    voids=True,
)
UNSOUND = Mark(
    "The method was run as it was published, for comparison. Its claim does not hold (docs/methods.md says why).", voids=True
)


def foreign_method(said: str) -> Mark:
    """Returns the mark for a bounding method from another package.

    Args:
        said: Name, package, version and hash of the method.
    """
    return Mark(
        f"The method {said} comes from another package, and dpfed has not checked its proof. So dpfed claims no guarantee.",
        voids=True,
    )


CONTRADICTED = Mark(
    "An audit contradicts the claim: attacks on the mechanism found out more than its epsilon allows, or one record moved the "
    "sum by more than the sensitivity (`privacy_audit.json`).",
    voids=True,
)


def started_privately(run: str, data: str, epsilon: str, delta: str) -> Mark:
    """Returns the mark for a run that starts from the weights of another private run."""
    return Mark(
        f"The starting weights are those of the private run {run} on {data} (epsilon {epsilon}, delta {delta}). For a record "
        "that was in both runs, the epsilons add up, and so do the deltas. This card states only those of this run."
    )


def foreign_loss(said: str) -> str:
    """Returns the statement about a loss from another package.

    Args:
        said: Name, package, version and hash of the loss.
    """
    return (
        f"What the loss {said} remembers. The guarantee assumes that it computes a group's loss from that group's embeddings "
        "alone. dpfed gives it nothing else, but cannot check that it keeps nothing from one group for the next."
    )


_OWN_PARTS = {
    "data.source": (
        "Faults of the data set {said}. The guarantee assumes that each item is a function of its own record. Every item was "
        "read, some of them twice and in another order, with equal results. A data set that changes later, or rarely, would "
        "not be noticed."
    ),
    "views.transform": (
        "Faults of the transform {said}. The guarantee assumes that a view is a function of its image and of the random "
        "numbers that the record draws. The transform was tried twice, in another order, one by one and in another process, "
        "and gave the same bits. What it does rarely would not be noticed."
    ),
    "model.image": (
        "Faults of the model with {said}. The guarantee assumes that it embeds each record by itself. It was tried on random "
        "inputs: no embedding changed when another input changed. What it does rarely, or with other inputs, would not be "
        "noticed."
    ),
    "objective.name": (
        "Faults of the loss {said}. The guarantee assumes that it keeps nothing from one group for the next. It sees one group "
        "at a time, and gave the same value again after other groups."
    ),
}


def own_part(key: str, said: str) -> str | None:
    """Returns the statement about a user's own part; ``None``: nothing is assumed of it, because it sees noisy sums only.

    Args:
        key: Key of the part in the configuration.
        said: Name, version and hash of the part.
    """
    return _OWN_PARTS[key].format(said=said) if key in _OWN_PARTS else None


def shared_unit(name: str) -> Mark:
    """Returns the mark for records that share units, such as persons, in a run that protects each record individually."""
    return Mark(
        f"The records name a {name}, and several of them may share one {name}. Epsilon is for one record: a {name} with m "
        f"records has m times that epsilon, and a delta that also grows with m. privacy.unit = 'user' protects the {name}."
    )


if TYPE_CHECKING:
    from dpfed.privacy.plan import PrivacyPlan


@dataclass(frozen=True)
class CardFacts:
    """All facts that a card states.

    Attributes:
        name: Name of the run.
        plan: Plan of the run, from which all further numbers follow.
        unit: Privacy unit, such as ``one record: an image with its captions``.
        protected: Privacy unit in a word: ``record``, or the kind of unit, such as ``person``.
        trained: Trained parameters and their starting weights, such as ``all 234,567 parameters; starting weights: random``.
        epsilon_spent: Epsilon of the steps charged so far.
        other_accountant: Name of the second accountant, which cross-checks epsilon.
        other_epsilon: Epsilon of the second accountant for the steps charged; ``None``: epsilon is not cross-checked.
        steps_charged: Number of charged steps in the ledger.
        sampler: Description of the sampler, such as ``Poisson: every record is drawn independently``.
        grouping: Description of how sampled records are assigned to groups.
        trust_mode: Trust mode, which says who sees what.
        outputs: Outputs that leave the trust boundary.
        noise: Kind of noise, such as ``Gaussian, in floating point``.
        noise_from: Description of who adds the noise, and when, such as ``added once a step``.
        sites: Lines about the sites of a federation, one for each site.
        marks: Marks that a reader must know.
        not_protected: Statements of what the guarantee does not cover.
        options: Further public numbers of the bounding method, in words; empty: the method has none.
        secrets: Statements of what must stay secret, and who has it.
        budget: Lifetime budget of the records, in words.
        audit: Result of attacks on the claim, in words; empty: there was no audit.
        provenance: Names and values that identify the run, its records, and its software.
    """

    name: str
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
        """The unit that the guarantee protects, in words."""
        return f"{self.protected} with all its records" if self.of_units else "training record"
