"""A card states every fact, rounds against the promise, and promises nothing when it is void."""

import dataclasses
import re

import pytest

import dpfed
from dpfed.artifacts.provenance import AUDITED, LABELLED_FIGURES
from dpfed.config import parse_config
from dpfed.data.store.records import RecordStore
from dpfed.privacy.ledger import Ledger, Release
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.promise import round_up
from dpfed.privacy.randomness import Randomness
from dpfed.report.card import is_void, lead, privacy_card
from dpfed.report.facts import AUDITS, FIXED_SEED, LABELLED_BANK, UNSOUND, CardFacts, Mark
from dpfed.runs.build import build
from dpfed.runs.outcome import card_facts

PLAN = PrivacyPlan.of(20_001, 1028, 4, 1.5, 213, 0.8123, 5.0487e-6, max_group_size=17)
FACTS = CardFacts(
    name="first-run",
    plan=PLAN,
    unit="one record: an image with its captions",
    protected="record",
    trained="12 of 34 parameters; starting weights: 'some'",
    epsilon_spent=3.217,
    other_accountant="RDP",
    other_epsilon=3.456,
    steps_charged=51,
    sampler="Poisson: every record independently",
    grouping="each sampled record draws one of K groups independently",
    trust_mode="central: one process holds records, model and noise",
    outputs=("the parameters after every step", "the ledger"),
    marks=(Mark("A mark to be read."),),
    not_protected=("held-out records", "timing"),
)


def test_states_every_fact():
    card = privacy_card(FACTS)
    for text in (
        *("first-run", f"dpfed {dpfed.__version__}", FACTS.unit, "add or remove one record", "5.05e-6", "51 of 213"),
        *("3.22 (pld)", round_up(PLAN.epsilon()), "3.46 (RDP)"),
        *(FACTS.trained, "20,001", FACTS.sampler, "q = 0.0513974,", "1,028", FACTS.grouping, "257", "4, at most 17", "| 1.5 |"),
        *("0.8123", "| 3 |", "2.4369", FACTS.trust_mode, *FACTS.outputs, FACTS.marks[0].text, *FACTS.not_protected),
        "| group clipping (DP-GCL): Records are contrasted inside small groups",
        "The run is not complete",
    ):
        assert text in card, text


def test_leads_with_the_guarantee():
    card = privacy_card(FACTS)
    assert not is_void(card)
    assert lead(card).startswith("This run is not complete. So far it is (3.22, 5.05e-6)-differentially private for one")
    whole = lead(privacy_card(dataclasses.replace(FACTS, steps_charged=213)))
    assert whole.startswith("This run is (3.22, 5.05e-6)-differentially private for one record")


@pytest.mark.parametrize("change", [{"marks": (LABELLED_BANK, FIXED_SEED)}, {"epsilon_spent": float("inf")}])
def test_a_voided_card_says_so_first_and_never_promises(change):
    card = privacy_card(dataclasses.replace(FACTS, **change))
    assert "no privacy guarantee holds" in card.splitlines()[0]
    assert is_void(card) and lead(card).startswith("No privacy guarantee holds")
    assert "differentially private" not in card
    assert not re.search(r"^\| Epsilon", card, re.MULTILINE)
    assert not re.search(r"(at most|more than a factor)[^|]*(%|e\^)", card)
    epsilons = ("3.22", "3.46", round_up(PLAN.epsilon()))
    stated = [line for line in card.splitlines() if any(epsilon in line for epsilon in epsilons)]
    assert len(stated) >= 2 and all(line.startswith("| Accountant's figure, not a guarantee: ") for line in stated)
    assert "The run is not complete" in card
    for mark in change.get("marks", ()):
        assert mark.text in card
    both = lead(privacy_card(dataclasses.replace(FACTS, marks=(UNSOUND, FIXED_SEED))))
    assert UNSOUND.text in both and FIXED_SEED.text in both


