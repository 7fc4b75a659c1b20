"""The terms of a federation in plain words: for the operators before they join, and for the privacy card.

The module also collects the facts that a federation adds to the privacy card and report of its run.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator
from pathlib import Path

from dpfed.privacy.accounting import epsilon
from dpfed.privacy.promise import factor, large_delta, meaning, round_up
from dpfed.protocol.journal import Journal
from dpfed.protocol.terms import Terms
from dpfed.protocol.trust import Mode
from dpfed.report.facts import CardFacts, Mark

_SIMULATED = Mark(
    "The institutions were simulated: one process held all records and all keys. Epsilon holds for the model. What this card "
    "says about who sees which data would hold only among real institutions."
)
_NOISE_FROM: dict[Mode, str] = {
    "central": "added once a step, by the server",
    "distributed": "added by the sites together, at least this much in every step",
    "secure": "added by the sites together, at least this much in every step; the rounding of the noisy sums costs no epsilon",
    "local": "added by every site to its own sum",
}


def statement(terms: Terms, own: int | None = None, confirmed: Collection[str] = ()) -> Iterator[tuple[str, str]]:
    """Lists the terms in the order in which an operator reads them.

    Args:
        terms: Terms of the federation.
        own: Number of the site that reads the statement; ``None``: no particular site.
        confirmed: Fingerprints of the cards that this site has confirmed.

    Yields:
        The name and the text of each line.
    """
    plan = terms.privacy_plan
    delta, protected, sampling = plan.promise.delta, plan.promise.protected, plan.sampling
    yield "terms", terms.fingerprint
    if plan.has_guarantee:
        if warning := large_delta(delta, sampling.records, protected):
            yield "warning", warning
        yield "promise", f"({round_up(plan.epsilon())}, {round_up(delta)})-differential privacy for each {protected}"
        yield "which means", meaning(plan.epsilon(), delta, protected, "what the federation releases")
    else:
        yield "promise", "none: nothing is clipped, no noise is added"
    yield (
        "plan",
        (
            f"N = {sampling.records:,}, q = {sampling.rate:.6g}, K = {plan.groups}, S = {plan.bounding.group_size}, "
            f"T = {plan.steps}, C = {plan.bounding.bound:g}, sigma = {plan.noise.multiplier:.6g}"
        ),
    )
    if plan.bounding.method.public_records:
        public = terms.run_config().public
        kind = "procedural images" if public.source == "procedural" else public.source
        made = f"the set with fingerprint {public.digest}" if public.digest else f"{public.generated:,} generated {kind}"
        yield "public records", f"{public.records} of {made} join every group"
    model = terms.run_config().model
    if model.start:
        yield "starting weights", f"{model.start}, SHA-256 {model.start_digest}"
    if terms.basis is not None:
        options = terms.run_config().bounding.options
        yield "public basis", f"{options.get('basis') or 'generated'}, in the terms, fingerprint {options['basis_digest']}"
    for part in terms.code:
        yield "code", f"{part.key}: {part}"
    yield "trust", str(terms.trust_model)
    if seen := message_epsilon(terms, brief=True):
        yield "one message", seen
    yield "a step needs", f"{terms.trust_model.least} of {len(terms.sites)} sites within {terms.deadline:g} s"
    for member in terms.sites:
        yield "site", f"{member.name}, {member.records:,} records, {member.groups} groups, card {member.fingerprint}"
    if own is not None:
        yield "confirmed", confirmation(terms, own, confirmed, brief=True)


def epsilon_if_known(terms: Terms, own: int, confirmed: Collection[str]) -> float:
    """Returns the epsilon that holds for a site's records if only this site and the members that it has confirmed are honest.

    The epsilon is infinite if no finite one holds.

    Args:
        terms: Terms of the federation.
        own: Number of the site.
        confirmed: Fingerprints of the cards that the site has confirmed.
    """
    plan, trust = terms.privacy_plan, terms.trust_model
    known = sum(number == own or member.fingerprint in confirmed for number, member in enumerate(terms.sites))
    part = trust.noise_if_honest(known) if plan.private and trust.shared else 1.0
    if part >= 1:
        return plan.epsilon()
    multiplier = plan.noise_std * math.sqrt(part) / plan.sensitivity
    without = dataclasses.replace(plan.mechanism, noise_multiplier=multiplier)
    return epsilon(without, plan.steps, plan.promise.delta, plan.promise.accountant)


def confirmation(terms: Terms, own: int, confirmed: Collection[str], brief: bool = False) -> str:
    """Returns a text that says which members a site has confirmed, and which epsilon holds if only these are honest.

    Args:
        terms: Terms of the federation.
        own: Number of the site.
        confirmed: Fingerprints of the cards that the site has confirmed.
        brief: Whether to leave out the meaning of an epsilon, because it stands beside the text already; default: no.
    """
    plan, trust = terms.privacy_plan, terms.trust_model
    known = [member.name for number, member in enumerate(terms.sites) if number != own and member.fingerprint in confirmed]
    said = f"{len(known) + 1} of {len(terms.sites)} members: {', '.join(['this site', *known])}"
    part = trust.noise_if_honest(len(known) + 1)
    if not plan.private:
        return said
    if not trust.shared:
        return f"{said}. The promise does not depend on who the other members are"
    if part >= 1:
        return f"{said}. The promise holds if these are honest" + (", whoever the others are" * (len(known) + 1 < trust.sites))
    left = epsilon_if_known(terms, own, confirmed)
    if not math.isfinite(left):
        return f"{said}. If only these are honest, no finite epsilon holds: confirm the others' cards (`dpfed site confirm`)"
    words = f"a factor of up to {factor(float(round_up(left)))}"
    if not brief:
        words = meaning(left, plan.promise.delta, f"{plan.promise.protected} of this site", "what the federation releases")
        words = words.split(". ")[0].rstrip(".")
    return (
        f"{said}. If only these are honest, and the coordinator colludes with the others, then epsilon {round_up(left)} "
        f"holds instead of {round_up(plan.epsilon())}, at the same delta: {words[0].lower()}{words[1:]}. Confirm the others' "
        "cards (`dpfed site confirm`)"
    )


def message_epsilon(terms: Terms, brief: bool = False) -> str:
    """Returns a text that says what the server learns from the messages of one site over the whole run.

    Args:
        terms: Terms of the federation.
        brief: Whether to leave out the meaning of an epsilon, because it stands beside the text already; default: no.

    Returns:
        The description; empty unless sites add noise to sums that the server sees one by one (``distributed``, ``local``).
    """
    plan, trust = terms.privacy_plan, terms.trust_model
    if not plan.private or terms.trust not in ("distributed", "local"):
        return ""
    message = dataclasses.replace(plan.mechanism, noise_multiplier=trust.message_multiplier(plan))
    seen = epsilon(message, plan.steps, plan.promise.delta, plan.promise.accountant)
    who = "whoever sees the messages of one site, as the server does"
    if not math.isfinite(seen):
        return f"{who}: no finite epsilon holds, so nothing limits what these messages tell about a {plan.promise.protected}"
    if brief:
        return f"{who}: epsilon {round_up(seen)} at the same delta, a factor of up to {factor(float(round_up(seen)))}"
    words = meaning(seen, plan.promise.delta, f"{plan.promise.protected} of that site", "what that site sends")
    return f"{who}: epsilon {round_up(seen)} at the same delta. {words}"


def facts_of_federation(facts: CardFacts, journal: Path, simulated: bool, terms: Terms) -> CardFacts:
    """Adds the facts of a federation to the facts for its run's privacy card.

    Args:
        facts: Facts of the run.
        journal: File of the federation's journal, which lists the sites that took part in each step.
        simulated: Whether all parties were in one process.
        terms: Terms of the federation.

    Returns:
        The extended facts.

    Raises:
        UserError: If the journal is damaged.
    """
    plan, marks = terms.privacy_plan, facts.marks
    if simulated:
        marks += (_SIMULATED,)
    if seen := message_epsilon(terms):
        marks += (
            Mark(
                "The epsilon above holds against whoever sees only the model or the sums over all sites. Against "
                f"{seen.removesuffix('.')}."
            ),
        )
    return dataclasses.replace(
        facts,
        trust_mode=str(terms.trust_model),
        noise=noise.said if (noise := terms.trust_model.noise_of_site(plan)) else facts.noise,
        noise_from=_NOISE_FROM[terms.trust] if plan.private else facts.noise_from,
        marks=marks,
        sites=tuple(_site(terms, number, Journal(journal)) for number in range(len(terms.sites))),
    )


def _site(terms: Terms, number: int, journal: Journal) -> str:
    """Returns a line about a site: its records, its groups, the number of steps with its sums, and their epsilon."""
    member, plan = terms.sites[number], terms.privacy_plan
    counted = journal.rounds_of(member.name)
    groups = "" if plan.bounding.method.singleton_groups else f", {member.groups} of the K groups"
    text = f"{member.name}: {member.records:,} records{groups}; its sums are in {counted} steps"
    return text + (f", which cost its records epsilon {round_up(plan.epsilon(counted))}" if plan.private else "")


def terms_at(path: Path) -> Terms | None:
    """Returns the terms of the federation that a run belongs to; ``None`` if it belongs to none.

    Args:
        path: File of the terms in the run's directory.

    Raises:
        UserError: If the terms cannot be read or are not valid, see `Terms.load`.
    """
    return Terms.load(path) if path.is_file() else None
