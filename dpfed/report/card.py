"""The privacy card: what a run guarantees, to whom, and what it does not, in Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal

from dpfed.errors import UserError

NO_GUARANTEE = "no privacy guarantee holds"
_CARD, _NO_CARD = "# Privacy card of ", "# No privacy card for "  # titles

STARTING_WEIGHTS = "The starting weights: the guarantee does not cover what they were trained on, unless that is public."
NOT_PROTECTED = (
    "Evaluation figures: they are exact functions of held-out records and labels.",
    "Hyper-parameter search: other runs on the same records spend budget that this card does not contain.",
    "The public figures: N, q, K, T, C and sigma are known to everyone.",
    "Whoever holds the run's secret key can compute the noise again and take it off.",
    "Floating-point Gaussian noise: the proof is about real numbers; no defence against attacks on the last bits is claimed.",
    "Timing: how long a step takes can depend on the records that it drew.",
)


@dataclass(frozen=True)
class Mark:
    """Something that a reader of the card must know.

    Attributes:
        text: one sentence.
        voids: True when no guarantee holds because of it.
    """

    text: str
    voids: bool = False


FIXED_SEED = Mark("The seed was fixed: anyone can compute the noise again, so no privacy is guaranteed.", voids=True)
RAW_DIAGNOSTICS = Mark(
    "Raw diagnostics were written: losses, norms or clip rates without noise. Epsilon does not cover whoever sees those files."
)
LABELLED_BANK = Mark(
    "k-NN and linear-probe figures are exact functions of labelled training records, too. Epsilon does not cover whoever sees "
    "those figures; the model itself is covered."
)
NOT_PRIVATE = Mark(
    "The run was trained without privacy, as a reference (bounding.method = 'none'): nothing was clipped, no noise was added.",
    voids=True,
)
UNSOUND = Mark(
    "The method was run as it was published, for comparison, and its claim does not hold (docs/methods.md says why).",
    voids=True,
)


def shared_unit(name: str) -> Mark:
    """For records that name what they share, such as a person, where each record is protected for itself."""
    return Mark(
        f"The records name a {name}, and several of them may share one {name}: epsilon is for one record, so a {name} with m "
        f"records has m times that epsilon, with a delta that grows with m, too. privacy.unit = 'unit' protects the {name}."
    )


@dataclass(frozen=True)
class CardFacts:
    """All that a card states; the caller reads it from the run, the card only words it.

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
        group_size: S, expected; ``None``: the whole batch is contrasted.
        max_group_size: the cap, None where there is none.
        clip_norm: C; infinity where nothing was clipped.
        noise_multiplier: sigma.
        sensitivity: most that one record or unit moves the sum, L2; normally 2C.
        noise_std: sigma times the sensitivity.
        trust_mode: who sees what.
        noise_from: who adds the noise, such as ``added once a step``.
        sites: of a federation, a line each.
        outputs: what leaves the trust boundary.
        marks: what a reader must know beyond this.
        not_protected: what the guarantee leaves out.
        complete: all planned steps are done.
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
    noise_from: str = "added once a step"
    sites: tuple[str, ...] = ()
    marks: tuple[Mark, ...] = ()
    not_protected: tuple[str, ...] = NOT_PROTECTED
    complete: bool = True
    options: str = ""
    released: str = ""
    sound: bool = True


def privacy_card(facts: CardFacts) -> str:
    """Words the facts of a run as Markdown.

    A run whose marks void the guarantee, or whose epsilon is not finite, gets a card whose first line says so and that
    gives epsilon only as a figure of the accountant.
    """
    reasons = _voids(facts)
    title = _CARD if facts.sound else _NO_CARD
    lines = [f"{title}{facts.name}" + (f": {NO_GUARANTEE}" if reasons else ""), ""]
    lines += list(_void_lead(reasons) if reasons else _lead(facts))
    lines += list(_reservations(facts))
    lines += ["", "## The mechanism", "", "| | |", "|---|---|"]
    lines += [f"| {_cell(name)} | {_cell(value)} |" for name, value in _rows(facts, bool(reasons))]
    if facts.sites:
        lines += ["", "## The sites", ""]
        lines += [f"- {site}" for site in facts.sites]
    lines += ["", "## What leaves the trust boundary", ""]
    lines += [f"- {item}" for item in facts.outputs] or ["- Nothing."]
    lines += ["", "## What is not protected", ""]
    lines += [f"- {item}" for item in facts.not_protected]
    return "\n".join(lines) + "\n"


def is_void(markdown: str) -> bool:
    """Whether a card says, in its first line, that no guarantee holds."""
    return NO_GUARANTEE in markdown.partition("\n")[0]


def lead(markdown: str) -> str:
    """The paragraph of a card that states the guarantee, or why there is none.

    Raises:
        UserError: for a text that is not a privacy card.
    """
    parts = markdown.split("\n\n")
    if len(parts) < 2 or not parts[0].startswith((_CARD, _NO_CARD)):
        raise UserError("this is not a privacy card: expected a title '# Privacy card of ...' and a paragraph under it.")
    return parts[1].replace("**", "").strip()


def round_up(value: float) -> str:
    """A privacy loss for people: two decimals, or three significant digits when small, and never below its value."""
    if not math.isfinite(value) or value == 0:
        return f"{value:g}"
    # repr() is the number that was meant: 1e-05, not the 1.00000000000000008e-05 that the machine holds.
    exact = Decimal(repr(value))
    last = -2 if value >= 0.1 else exact.adjusted() - 2
    rounded = exact.quantize(Decimal(1).scaleb(last), rounding=ROUND_CEILING)
    if value >= 1e-3:
        return f"{rounded:f}"
    mantissa, _, exponent = f"{rounded:e}".partition("e")
    return f"{mantissa}e{int(exponent)}"


