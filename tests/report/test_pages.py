"""What the page for officers and boards says is what the code computes, and what a card shows."""

import dataclasses
import math
import re
from pathlib import Path

from dp_accounting.pld import PLDAccountant

from dpfed.artifacts import provenance
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.promise import factor, guess, percent_up
from dpfed.report.card import privacy_card, table_rows

ROOT = Path(__file__).resolve().parents[2]
OFFICERS = (ROOT / "docs" / "for-data-protection-officers.md").read_text(encoding="utf-8")
REAL = (ROOT / "benchmarks" / "results" / "quickstart.card.md").read_text(encoding="utf-8")
FACTS = {
    "began": "2026-01-01",
    "data": {"name": "some", "generated": None, "fingerprint": "0", "keyed": True},
    "public": {"name": "others", "records": 5, "fingerprint": "0"},
    "start": {"weights": "those of a file", "sha256": "0", "trained": None},
    "environments": [{"commit": "0", "hardware": "one core", "versions": {"dpfed": "0"}}],
}


def odds():
    lines = re.findall(r"^\| ([\d.]+ \|.*) \|$", OFFICERS, re.MULTILINE)
    return {float(row[0]): row[1:] for row in [[cell.strip() for cell in line.split("|")] for line in lines]}


def test_the_odds_for_boards_are_those_of_the_numbers():
    assert list(odds()) == [0.25, 1.0, 3.0, 8.0]
    for epsilon, (times, telling, average, suspicion, sigma) in odds().items():
        plan = PrivacyPlan.calibrate(20_000, 2048, 100, noise_multiplier=float(sigma), group_size=1, clip_norm=1.0)
        assert 0.98 * epsilon < plan.epsilon() <= epsilon  # the example's noise is that of its epsilon
        assert times == factor(epsilon) and telling == guess(epsilon, plan.promise.delta)
        # Over all results: half of one and the total variation between the two worlds, which is delta at epsilon 0.
        steps = PLDAccountant(plan.mechanism.sampler.relation.of_accountants, value_discretization_interval=1e-3)
        assert average == percent_up((1 + steps.compose(plan.mechanism.event(plan.steps)).get_delta(0.0)) / 2)
        assert suspicion == percent_up(1 / (1 + 99 * math.exp(-epsilon)))


def test_the_example_for_boards_is_the_real_run():
    rows, (*_, sigma) = table_rows(REAL), odds()[8.0]
    assert rows["Noise multiplier sigma"] == sigma and rows["Epsilon spent"].startswith("8.00")
    assert rows["Training records N (public)"] == "20,000" and rows["Steps charged"].startswith("100 of 100")
    assert rows["Sampler"].endswith("expected batch 2,048")
    assert f"--records 20000 --batch 2048 --steps 100 --noise-multiplier {sigma}" in OFFICERS


def test_every_heading_and_row_of_a_card_is_explained(facts):
    both = [name for federation in (False, True) for name in provenance.rows("0", FACTS, federation)]
    facts = dataclasses.replace(
        facts,
        plan=facts.plan.replace(progress={"share": 0.01, "quantile": 0.5, "loss_range": 4.0, "phase": None}),
        protected="record",
        **{name: "something" for name in ("audit", "budget", "options")},
        **{name: ("something",) for name in ("secrets", "sites")},
        provenance=(*both, (provenance.LEDGER, "0"), (provenance.MODEL, "0")),
    )
    card = privacy_card(facts)
    shown = {*table_rows(card), *re.findall(r"^## (.+)$", card, re.MULTILINE)}
    cells = [cell for cell in re.findall(r"^\| ([^|]+) \|", OFFICERS, re.MULTILINE) if cell[0].isupper()]
    assert {name for cell in cells for name in ([cell] if cell in shown else cell.split(", "))} == shown
