"""Writes the privacy card, in Markdown: a run's guarantee, whom it protects, and what it does not cover."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from dpfed import __version__
from dpfed.errors import UserError
from dpfed.privacy.promise import factor, guess, large_delta, meaning, of_several, round_up
from dpfed.report.facts import STARTING_WEIGHTS, CardFacts

if TYPE_CHECKING:
    from dpfed.privacy.plan import PrivacyPlan

NO_GUARANTEE = "no privacy guarantee holds"
_CARD, _NO_CARD = "# Privacy card of ", "# No privacy card for "  # titles
_MARK = "**Mark:** "


def privacy_card(facts: CardFacts) -> str:
    """Returns the facts of a run as Markdown.

    If a mark (`dpfed.report.facts.Mark`) voids the guarantee, or epsilon is not finite, the first line says that no guarantee
    holds. The run's epsilons then appear in two places only: in rows that call them the accountant's figures, not a guarantee,
    and in the result of an audit.
    """
    reasons = void_reasons(facts)
    title = _CARD if facts.plan.bounding.method.sound else _NO_CARD
    lines = [f"{title}{facts.name}" + (f": {NO_GUARANTEE}" if reasons else ""), ""]
    void = f"**{NO_GUARANTEE.capitalize()}.** {' '.join(reasons)} Treat everything that this run wrote as private."
    lines += [void if reasons else _lead(facts)]
    lines += list(_reservations(facts, bool(reasons)))
    if not reasons:
        lines += _section("What the numbers mean", _numbers(facts))
        lines += _section("Who is protected, and from whom", _protected(facts))
        if facts.secrets:
            lines += _section("What must stay secret", facts.secrets)
    lines += _section("What leaves the trust boundary", facts.outputs or ("Nothing.",))
    lines += _section("What is not protected", facts.not_protected)
    if not reasons:
        lines += _section("What to ask before you rely on this card", questions(facts))
    if facts.sites:
        lines += _section("The sites", facts.sites)
    lines += ["", "## The mechanism", *_table(_rows(facts, bool(reasons)))]
    if facts.provenance:
        lines += ["", "## The run", *_table(facts.provenance)]
    return "\n".join(lines) + "\n"


def void_reasons(facts: CardFacts) -> list[str]:
    """Returns the reasons why no guarantee holds, each in a sentence or two; empty if the guarantee holds."""
    reasons = [mark.text for mark in facts.marks if mark.voids]
    if not reasons and not math.isfinite(facts.epsilon_spent):
        reasons = ["No finite epsilon covers what was released: the noise was too small or missing."]
    return reasons


def _section(title: str, items: Iterable[str]) -> list[str]:
    return ["", f"## {title}", "", *(f"- {item}" for item in items)]


def _table(rows: Iterable[tuple[str, str]]) -> list[str]:
    return ["", "| | |", "|---|---|", *(f"| {_cell(name)} | {_cell(value)} |" for name, value in rows)]


def card_digest(markdown: str) -> str:
    """Returns the SHA-256 of a card, as stored in the run's ledger."""
    return hashlib.sha256(markdown.encode()).hexdigest()


def table_rows(markdown: str) -> dict[str, str]:
    """Returns the values in a card's tables, by the names of their rows."""
    rows = (re.fullmatch(r"\| (.+?) \| (.+) \|", line) for line in markdown.splitlines())
    return {row[1].replace("\\|", "|"): row[2].replace("\\|", "|") for row in rows if row}


def is_void(markdown: str) -> bool:
    """Returns whether the first line of a card says that no guarantee holds."""
    return NO_GUARANTEE in markdown.partition("\n")[0]


def lead(markdown: str) -> str:
    """Returns the paragraph of a card that states the guarantee, or why there is none.

    Raises:
        UserError: If the text is not a privacy card.
    """
    parts = markdown.split("\n\n")
    if len(parts) < 2 or not parts[0].startswith((_CARD, _NO_CARD)):
        raise UserError("not a privacy card: expected a title '# Privacy card of ...' and a paragraph. [report-card-odd]")
    return parts[1].replace("**", "").strip()


def marks_of(markdown: str) -> list[str]:
    """Returns a card's marks: what a reader must know in addition to the guarantee. Marks that void it are left out."""
    return [line.removeprefix(_MARK) for line in markdown.splitlines() if line.startswith(_MARK)]


def _lead(facts: CardFacts) -> str:
    epsilon, delta = round_up(facts.epsilon_spent), round_up(facts.plan.promise.delta)
    warning = large_delta(facts.plan.promise.delta, facts.plan.sampling.records, facts.protected)
    subject = "This run is" if facts.complete else "This run is not complete. So far it is"
    promise = f"**{subject} ({epsilon}, {delta})-differentially private for {facts.unit}.**"
    words = meaning(facts.epsilon_spent, facts.plan.promise.delta, facts.one, "what this run released")
    return " ".join(part for part in (warning and f"**{warning}**", promise, words) if part)