def _voids(facts: CardFacts) -> list[str]:
    reasons = [mark.text for mark in facts.marks if mark.voids]
    if not reasons and not math.isfinite(facts.epsilon_spent):
        reasons.append("No finite epsilon covers what was released: the noise was too small or missing.")
    return reasons


def _void_lead(reasons: list[str]) -> Iterator[str]:
    yield f"**{NO_GUARANTEE.capitalize()}.** {' '.join(reasons)} Treat everything that this run wrote as private."


def _lead(facts: CardFacts) -> Iterator[str]:
    epsilon, delta = round_up(facts.epsilon_spent), round_up(facts.delta)
    of_units = facts.protected != "record"
    missing = f"all records of any one {facts.protected}" if of_units else "any one training record"
    yield (
        f"**This run is ({epsilon}, {delta})-differentially private for {facts.unit}.** "
        f"Its model, checkpoints and ledger would be almost as likely if {missing} had not been there."
    )
    yield ""
    # (e^eps + delta) / (1 + e^eps): most that any test between two neighbouring data sets can get right, from even odds.
    bound = float(epsilon)
    guess = (1 + facts.delta * math.exp(-bound)) / (1 + math.exp(-bound))
    yield (
        f"In numbers: no likelihood changes by more than a factor e^{epsilon} = {_factor(bound)}, up to an "
        f"additive {delta}. Somebody who knows all other records and starts from even odds can tell, in at most "
        f"{_percent_up(guess)} of cases, whether one {facts.protected} was there. This is a bound for the worst case; as a "
        "rule of thumb, epsilon up to 1 is strong, up to 10 usual in practice, and above 10 weak (Ponomareva et al. 2023, How "
        "to DP-fy ML)."
    )
    yield ""
    less = "A person with several records is protected less: m records multiply epsilon by m, and delta grows with it."
    if of_units:
        less = (
            f"Records count together where they name the same {facts.protected}; a {facts.protected} under m names is "
            "protected less: m multiplies epsilon, and delta grows with it."
        )
    yield f"{less} The guarantee does not say that nothing is learnt about people in general."


def _reservations(facts: CardFacts) -> Iterator[str]:
    if not facts.complete:
        yield ""
        yield (
            f"**The run is not complete**: {facts.steps_charged} steps are charged of {facts.steps_planned} planned; going on "
            "spends more."
        )
    for mark in facts.marks:
        if not mark.voids:
            yield ""
            yield f"**Mark:** {mark.text}"


def _rows(facts: CardFacts, void: bool) -> Iterator[tuple[str, str]]:
    # A voided card has these figures too, since they check the accounting, but never under the name of a promise.
    prefix = "Accountant's figure, not a guarantee: epsilon" if void else "Epsilon"
    yield f"{prefix} spent", f"{round_up(facts.epsilon_spent)} ({facts.accountant})"
    yield f"{prefix} planned", round_up(facts.epsilon_planned)
    yield "Delta", round_up(facts.delta)
    if facts.other_epsilon is not None:
        yield "Cross-check", f"{round_up(facts.other_epsilon)} ({facts.other_accountant})"
    yield "Unit of privacy", facts.unit
    yield "Adjacency", facts.adjacency
    yield "Steps charged", f"{facts.steps_charged} of {facts.steps_planned} planned"
    yield "Complete", "yes" if facts.complete else "no"
    yield "Trained", facts.trained
    yield f"Training {'records' if facts.protected == 'record' else 'units'} N (public)", f"{facts.records:,}"
    yield "Sampler", f"{facts.sampler}; q = {facts.sampling_rate:.6g}, expected batch {facts.expected_batch:,}"
    yield "Method", facts.method
    if facts.options:
        yield "Numbers of the method (public)", facts.options
    yield "Grouping", facts.grouping
    if facts.group_size is not None:
        yield "Groups K (public)", f"{facts.groups:,}"
        yield (
            "Expected group size S",
            str(facts.group_size)
            + ("" if facts.max_group_size is None else f", at most {facts.max_group_size} of a group's own records"),
        )
    if math.isfinite(facts.clip_norm):
        yield "Clip norm C", f"{facts.clip_norm:g}"
        yield "Sensitivity of the sum" + ("" if facts.sound else ", as claimed"), f"{facts.sensitivity:g}"
        yield "Noise multiplier sigma", f"{facts.noise_multiplier:.6g}"
        yield "Noise standard deviation", f"{facts.noise_std:.6g} on the sum, {facts.noise_from}"
        if facts.released:
            yield "Released statistics", facts.released
    else:
        yield "Clipping and noise", "none: the sum has no bound and no noise"
    yield "Trust", facts.trust_mode
    yield "Written by", f"dpfed {facts.version}"


def _factor(epsilon: float) -> str:
    if epsilon > 15:
        return f"10^{epsilon / math.log(10):.1f}"
    factor = math.exp(epsilon)
    return f"{factor:,.0f}" if factor >= 100 else f"{factor:.2f}"


def _percent_up(share: float) -> str:
    # More digits as certainty nears, so that 99.97 % is not printed as 100.
    digits = 2 if share <= 0.9998 else 4
    return f"{min(100.0, math.ceil(share * 100 * 10**digits) / 10**digits):.{digits}f} %"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