def test_membership_bound_is_the_closed_form():
    card = privacy_card(dataclasses.replace(FACTS, epsilon_spent=1.0, plan=PLAN.replace(delta=1e-9)))
    assert "73.11 %" in card  # e / (1 + e) = 0.731059, upwards


@pytest.fixture
def card_of(tiny, tmp_path):
    """The card of a run that is about to start, with what its store says of units."""

    def write(unit_name=None, marks=None, **plan):
        parts = build(parse_config(tiny), Randomness.from_seed(0))
        store = RecordStore.open(parts.store.path)
        store.unit_name = unit_name
        plan = parts.plan.replace(**plan)
        parts = parts.with_learner(records=store, plan=plan)
        return privacy_card(card_facts(parts, Ledger.create(tmp_path / f"{marks}.jsonl", plan, marks)))

    return write


def test_what_the_ledger_was_marked_with_is_on_the_card(card_of):
    for marks in ({}, {"fixed_seed": True}):
        assert (FIXED_SEED.text in card_of(marks=marks)) == bool(marks)


@pytest.mark.parametrize("public", [True, False])
@pytest.mark.parametrize("disclosed", [(), (AUDITED,), (LABELLED_FIGURES,), (AUDITED, LABELLED_FIGURES)])
def test_what_was_made_of_the_records_since_is_on_the_card(tiny, tmp_path, public, disclosed):
    parts = build(parse_config(tiny), Randomness.from_seed(0))
    parts.store.public = public
    facts = card_facts(parts, Ledger.create(tmp_path / "ledger.jsonl", parts.plan), disclosed)
    card = privacy_card(facts)
    assert (AUDITS in card) == any(text.startswith("`audit/`") for text in facts.secrets) == (AUDITED in disclosed)
    assert (LABELLED_BANK in facts.marks) == (LABELLED_BANK.text in card) == (LABELLED_FIGURES in disclosed)
    assert ("declared them public" in card) == public and ("only those who hold them now may have them" in card) != public


def test_all_workers_are_counted(tiny, tmp_path):
    parts = build(parse_config(tiny), Randomness.from_seed(0))
    for world_size in (1, 4):
        ledger = Ledger.create(tmp_path / f"{world_size}.jsonl", parts.plan)
        ledger.note_world_size(world_size)
        assert ("up to 4 workers of one cluster" in card_facts(parts, ledger).trust_mode) == (world_size == 4)


def test_facts_are_those_of_plan_and_ledger(tiny, tmp_path):
    tiny["privacy"]["steps"] = 3
    parts = build(parse_config(tiny), Randomness.from_seed(0))
    plan, ledger = parts.plan, Ledger.create(tmp_path / "ledger.jsonl", parts.plan)
    for step in range(3):
        facts = card_facts(parts, ledger)
        assert not facts.complete and (facts.steps_charged, facts.plan) == (step, plan)
        assert facts.epsilon_spent == plan.epsilon(step)
        assert (facts.other_accountant, facts.other_epsilon) == ("rdp", plan.epsilon(step, "rdp"))
        ledger.charge(Release(step, "digest"))
    assert card_facts(parts, ledger).complete and card_facts(parts, ledger).epsilon_spent == plan.epsilon()


def test_an_image_and_all_its_captions_are_one_record(card_of):
    card = card_of()
    assert "private for one record: an image with all its captions, of which each step draws one.**" in card
    assert "whether one particular training record took part" in card
    assert "Mark" not in card


def test_a_person_with_all_records_is_protected_where_units_are(card_of):
    card = card_of("person", unit="user", per_unit=3, records=120)
    assert (
        "private for one person: all records that share a value of 'person' (a record that names none is its own unit).**"
        in card
    )
    assert "whether one particular person with all its records took part" in card and "that one person was there" in card
    assert "| Adjacency | add or remove one person with all its records |" in card
    assert "at most 3 records of a drawn person take part" in card and "| Training units N (public) | 120 |" in card
    assert "Mark" not in card and "Several names:" in card and "Several records:" not in card