def _reservations(facts: CardFacts, void: bool) -> Iterator[str]:
    if not facts.complete:
        more = f" If the run is resumed, it spends more, up to epsilon {round_up(facts.plan.epsilon())}."
        yield ""
        yield (
            f"**The run is not complete**: {facts.steps_charged} of {facts.plan.steps} planned steps are charged."
            + ("" if void else more)
        )
    for mark in facts.marks:
        if not mark.voids:
            yield ""
            yield f"{_MARK}{mark.text}"


def _numbers(facts: CardFacts) -> Iterator[str]:
    epsilon, delta = round_up(facts.epsilon_spent), round_up(facts.plan.promise.delta)
    bound, one, records = float(epsilon), facts.protected, facts.plan.sampling.records
    yield (
        f"Epsilon {epsilon}: one {facts.one} changes the probability of any result by a factor of at most e^{epsilon} = "
        f"{factor(bound)}, up or down. Smaller is better; 0 would be perfect."
    )
    yield (
        f"Delta {delta}: beyond that factor, the probability of a result may differ by {delta}. Delta should be far below "
        f"1/N = 1/{records:,}; it is {_part(facts.plan.promise.delta * records)}."
    )
    yield (
        f"Odds: somebody knows all other records, and gives even odds that one {one} was there. After seeing the results, this "
        f"person is right in at most {guess(bound, facts.plan.promise.delta)} of cases. 50 % is guessing, 100 % is certainty."
    )
    several, what = [], "names" if facts.of_units else "records"
    for count in (2, 5):
        worth = of_several(facts.epsilon_spent, facts.plan.promise.delta, count)
        promised = None if worth is None else f"epsilon is {round_up(worth[0])} and delta {round_up(worth[1])}"
        several.append(f"with {count} {what}, {promised or 'nothing is promised'}")
    if facts.of_units:
        yield f"Several names: records that name the same {one} count together. For a {one} {'; '.join(several)}."
    else:
        yield f"Several records: epsilon and delta are for one record. For a person {'; '.join(several)}."
    yield (
        "For comparison: Ponomareva et al. (2023, How to DP-fy ML) call epsilon up to 1 strong, up to 10 reasonable, and above "
        "10 weak or none. The figures of this section are bounds for the worst case, not measurements."
    )


def _protected(facts: CardFacts) -> Iterator[str]:
    whom = f"each of the {facts.plan.sampling.records:,} training {'units' if facts.of_units else 'records'}, taken alone"
    yield f"Protected: {whom}. Not protected: the held-out records, which serve to measure the model."
    yield (
        "From whom: everybody who sees the covered outputs (below). The promise holds whatever else they know, and whatever "
        "they do with it, now or later."
    )
    yield (
        f"Those who take part may see more. The mode of trust was {facts.trust_mode}. Anybody who runs a machine, or "
        "breaks into it, can read the records and the sums without noise on that machine."
    )
    yield (
        "Not promised: that nothing is learnt about people in general. The model may learn what holds for many records. Such "
        "patterns may also apply to somebody whose records were never there."
    )


def questions(facts: CardFacts) -> Iterator[str]:
    """Yields the questions that a reader should ask before relying on a run."""
    yield (
        "What else was trained on the same records, or published from them? Each training weakens the protection, and all "
        "their epsilons and deltas add up; this promise is for one run alone."
    )
    if facts.of_units:
        yield f"Is each {facts.protected} in the records one person, under one name only?"
    else:
        yield "Can one person have several of the records? Then that person is protected less, as said above."
    yield "Who could read the records, the machines and the run's folder during training? Who has backups of them?"
    yield "Who sees the evaluation figures? Whose records are the held-out ones?"
    if STARTING_WEIGHTS in facts.not_protected:
        yield "What were the starting weights trained on, and may the model reveal something about those data?"
    what, records = "units" if facts.of_units else "records", facts.plan.sampling.records
    yield f"Everybody may learn that there were {records:,} {what} (N). Could that number alone harm anyone?"


def _part(share: float) -> str:
    if share >= 0.5:
        return f"{round_up(share)} times that"
    return f"1/{math.floor(1 / share):,} of that" if share else "0"


