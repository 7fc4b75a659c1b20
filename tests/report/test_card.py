"""A card states every fact, rounds against the promise, and promises nothing when it is void."""

import dataclasses
import re

import pytest

from dpfed.errors import UserError
from dpfed.report.card import FIXED_SEED, RAW_DIAGNOSTICS, CardFacts, Mark, is_void, lead, privacy_card, round_up

FACTS = CardFacts(
    name="first-run",
    version="9.8.7",
    unit="one record: an image with its captions",
    adjacency="add or remove one record",
    epsilon_spent=3.217,
    epsilon_planned=7.991,
    delta=5.0487e-6,
    accountant="PLD",
    other_accountant="RDP",
    other_epsilon=3.456,
    steps_charged=51,
    steps_planned=213,
    replays_charged=3,
    records=20_001,
    sampler="Poisson: every record independently",
    sampling_rate=0.0512,
    expected_batch=1023,
    grouping="each sampled record draws one of K groups independently",
    groups=257,
    group_size=4,
    max_group_size=17,
    clip_norm=1.5,
    noise_multiplier=0.8123,
    sensitivity=3.0,
    noise_std=2.4369,
    trust_mode="central: one process holds records, model and noise",
    outputs=("the parameters after every step", "the ledger"),
    marks=(Mark("A mark to be read."),),
    not_protected=("held-out records", "timing"),
    complete=False,
)


def test_states_every_fact():
    card = privacy_card(FACTS)
    for text in (
        *("first-run", "9.8.7", FACTS.unit, FACTS.adjacency, "3.22 (PLD)", "8.00", "5.05e-6", "3.46 (RDP)"),
        *("51 of 213", "| 3 |", "20,001", FACTS.sampler, "0.0512", "1,023", FACTS.grouping, "257", "at most 17", "| 1.5 |"),
        *("0.8123", "| 3 |", "2.4369", FACTS.trust_mode, *FACTS.outputs, FACTS.marks[0].text, *FACTS.not_protected),
        "The run is not complete",
    ):
        assert text in card, text


def test_leads_with_the_guarantee():
    card = privacy_card(FACTS)
    assert not is_void(card)
    assert lead(card).startswith("This run is (3.22, 5.05e-6)-differentially private for one record")


@pytest.mark.parametrize("change", [{"marks": (RAW_DIAGNOSTICS, FIXED_SEED)}, {"epsilon_spent": float("inf")}])
def test_a_voided_card_says_so_first_and_never_promises(change):
    card = privacy_card(dataclasses.replace(FACTS, **change))
    assert "no privacy guarantee holds" in card.splitlines()[0]
    assert is_void(card) and lead(card).startswith("No privacy guarantee holds")
    assert "differentially private" not in card
    assert not re.search(r"^\| Epsilon", card, re.MULTILINE)
    assert not re.search(r"(at most|more than a factor)[^|]*(%|e\^)", card)
    for mark in change.get("marks", ()):
        assert mark.text in card


def test_a_mark_that_does_not_void_leaves_the_guarantee():
    card = privacy_card(dataclasses.replace(FACTS, marks=(RAW_DIAGNOSTICS,)))
    assert not is_void(card) and RAW_DIAGNOSTICS.text in card


def test_membership_bound_is_the_closed_form():
    card = privacy_card(dataclasses.replace(FACTS, epsilon_spent=1.0, delta=0.0))
    assert "73.11 %" in card  # e / (1 + e) = 0.731059, upwards


@pytest.mark.parametrize("value", [7.991, 8.0, 8.0001, 0.5, 0.0123456, 5.0487e-6, 1e-5, 123.456, 0.1, 9.999e-4])
def test_rounds_up_by_less_than_a_hundredth(value):
    assert value <= float(round_up(value)) < value * 1.01 + (0.01 if value >= 0.1 else 0)


def test_exact_figures_stay():
    assert [round_up(v) for v in (8.0, 1e-5, 0.25, float("inf"))] == ["8.00", "1.00e-5", "0.25", "inf"]


def test_table_cells_cannot_break_the_table():
    card = privacy_card(dataclasses.replace(FACTS, trust_mode="a | b\nc"))
    assert "| Trust | a \\| b c |" in card


def test_lead_refuses_other_texts():
    with pytest.raises(UserError, match="not a privacy card"):
        lead("# Shopping list\n\nmilk")
