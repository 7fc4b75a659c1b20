"""A whole run that protects persons: the plan counts them, a step draws one record of each, and card and results say so."""

import json

import numpy as np
import pytest

from dpfed.config import parse_config
from dpfed.data.store.record import RecordInput
from dpfed.data.store.records import RecordStore
from dpfed.data.store.writing import StoreWriter
from dpfed.errors import UserError
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.randomness import Randomness
from dpfed.progress import Progress
from dpfed.runs.build import build
from dpfed.runs.pretraining import pretrain
from tests.sparing import sparing


@pytest.fixture
def people(tmp_path):
    """120 training persons of one to five pictures, 20 test persons."""
    random = np.random.default_rng(0)
    path = tmp_path / "people"
    with StoreWriter(path, name="people", kind="image-text", size=16, unit_name="person") as writer:
        for person in range(140):
            for picture in range(1 + person % 5):
                image = random.integers(0, 256, (16, 16, 3), dtype=np.uint8)
                split = "train" if person < 120 else "test"
                record = RecordInput(f"{person}/{picture}", image, (f"person number {person}",), {}, split, f"p{person}")
                writer.add(record)
    return path


@pytest.fixture
def protecting(tiny, people):
    tiny["data"] = {"source": "store", "path": str(people), "size": 16}
    tiny["privacy"] = {"epsilon": 8.0, "accountant": "rdp", "batch": 40, "steps": 4, "unit": "user"}
    tiny["evaluation"] = {"tasks": ["retrieval"]}
    return tiny


class Noting(Progress):
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


@pytest.mark.long
def test_persons_are_counted_and_protected(protecting, tmp_path):
    run = pretrain(parse_config(protecting), tmp_path / "run")
    plan = Ledger.open(run.ledger).plan
    assert (plan.sampling.records, plan.promise.unit, plan.sampling.per_unit) == (120, "user", 1)
    results = json.loads(run.results.read_text())
    assert results["privacy"]["records"] == 120 and results["privacy"]["unit"] == "user"
    card = run.card.read_text()
    assert "one person: all records that share a value of 'person'" in card and "has m times that epsilon" not in card


def test_a_step_of_a_run_draws_at_most_one_record_of_a_person(protecting):
    parts = build(parse_config(protecting))
    drawn = []
    worker = parts.learner.worker(Randomness.from_seed(1))
    make = worker.views
    worker.views = lambda rows, *rest: drawn.append(rows) or make(rows, *rest)
    worker.bounded_sum(0)
    rows = np.concatenate(drawn)
    units = parts.store.units[rows]
    assert 20 < len(rows) < 65 and len(np.unique(units)) == len(rows)


@pytest.mark.long
def test_records_are_protected_unless_the_user_asks_otherwise(protecting, tmp_path):
    del protecting["privacy"]["unit"]
    run = pretrain(parse_config(protecting), tmp_path / "run")
    assert Ledger.open(run.ledger).plan.sampling.records == len(RecordStore.open(protecting["data"]["path"]).split("train"))
    assert "a person with m records has m times that epsilon" in run.card.read_text()


def test_records_without_persons_cannot_protect_them(tiny):
    tiny["privacy"]["unit"] = "user"
    with pytest.raises(UserError, match="unit-none-named"):
        build(parse_config(tiny))


@pytest.mark.long
@pytest.mark.parametrize("public", sparing([True, False], True))
def test_persons_on_both_sides_are_told_for_public_records(protecting, tmp_path, public):
    quiet, loud = Noting(), Noting()
    pretrain(parse_config(protecting), tmp_path / "apart", quiet)
    assert not any("may be in both" in note for note in quiet.notes)
    path = tmp_path / "mixed"
    with StoreWriter(path, name="mixed", kind="image-text", size=16, unit_name="person", public=public) as writer:
        store = RecordStore.open(protecting["data"]["path"])
        for row in range(len(store)):
            image = store.images(np.array([row]), 16)[0].permute(1, 2, 0).numpy()
            writer.add(
                RecordInput(str(row), image, (f"person {row}",), {}, ["train", "train", "test"][row % 3], f"p{row // 3}")
            )
    protecting["data"]["path"] = str(tmp_path / "mixed")
    pretrain(parse_config(protecting), tmp_path / "mixed-run", loud)
    assert any("person may be in both the train and the test split" in note for note in loud.notes) == public