def test_records_of_a_person_say_that_it_is_protected_less(card_of):
    card = card_of("patient")
    assert "one record: an image with all its captions" in card and "any one training record" in card
    (reservation,) = (line for line in card.splitlines() if line.startswith("**Mark:**"))
    for text in ("several of them may share one patient", "m times that epsilon", "privacy.unit = 'user' protects the patient"):
        assert text in reservation


def test_a_run_without_privacy_covers_nothing(card_of):
    card = card_of(method_name="none", noise_multiplier=0.0, target_epsilon=None)
    assert is_void(card) and "nothing was clipped, no noise was added" in lead(card)
    assert "Nothing is covered" in card and "Covered by" not in card
    assert "not protected\n\n- All records.\n" in card
    assert not re.search(r"Clip norm|Sensitivity|Noise multiplier", card)


def test_a_federations_card_names_its_sites_and_who_adds_noise():
    sites = ("north: 100 records", "south: 300 records")
    card = privacy_card(dataclasses.replace(FACTS, sites=sites, noise_from="by the sites"))
    assert "## The sites\n\n- north: 100 records\n- south: 300 records\n" in card
    assert "on the sum, by the sites |" in card
    assert "The sites" not in privacy_card(FACTS)


@pytest.mark.parametrize(
    ("epsilon", "said", "unsaid"),
    [
        (0.3, "in at most 57.45 %, whatever they try", "weak"),
        (1.0, "So what this run released tells little about any one training record", "weak"),
        (1.001, "That limits what can be learnt", "tells little"),
        (5.0, "That limits what can be learnt", "weak"),
        (5.001, "This promise alone is weak", "tells little"),
        (8.0, "in at most 99.97 %, whatever they try", "tells little"),
        (40.0, "in at most 100 %, whatever they try", "tells little"),
    ],
)
def test_the_first_paragraph_says_what_the_number_allows(epsilon, said, unsaid):
    words = lead(privacy_card(dataclasses.replace(FACTS, epsilon_spent=epsilon)))
    assert said in words and unsaid not in words


@pytest.mark.long
def test_a_delta_above_one_in_n_is_said_first():
    large, small = (FACTS.plan.replace(records=1100, delta=delta) for delta in (0.0010, 0.0009))
    card = privacy_card(dataclasses.replace(FACTS, plan=large))
    assert lead(card).startswith("Do not rely on this promise: its delta of 0.00100 is larger than 1/N = 1/1,100")
    assert "Do not rely" not in privacy_card(dataclasses.replace(FACTS, plan=small))


def test_several_records_of_one_person_get_the_bound_for_groups():
    card = privacy_card(dataclasses.replace(FACTS, epsilon_spent=1.0, plan=PLAN.replace(delta=1e-5)))
    # delta (e^2 - 1) / (e - 1) = 1e-5 (e + 1) = 3.7183e-5
    assert "with 2 records, epsilon is 2.00 and delta 3.72e-5" in card
    weak = privacy_card(dataclasses.replace(FACTS, epsilon_spent=8.0, plan=PLAN.replace(delta=1e-5)))
    assert "with 5 records, nothing is promised" in weak


def test_the_card_tells_its_run_and_what_must_stay_secret():
    rows, secrets = (("Run id", "ab12"), ("Duration", "not written: why")), ("the key",)
    card = privacy_card(dataclasses.replace(FACTS, provenance=rows, secrets=secrets))
    assert "## The run\n\n| | |\n|---|---|\n| Run id | ab12 |\n| Duration | not written: why |" in card
    assert "## What must stay secret\n\n- the key\n" in card
    for title in ("What the numbers mean", "Who is protected, and from whom", "What to ask before you rely on this card"):
        assert f"## {title}\n" in card
    void = privacy_card(dataclasses.replace(FACTS, provenance=rows, marks=(FIXED_SEED,)))
    assert "| Run id | ab12 |" in void and "Who is protected" not in void and "the probability of" not in void