def _rows(facts: CardFacts, void: bool) -> Iterator[tuple[str, str]]:
    plan, sampling, method = facts.plan, facts.plan.sampling, facts.plan.bounding.method
    # The card of a voided run has these figures too, to check the accounting, but they are not called a promise.
    figure = "Accountant's figure, not a guarantee: " if void else ""
    prefix = f"{figure}epsilon" if void else "Epsilon"
    yield f"{prefix} spent", f"{round_up(facts.epsilon_spent)} ({plan.promise.accountant})"
    yield f"{prefix} planned", round_up(plan.epsilon())
    yield "Delta", round_up(plan.promise.delta)
    if facts.other_epsilon is not None:
        name = f"{figure}cross-check" if void else "Cross-check"
        yield name, f"{round_up(facts.other_epsilon)} ({facts.other_accountant})"
    if facts.budget:
        yield "Lifetime budget of the records", facts.budget
    if facts.audit:
        yield "Audit of the claim (`dpfed audit privacy`)", facts.audit
    yield "Unit of privacy", facts.unit
    yield "Adjacency", plan.mechanism.sampler.relation.describe(facts.protected, plan.promise.unit == "user")
    yield "Steps charged", f"{facts.steps_charged} of {plan.steps} planned"
    yield "Complete", "yes" if facts.complete else "no"
    yield "Trained", facts.trained
    yield f"Training {'units' if facts.of_units else 'records'} N (public)", f"{sampling.records:,}"
    yield "Sampler", f"{facts.sampler}; q = {sampling.rate:.6g}, expected batch {sampling.batch:,}"
    yield "Method", f"{method.title}: {method.claim}"
    if facts.options:
        yield "Numbers of the method (public)", facts.options
    yield "Grouping", facts.grouping
    yield from _bounds(facts)
    yield "Trust", facts.trust_mode
    yield "Card written by", f"dpfed {__version__}"


def _bounds(facts: CardFacts) -> Iterator[tuple[str, str]]:
    plan, bounding = facts.plan, facts.plan.bounding
    if not (bounding.method.whole_batch or bounding.method.singleton_groups):
        most = "" if bounding.cap is None else f", at most {bounding.cap} of a group's own records"
        yield "Groups K (public)", f"{plan.groups:,}"
        yield "Expected group size S", f"{bounding.group_size}{most}"
    if not plan.private:
        yield "Clipping and noise", "none: the sum has no bound and no noise"
        return
    rule, released = _clipping(plan), _released(plan)
    yield "Clip norm C", f"{bounding.clip_norm:g}" + (f"; {rule}" if rule else "")
    yield "Sensitivity of the sum" + ("" if bounding.method.sound else ", as claimed"), f"{plan.sensitivity:g}"
    yield "Noise multiplier sigma", f"{plan.noise.multiplier:.6g}"
    yield "Noise", facts.noise
    yield "Noise standard deviation", f"{plan.noise_std:.6g} on the sum, {facts.noise_from}"
    if released:
        yield "Released statistics", released


def _clipping(plan: PrivacyPlan) -> str:
    """Describes how gradients are bounded, if they are not simply clipped to C; empty otherwise."""
    if plan.bounding.method.closed_form:
        parts = (f"{plan.sensitivity_of(step):.6g} in step {step}" for step in range(plan.steps))
        return (
            "features are scaled to an L2 norm of 1, and a record's contribution to a sum has an L2 norm of at most "
            f"{' and '.join(parts)}; both sums get noise of the same standard deviation"
        )
    if plan.bounding.clipping == "automatic":
        return f"every gradient is normalised: multiplied by C / (its norm + {plan.bounding.stability:g})"
    if plan.bounding.clipping == "adaptive" and plan.progress is not None:
        return (
            f"gradients are clipped to a threshold that starts at C and then follows the {plan.progress.quantile:g} quantile "
            "of all norms, as estimated from noisy counts; each sum is multiplied by C / threshold, so it has the same "
            "sensitivity as with clipping to C"
        )
    return ""


def _released(plan: PrivacyPlan) -> str:
    """Describes the figures that are released besides the gradients, and their noise; empty if there are none."""
    if plan.progress is not None:
        share = plan.progress.share
        return (
            "in every step, the groups' mean loss and how many of their gradients have norms below thresholds, in the same "
            "noisy sum as the gradients. A release of these figures alone would have noise multiplier "
            f"{plan.noise.multiplier / math.sqrt(share):.6g}, a release of the gradients alone "
            f"{plan.noise.multiplier / math.sqrt(1 - share):.6g}; together they cost as much as one release with "
            "noise multiplier sigma"
        )
    rest = 1 - plan.gradient_share
    if not rest:
        return ""
    return (
        f"statistics of the batch, with noise multiplier {plan.noise.multiplier / math.sqrt(rest):.6g}; statistics and sum of "
        "gradients together cost as much as one release with noise multiplier sigma"
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
