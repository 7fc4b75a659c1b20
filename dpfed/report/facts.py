"""What a privacy card states, as values: the caller reads them from the run, `dpfed.report.card` words them."""

from __future__ import annotations

from dataclasses import dataclass

from dpfed.report.marks import NOT_PROTECTED, Mark


@dataclass(frozen=True)
class CardFacts:
    """All that a card states.

    Attributes:
        name: of the run.
        version: of dpfed.
        unit: of privacy, such as ``one record: an image with its captions``.
        protected: the unit in a word: ``record``, or what records share, such as ``person``.
        adjacency: such as ``add or remove one record``.
        trained: what is trained and from where, such as ``all 234,567 parameters; starting weights: random``.
        epsilon_spent: for the steps charged so far.
        epsilon_planned: for all planned steps.
        delta: of the promise.
        accountant: that computed epsilon.
        other_accountant: that cross-checks it.
        other_epsilon: its epsilon for the steps charged, None where there is none.
        steps_charged: steps in the ledger.
        steps_planned: T.
        records: N, of records or units, public.
        sampler: such as ``Poisson: every record independently``.
        sampling_rate: q.
        expected_batch: B = qN.
        method: what is clipped and how far one record can move it.
        options: the method's own public numbers.
        released: the noise of statistics that the method releases besides, if it does.
        sound: whether the method's claim holds; a run of one that does not gets no card, but a page that says so.
        grouping: how sampled records come into groups.
        groups: K, public.
        group_size: S, expected; ``None``: no groups are drawn.
        max_group_size: the cap, None where there is none.
        clip_norm: C; infinity where nothing was clipped.
        clipping: what else there is to know of clipping, such as ``every gradient is normalised to it``.
        noise_multiplier: sigma.
        sensitivity: most that one record or unit moves the sum, L2; normally 2C.
        noise_std: sigma times the sensitivity.
        trust_mode: who sees what.
        noise: its kind, such as ``Gaussian, in floating point``.
        noise_from: who adds the noise, such as ``added once a step``.
        sites: of a federation, a line each.
        outputs: what leaves the trust boundary.
        marks: what a reader must know beyond this.
        not_protected: what the guarantee leaves out.
        complete: all planned steps are done.
        secrets: what must stay secret, and who has it.
        budget: the lifetime budget of the records, in words.
        audit: what attacks on the claim showed, in words; empty: nobody attacked it.
        provenance: which run this is, of which records, made with what: names and values.
    """

    name: str
    version: str
    unit: str
    protected: str
    adjacency: str
    trained: str
    epsilon_spent: float
    epsilon_planned: float
    delta: float
    accountant: str
    other_accountant: str
    other_epsilon: float | None
    steps_charged: int
    steps_planned: int
    records: int
    sampler: str
    sampling_rate: float
    expected_batch: int
    method: str
    grouping: str
    groups: int
    group_size: int | None
    max_group_size: int | None
    clip_norm: float
    noise_multiplier: float
    sensitivity: float
    noise_std: float
    trust_mode: str
    outputs: tuple[str, ...]
    noise: str = "Gaussian, in floating point"
    noise_from: str = "added once a step"
    sites: tuple[str, ...] = ()
    marks: tuple[Mark, ...] = ()
    not_protected: tuple[str, ...] = NOT_PROTECTED
    complete: bool = True
    options: str = ""
    released: str = ""
    clipping: str = ""
    sound: bool = True
    secrets: tuple[str, ...] = ()
    budget: str = ""
    audit: str = ""
    provenance: tuple[tuple[str, str], ...] = ()

    @property
    def of_units(self) -> bool:
        """Whether all records of a unit, such as a person, are protected together."""
        return self.protected != "record"

    @property
    def one(self) -> str:
        """Whom the guarantee is about, in words."""
        return f"{self.protected} with all its records" if self.of_units else "training record"
