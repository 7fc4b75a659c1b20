"""A lifetime budget for records that have no store: `Trainer(budget=...)`."""

from __future__ import annotations

import json
import random
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

import dpfed
from dpfed.artifacts.directory import RunDirectory
from dpfed.budgets import registry as registries
from dpfed.budgets.registry import BUDGET_LEDGER, budgets_of, registry
from dpfed.data.items import records as item_records
from dpfed.data.store.records import RecordStore
from dpfed.errors import Notice, UserError
from dpfed.privacy.ledger import Ledger
from tests.budgets.conftest import write_store
from tests.own_parts import Pictures, augment, encoder
from tests.runs.test_budgeting import SWEEP

STEPS = 4
BUDGET = (5, 1e-5)  # a run of epsilon 3 fits, two do not


class Stop(dpfed.Callback):
    every = 1

    def on_step(self, step) -> None:
        raise KeyboardInterrupt


class Rows:
    """Pictures in an order of one's own, in a form of one's own."""

    def __init__(self, numbers, form=lambda image: image) -> None:
        self.pictures, self.numbers, self.form = Pictures(400), list(numbers), form

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, place):
        number = self.numbers[place]
        image, label = self.pictures[number]
        return {"image": self.form(image), "label": label, "text": f"number {number}", "name": f"n{number}", "who": number // 2}


def records(numbers=range(120), form=lambda image: image, **parts) -> dpfed.Records:
    return dpfed.Records(Rows(numbers, form), workers=0, **parts)


def trainer(data=None, epsilon=3.0, **changes) -> dpfed.Trainer:
    torch.manual_seed(0)
    unit = changes.pop("unit", "record")
    parts = {
        "model": dpfed.SimCLR(encoder(), embedding=8, hidden=16),
        "records": data or records(),
        "views": dpfed.Views(augment()),
        "privacy": dpfed.Privacy(epsilon=epsilon, delta=1e-5, batch=32, steps=STEPS, group_size=4, unit=unit),
        "settings": {"training": {"checkpoint_every": 1}},
        "progress": False,
    }
    return dpfed.Trainer(**{**parts, **changes})


def budget_of(data):
    (entry,) = budgets_of(data)
    return entry.budget


def shuffled(numbers=range(120)):
    return random.Random(1).sample(list(numbers), len(numbers))


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A run under the budget, and the registry that knows it."""
    folder = tmp_path_factory.mktemp("first")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPFED_BUDGETS", str(folder / "registry"))
        return trainer(budget=BUDGET).fit(folder / "run").path, folder / "registry"


@pytest.fixture
def spent(first, own_registry):
    """The run's folder, in a registry of the test's own."""
    shutil.copytree(first[1], own_registry)
    return first[0]


@pytest.mark.long
def test_a_run_reserves_before_its_first_step_and_settles(tmp_path, monkeypatch):
    seen, real, data = [], Ledger.charge, records()

    def charge(ledger, release):
        seen.append([one.steps for one in budget_of(data).accounts.values()])
        return real(ledger, release)

    monkeypatch.setattr(Ledger, "charge", charge)
    run = trainer(data, budget=BUDGET).fit(tmp_path / "run")
    (account,) = budget_of(data).accounts.values()
    assert seen == [[STEPS]] * STEPS and (account.steps, account.settled) == (STEPS, True)
    assert "(5.0, 1.00e-5) for each record, over all runs" in run.card.read_text()


def grey(image):
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


CHANGED = {
    "the same": lambda: records(),
    "in another order": lambda: records(shuffled()),
    "under other keys": lambda: records(key="name"),
    "with captions": lambda: records(caption="text"),
    "with another label": lambda: records(label="who"),
    "with held-out records": lambda: records(validation=Rows(range(300, 320))),
    "as tensors": lambda: records(form=grey),
    "as floats": lambda: records(form=lambda image: grey(image).float() / 255),
    "as halves": lambda: records(form=lambda image: grey(image).half() / 255),
    "as arrays": lambda: records(form=np.asarray),
    "with units": lambda: records(unit="who"),
    "half of them": lambda: records(range(0, 120, 2)),
    "and others": lambda: records(range(180)),
}


_CASES = [(changed, True) for changed in CHANGED] + [("the same", False), ("half of them", False), ("and others", False)]


@pytest.mark.long
@pytest.mark.parametrize(
    ("changed", "given"), _CASES, ids=[f"{name}, {'' if given else 'not '}given" for name, given in _CASES]
)
def test_a_second_run_beyond_the_budget_is_refused(spent, changed, given, tmp_path):
    """Whatever the records look like now, with the same budget or with none."""
    evaluation = {"evaluation": {"split": "none"}}
    again = trainer(CHANGED[changed](), budget=BUDGET if given else None, settings=evaluation)
    with pytest.raises(UserError, match="for this run: .* is spent or reserved, and epsilon 3.* still fits .*budget-no-room"):
        again.fit(tmp_path / "elsewhere" / "two")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.long
@pytest.mark.parametrize("broken", ["names", "reserve"])
def test_without_recognition_the_second_run_would_be_trained(spent, tmp_path, broken, monkeypatch):
    """The test above would see it if budgets did not know records again, or if runs reserved nothing."""
    if broken == "names":
        monkeypatch.setattr(item_records, "picture_of", lambda image: random.randbytes(8))
        monkeypatch.setattr(dpfed.data.items.scanning, "hashed", lambda *parts: random.randbytes(8))
        monkeypatch.setattr(dpfed.data.items.scanning, "_AGAIN", 0)
    else:
        monkeypatch.setattr(dpfed.budgets.reservations, "does_not_fit", None)
        monkeypatch.setattr(
            dpfed.budgets.ledger.BudgetLedger, "spent", property(lambda ledger: (0.0,) * len(ledger.head.orders))
        )
    assert trainer(budget=None).fit(tmp_path / "two").path.is_dir()


@pytest.mark.long
def test_other_records_have_a_budget_of_their_own(spent, tmp_path):
    other = records(range(200, 320))
    trainer(other, budget=BUDGET).fit(tmp_path / "other")
    assert len(budget_of(other).accounts) == len(budget_of(records()).accounts) == 1


@pytest.mark.long
def test_a_part_keeps_the_budget_of_the_whole(spent, tmp_path):
    part = records(range(0, 120, 2))
    with pytest.raises(UserError, match=r"have a budget already, \(5.0, .*leave budget= out, or give.*own-budget-other"):
        trainer(part, budget=60).fit(tmp_path / "part")
    trainer(part, epsilon=0.5, budget=5).fit(tmp_path / "part")
    assert len(budget_of(records()).accounts) == 2 and len(list(registry().glob("*.jsonl"))) == 1


@pytest.mark.long
def test_an_interrupted_run_holds_its_reservation_and_resumes(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        trainer(budget=BUDGET, callbacks=[Stop()]).fit(tmp_path / "one")
    (account,) = budget_of(records()).accounts.values()
    assert (account.steps, account.settled) == (STEPS, False)
    with pytest.raises(UserError, match="budget-no-room"):
        trainer(budget=BUDGET).fit(tmp_path / "two")
    trainer(budget=BUDGET).fit(tmp_path / "one")
    after = budget_of(records())
    trainer(budget=BUDGET).fit(tmp_path / "one")
    assert after == budget_of(records()) and [one.settled for one in after.accounts.values()] == [True]


@pytest.mark.long
def test_an_abandoned_run_gives_back_what_it_did_not_take(tmp_path, dpfed):
    with pytest.raises(KeyboardInterrupt):
        trainer(budget=BUDGET, callbacks=[Stop()]).fit(tmp_path / "one")
    code, said, _ = dpfed("budget", "settle", tmp_path / "one")
    assert code == 0 and "is taken" in said
    assert [one.steps for one in budget_of(records()).accounts.values()] == [1]


def test_ones_own_loop_is_held_by_the_budget(spent, tmp_path):
    with pytest.raises(UserError, match="budget-no-room"), trainer(budget=BUDGET).open(tmp_path / "two"):
        pass
    assert not (tmp_path / "two").exists()


def test_no_hash_of_the_pictures_lies_in_a_runs_folder(first):
    """Whoever knows all other pictures could confirm one with it, and people pass such folders on."""
    folder, data = first[0], records()
    hashes = [data.budget_fingerprint, data.contents, *data._index.pictures]
    for path in (path for path in folder.rglob("*") if path.is_file()):
        content = path.read_bytes()
        assert not [one for one in hashes if one.encode() in content or bytes.fromhex(one) in content], path


@pytest.mark.long
def test_a_run_whose_budget_is_gone_is_not_resumed(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        trainer(budget=BUDGET, callbacks=[Stop()]).fit(tmp_path / "one")
    shutil.rmtree(registry())
    with pytest.raises(UserError, match="budget-run-gone"):
        trainer().fit(tmp_path / "one")


@pytest.mark.long
def test_a_finished_run_counts_in_a_budget_that_comes_later(tmp_path):
    trainer().fit(tmp_path / "one")
    assert not budgets_of(records())
    trainer(budget=BUDGET).fit(tmp_path / "one")
    assert [(one.steps, one.settled) for one in budget_of(records()).accounts.values()] == [(STEPS, True)]
    assert RunDirectory(tmp_path / "one").budget.is_file()
    with pytest.raises(UserError, match="budget-no-room"):
        trainer(budget=BUDGET).fit(tmp_path / "two")


@pytest.mark.long
def test_another_number_changes_the_budget_and_says_so(spent, tmp_path):
    with pytest.warns(Notice, match=r"was \(5.0, 1.00e-5\) for each record, and is \(12.0, 1.00e-5\)"):
        trainer(budget=12).fit(tmp_path / "two")
    with pytest.raises(UserError, match="budget-below-spent"):
        trainer(budget=1).fit(tmp_path / "three")


@pytest.mark.long
def test_a_budget_for_users(tmp_path):
    def users(**changes):
        return trainer(records(shuffled(), unit="who"), unit="user", **changes)

    users(budget=(4, 1e-5)).fit(tmp_path / "one")
    assert budget_of(records(unit="who")).head.unit == "user"
    with pytest.raises(UserError, match="budget-no-room"):
        users().fit(tmp_path / "two")
    with pytest.raises(UserError, match="set privacy.unit = 'user'.*budget-for-users"):
        trainer(records(unit="who")).fit(tmp_path / "two")
    with pytest.raises(UserError, match="budget-user-names"):
        trainer(records()).fit(tmp_path / "two")


@pytest.mark.long
def test_what_no_epsilon_covers_needs_a_reason(tmp_path):
    seeded = dpfed.Privacy(epsilon=3, delta=1e-5, batch=32, steps=STEPS, group_size=4, seed=1)
    with pytest.raises(UserError, match="privacy.seed is fixed.*budget-not-covered"):
        trainer(budget=BUDGET, privacy=seeded).fit(tmp_path / "one")
    assert not (tmp_path / "one").exists()
    why = {"privacy": {"not_covered": "a test of ours"}}
    trainer(budget=BUDGET, privacy=seeded, settings=why).fit(tmp_path / "one")
    assert len(budget_of(records()).uncovered) == 1


@pytest.mark.parametrize("budget", ["6", 0, -1, True, (1, 2, 3), (6, 0.5), float("nan"), [], {}])
def test_what_is_no_budget_is_refused(tmp_path, budget):
    with pytest.raises(UserError, match="own-budget|budget-delta-large|epsilon"):
        trainer(budget=budget).fit(tmp_path / "run")
    assert not (tmp_path / "run").exists() and not list(registry().glob("*.jsonl"))


@pytest.mark.long
def test_a_store_given_in_python_has_the_budget_of_a_store(tmp_path):
    store = write_store(tmp_path / "store", [f"person-{number}" for number in range(120)])
    data = dpfed.Records(RecordStore.open(store.path))
    trainer(data, budget=BUDGET, views=None, size=8).fit(tmp_path / "one")
    assert (store.path / BUDGET_LEDGER).is_file() and len(budget_of(store).accounts) == 1


def test_the_commands_show_it(spent, dpfed, tmp_path):
    code, said, _ = dpfed("budget", "show", spent)
    assert code == 0 and "epsilon 5.0, delta 1e-05, for each record" in said and f"1 run, {STEPS} steps" in said
    (facts,) = json.loads(dpfed("budget", "show", spent, "--json")[1])
    assert 0.2 < facts["taken"] <= 1
    code, said, _ = dpfed("budget", "history", spent)
    assert code == 0 and [line.split()[1] for line in said.splitlines()[1:]] == ["set:", "reserved", "settled"]
    code, said, _ = dpfed("privacy", "ledger", spent)
    assert code == 0 and "lifetime budget" in said and f"settled {STEPS} steps" in said


@pytest.mark.long
def test_a_configuration_that_names_records_has_a_budget(tmp_path, dpfed):
    config = tmp_path / "mine.toml"
    config.write_text(CONFIG)
    code, said, _ = dpfed("budget", "set", config, "--epsilon", 5, "--delta", 1e-5)
    assert code == 0 and "for each record" in said
    code, said, error = dpfed("pretrain", config, "--run", tmp_path / "one")
    assert code == 0, error
    assert "reserved in the lifetime budget" in said + error
    code, said, _ = dpfed("budget", "show", config)
    assert code == 0 and "1 run, 4 steps" in said
    code, said, error = dpfed("pretrain", config, "--run", tmp_path / "two")
    assert code == 2 and "budget-no-room" in error


@pytest.mark.long
def test_a_sweep_over_named_records_reserves_all_its_runs(tmp_path, dpfed):
    config, sweep = tmp_path / "mine.toml", tmp_path / "sweep.toml"
    config.write_text(CONFIG)
    sweep.write_text(SWEEP)
    assert dpfed("budget", "set", config, "--epsilon", 5, "--delta", 1e-5)[0] == 0
    code, _, error = dpfed("sweep", config, sweep, "--runs", tmp_path / "runs")
    assert code == 2 and "the 2 runs take" in error and "budget-no-room" in error
    assert not (tmp_path / "runs" / "two").exists()


CONFIG = """
[data]
source = "tests.own_parts:photos"
[model]
image = "tests.own_parts:small"
[views]
transform = "tests.own_parts:augment"
options = { size = 12 }
[privacy]
epsilon = 3.0
delta = 1e-5
batch = 20
steps = 4
[bounding]
group_size = 4
[evaluation]
split = "none"
"""


def test_names_hold_for_grey_pictures_and_equal_ones():
    levels = [Image.new("L", (6, 6), level) for level in (1, 2, 2, 3)]
    colours = [picture.convert("RGB") for picture in reversed(levels)]
    one, other = (dpfed.Records(data, workers=0) for data in (levels, colours))
    assert sorted(one.budget_names) == sorted(other.budget_names) and one.budget_fingerprint == other.budget_fingerprint
    assert len(set(one.budget_names.tolist())) == 4 and registries.budgets_of(one) == []
