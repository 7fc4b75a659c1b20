"""Writes the privacy card of a fit on arrays, in the form of a run's privacy card."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence

from dpfed.arrays.fitting import Fit
from dpfed.arrays.records import GROUP
from dpfed.artifacts.provenance import LEDGER, environment
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.promise import round_up
from dpfed.report.card import privacy_card
from dpfed.report.facts import ASSUMED_OF_BITS, BASIS_RECORDS, FIXED_SEED, LAST_BITS, NOT_PROTECTED, OTHER_RUNS, CardFacts

_OUTPUTS = (
    "Covered by the guarantee: this card, the ledger, two noisy sums (`released_`, `released.safetensors`), and the heads "
    "(`heads_`, `heads.safetensors`), which follow from these sums.",
    "Not covered: the results of `transform` and `score`. Both are exact functions of the rows that they get.",
)
_EACH = (
    "Features that depend on several records: every row must be a function of its own record alone. Rows from frozen towers "
    "are. Rows from a scaler, PCA or selection of columns that was fitted on the same rows are not, and epsilon does not cover "
    "what such a scaler, PCA or selection reveals.",
    "The data that the towers were trained on. This matters unless these data are public.",
)
_AGAIN = (
    "Other fits on the same rows, such as a search for good settings or cross-validation: each call of `fit` spends its "
    "epsilon again, and all epsilons add up, even if the results were thrown away."
)
_SECRETS = (
    "The rows of X and Y: only those who hold them now may have them.",
    "The key of the noise. dpfed drew it in memory for this fit, and never wrote it to disk.",
)
NO_BUDGET = "none was set (budget= and folder= set one): this card does not count other fits on the same rows"


def card_of(fit: Fit, ledger: Ledger, identity: str, budget: str, earlier: Sequence[Ledger]) -> str:
    """Writes the privacy card of a fit.

    Args:
        fit: Fit to describe.
        ledger: Ledger of the fit.
        identity: Id of the fit.
        budget: Description of the lifetime budgets of the rows.
        earlier: Ledgers of those earlier fits in the same folder that were charged.

    Returns:
        The card, Markdown.
    """
    plan, units = fit.plan, fit.records.units is not None
    protected, other = GROUP if units else "record", plan.other_accountant
    matrices = "X and Y" if fit.records.y is not None else "X"
    unit = (
        f"one {GROUP}: all rows of {matrices} that share a value of `groups`" if units else f"one record: a row of {matrices}"
    )
    sampler = plan.mechanism.sampler.describe(protected) + (f"; the rows of a {GROUP} are averaged" if units else "")
    k = fit.heads.layout.dimensions
    discrete = plan.noise.kind == "discrete"
    bits = ASSUMED_OF_BITS if discrete else LAST_BITS.replace("privacy.noise = 'discrete'", "noise='discrete'")
    options = {**plan.bounding.options, "dimensions": k}
    if fit.basis is not None:
        options |= {"basis": "public rows", "basis_fingerprint": fit.basis.fingerprint}
    always = (bits if said is LAST_BITS else said for said in NOT_PROTECTED if said is not OTHER_RUNS)
    return privacy_card(
        CardFacts(
            name=f"PrivateCCA on {matrices}",
            plan=plan,
            unit=unit,
            protected=protected,
            trained=f"linear heads of {k:,} dimensions, for {' and '.join(f'{width:,}' for width in fit.shape.widths)} columns",
            epsilon_spent=ledger.epsilon,
            other_accountant=other or "",
            other_epsilon=None if other is None else plan.epsilon(ledger.charged, other),
            steps_charged=ledger.charged,
            sampler=sampler,
            grouping=f"no groups: each {protected} contributes to the sum of each step by itself",
            trust_mode="central: one process holds the rows, the sums and the noise",
            outputs=_OUTPUTS,
            noise=plan.noise_of().said,
            marks=(FIXED_SEED,) if ledger.marks.get("fixed_seed") else (),
            not_protected=(_AGAIN, *_EACH, *((BASIS_RECORDS,) if fit.basis else ()), *always),
            options=", ".join(f"{name} = {value}" for name, value in options.items()),
            secrets=_SECRETS,
            budget=budget,
            provenance=tuple(_rows(identity, ledger, earlier)),
        )
    )


def _rows(identity: str, ledger: Ledger, earlier: Sequence[Ledger]) -> Iterable[tuple[str, str]]:
    yield "Fit id", identity
    yield "Fitted on", f"{datetime.datetime.now(datetime.UTC).date().isoformat()} (UTC)"
    if earlier:
        yield "Other fits in this folder", f"{len(earlier)}; {_together((*earlier, ledger))}"
    made = environment()
    yield "Code", made["commit"] or "no checkout; see the versions"
    yield "Versions", ", ".join(f"{package} {version}" for package, version in made["versions"].items())
    yield LEDGER, ledger.head


def _together(ledgers: Sequence[Ledger]) -> str:
    """Describes the joint guarantee of several fits on the same rows, for the card."""
    if any(ledger.marks.get("fixed_seed") for ledger in ledgers):
        return "if all used the same rows, all fits together have no guarantee: a fixed random_state makes noise predictable"
    units = {ledger.plan.promise.unit for ledger in ledgers}
    if len(units) > 1:  # a group that loses one row still takes part, with another average
        mixed = f"some protect a record, and others a {GROUP}"
        return f"{mixed}: if all used the same rows, dpfed claims nothing for all fits together"
    epsilon, delta = sum(ledger.epsilon for ledger in ledgers), sum(ledger.plan.promise.delta for ledger in ledgers)
    same = "rows" if units == {"record"} else f"rows in the same {GROUP}s"
    return f"if all used the same {same}, all fits together are ({round_up(epsilon)}, {round_up(delta)})-differentially private"
