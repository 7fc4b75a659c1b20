"""The ledger: append-only, checked, and never behind what was spent."""

import hashlib
import json
import math
import os

import pytest

from dpfed.errors import UserError
from dpfed.files.json_lines import append_line
from dpfed.privacy.ledger import Ledger, Release, link
from dpfed.privacy.plan import ARITHMETIC, PrivacyPlan
from dpfed.runs.pretraining import pretrain
from tests.files.disk import full_disk

PLAN = PrivacyPlan.of(1000, 100, 4, 1.0, 5, 1.3, 1e-4, "rdp", target_epsilon=1.4)  # which one step more would exceed


@pytest.fixture
def ledger(tmp_path):
    ledger = Ledger.create(tmp_path / "ledger.jsonl", PLAN)
    for step in range(4):
        ledger.charge(Release(step, f"digest-{step}"))
    return ledger


def test_it_reads_back_what_was_charged(ledger):
    again = Ledger.open(ledger.path)
    assert again.plan == PLAN and again.charged == 4
    assert again.epsilon == PLAN.epsilon(4) == ledger.epsilon
    assert again.release_of(2) == Release(2, "digest-2") and again.release_of(4) is None


def test_a_charge_is_on_disk_before_the_release_may_be_used(ledger, monkeypatch):
    """Not only with the operating system: a power failure must not lose a line whose release somebody saw."""
    synced = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(ledger.path.read_bytes()))
    ledger.charge(Release(4, "digest-4"))
    assert synced[-1] == ledger.path.read_bytes() and b"digest-4" in synced[-1]


def test_a_replay_is_written_down_and_costs_nothing(ledger):
    ledger.note_replay(Release(3, "digest-3"))
    again = Ledger.open(ledger.path)
    assert (again.charged, again.replays) == (4, 1)


def test_a_write_cut_short_by_a_crash_is_dropped(ledger):
    whole = ledger.path.read_bytes()
    ledger.charge(Release(4, "digest-4"))
    line = ledger.path.read_bytes()[len(whole) :]
    for cut in range(len(line)):
        ledger.path.write_bytes(whole + line[:cut])
        again = Ledger.open(ledger.path)
        assert again.charged == 4 and ledger.path.read_bytes() == whole + line[:cut]  # who reads changes nothing
        again.charge(Release(4, "digest-4"))
        assert ledger.path.read_bytes() == whole + line  # on a line of its own
    ledger.path.write_bytes(whole + line)
    assert Ledger.open(ledger.path).charged == 5


@pytest.mark.parametrize("number", range(5))
def test_any_edited_line_is_noticed(ledger, number):
    lines = ledger.path.read_text().splitlines()
    entry = json.loads(lines[number])
    entry["plan" if number == 0 else "step"] = {} if number == 0 else 7
    lines[number] = json.dumps(entry)
    ledger.path.write_text("\n".join(lines) + "\n")
    with pytest.raises(UserError, match=f"line {number + 1}: .*ledger-damaged"):
        Ledger.open(ledger.path)


def test_a_line_taken_out_is_noticed(ledger):
    lines = ledger.path.read_text().splitlines()
    ledger.path.write_text("\n".join(lines[:2] + lines[3:]) + "\n")
    with pytest.raises(UserError, match="line 3: .*ledger-damaged"):
        Ledger.open(ledger.path)


@pytest.mark.parametrize("change", [{"unit": None}, {"draws": "gaps"}])
def test_a_ledger_whose_plan_has_other_fields_is_refused(tmp_path, change):
    plan = {**PLAN.as_dict(), **change}
    plan = {name: value for name, value in plan.items() if value is not None or name not in change}
    header = {"ledger": 1, "fingerprint": PLAN.fingerprint, "plan": plan, "marks": {}}
    chain = hashlib.sha256(json.dumps(header, sort_keys=True).encode()).hexdigest()[:16]
    (tmp_path / "ledger.jsonl").write_text(json.dumps({**header, "chain": chain}) + "\n")
    with pytest.raises(UserError, match="format 1: .*ledger-format"):
        Ledger.open(tmp_path / "ledger.jsonl")


@pytest.mark.parametrize("change", [{"plan": 3}, {"plan": None}, {"marks": None}, {"fingerprint": None}], ids=str)
def test_a_ledger_with_another_first_line_is_refused(tmp_path, change):
    header = {"ledger": 1, "fingerprint": PLAN.fingerprint, "plan": PLAN.as_dict(), "marks": {}} | change
    header = {name: value for name, value in header.items() if value is not None}
    (tmp_path / "ledger.jsonl").write_text(json.dumps({**header, "chain": link("", header)}) + "\n")
    with pytest.raises(UserError, match="ledger-format"):
        Ledger.open(tmp_path / "ledger.jsonl")


def test_it_is_never_started_twice(ledger):
    before = ledger.path.read_bytes()
    with pytest.raises(UserError, match="ledger-exists"):
        Ledger.create(ledger.path, PLAN)
    assert ledger.path.read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"\n", b"not json\n", b"[]\n", b'{"ledger": 99, "chain": "x"}\n', b"\xff\xfe\n"])
def test_what_is_no_ledger_is_refused(tmp_path, content):
    (tmp_path / "ledger.jsonl").write_bytes(content)
    with pytest.raises(UserError):
        Ledger.open(tmp_path / "ledger.jsonl")


def test_no_release_is_paid_for_beyond_the_promise(ledger):
    ledger.charge(Release(4, "digest-4"))
    before = ledger.path.read_bytes()
    for refused, reason in (
        (Release(5, "one more"), "ledger-spent"),
        (Release(2, "another"), "ledger-step-twice"),
        (Release(2, "digest-2"), "ledger-step-twice"),
    ):
        with pytest.raises(UserError, match=reason):
            ledger.charge(refused)
    assert ledger.path.read_bytes() == before and ledger.charged == 5


def test_two_coordinators_of_one_run_cannot_both_pay(ledger):
    """Two hold the run where the locks of a shared file system have failed; each step must be released once."""
    other = Ledger.open(ledger.path)
    before = other.charged
    ledger.charge(Release(before, "aa"))
    with pytest.raises(UserError, match="ledger-writers"):
        other.charge(Release(before, "bb"))
    assert Ledger.open(ledger.path).charged == before + 1


def test_who_reads_a_ledger_takes_no_line_from_who_writes_it(ledger):
    """A reader may see half of a line that is being written; `dpfed privacy ledger RUN` asks while the run goes on."""
    whole = ledger.path.read_bytes()
    ledger.path.write_bytes(whole + b'{"step": 4, "dig')
    reader = Ledger.open(ledger.path)
    ledger.path.write_bytes(whole)  # the writer is at the beginning of its line again, and now writes it
    ledger.charge(Release(4, "digest-4"))
    with pytest.raises(UserError, match="ledger-writers"):
        reader.charge(Release(4, "other"))
    assert Ledger.open(ledger.path).release_of(4) == Release(4, "digest-4")


@pytest.mark.parametrize("room", [0, 1, 20])
def test_a_ledger_goes_on_after_a_full_disk_has_room(ledger, monkeypatch, room):
    """A site's worker outlives the full disk: it refuses the step, and answers the next one."""
    whole = ledger.path.read_bytes()
    with full_disk(monkeypatch, room), pytest.raises(OSError, match="No space left"):
        ledger.charge(Release(4, "digest-4"))
    assert ledger.path.read_bytes() == whole and ledger.charged == 4
    ledger.charge(Release(4, "digest-4"))
    assert Ledger.open(ledger.path).charged == 5


def test_a_crash_while_a_ledger_begins_leaves_none(tmp_path, monkeypatch):
    path = tmp_path / "ledger.jsonl"
    with full_disk(monkeypatch, 10), pytest.raises(OSError, match="No space left"):
        Ledger.create(path, PLAN)
    assert not path.exists() and Ledger.create(path, PLAN).charged == 0


def test_the_most_owners_that_ever_shared_a_run_stay_on_record(ledger):
    charged = ledger.charged
    for world_size in (1, 3, 2):
        ledger.note_world_size(world_size)
    ledger.charge(Release(charged, "aa"))
    again = Ledger.open(ledger.path)
    assert (again.world_size, again.charged, again.replays) == (3, charged + 1, ledger.replays)


def test_a_plans_fingerprint_is_the_hash_of_its_fields():
    plan = PrivacyPlan.of(120, 20, 4, 1.0, 5, 1.5, 1e-5, "rdp", unit="user", per_unit=2)
    kept = plan.as_dict()
    numbers = dict(records=120, batch=20, group_size=4, clip_norm=1.0, steps=5, noise_multiplier=1.5, delta=1e-5)
    numbers |= dict(accountant="rdp", max_group_size=None, target_epsilon=None, unit="user", per_unit=2, method_name="group")
    numbers |= dict(max_batch=None, options={}, noise_kind="gaussian", clipping="fixed", stability=0.0, progress={})
    assert list(kept.items()) == list(numbers.items())  # in this order
    assert PrivacyPlan.from_dict(kept) == plan
    hashed = {**kept, "arithmetic": ARITHMETIC}
    assert plan.fingerprint == hashlib.sha256(json.dumps(hashed, sort_keys=True).encode()).hexdigest()[:16]


@pytest.mark.long
def test_a_run_whose_engines_rounded_otherwise_is_not_resumed(tiny_config, tmp_path, monkeypatch):
    monkeypatch.setattr("dpfed.privacy.plan.ARITHMETIC", ARITHMETIC - 1)
    run = pretrain(tiny_config, tmp_path / "run")
    assert Ledger.open(run.ledger).charged == tiny_config.privacy.steps
    monkeypatch.undo()
    ledger = Ledger.open(run.ledger)  # what was spent can still be read
    assert ledger.charged == tiny_config.privacy.steps
    with pytest.raises(UserError, match="stays spent. Start a new run.*ledger-older-run"):
        ledger.require_current()


@pytest.mark.parametrize(
    "entry",
    [
        {"step": math.nan, "digest": "d", "charged": True},
        {"step": 4.0, "digest": "d", "charged": True},
        {"step": -1, "digest": "d", "charged": True},
        {"step": 4, "digest": None, "charged": True},
        {"step": 4, "digest": "d", "charged": math.nan},
        {"step": 4, "digest": "d", "charged": 0},
        {"digest": "d", "charged": True},
        {"owners": math.nan},
        {"owners": math.inf},
        {"owners": True},
        {"resumed": math.nan},
        {"papers": {"card": "c"}},
        {"papers": 1},
    ],
    ids=str,
)
def test_a_count_that_is_no_whole_number_is_damage(ledger, entry):
    append_line(ledger.path, {**entry, "chain": link(ledger.head, entry)})
    with pytest.raises(UserError, match="line 6: .*ledger-damaged"):
        Ledger.open(ledger.path)


def test_a_release_of_unknown_cost_is_not_made(ledger, monkeypatch):
    ledger.charge(Release(4, "digest-4"))
    monkeypatch.setattr(PrivacyPlan, "epsilon", lambda *_: math.nan)
    with pytest.raises(UserError, match="ledger-spent"):
        ledger.check_budget(5)


@pytest.mark.parametrize("block", [math.nan, math.inf, 0, -5, 7.0, True])
def test_blocks_that_cut_no_sum_are_damage(tmp_path, block):
    Ledger.create(tmp_path / "ledger.jsonl", PLAN, block=block)
    with pytest.raises(UserError, match="line 1: .*ledger-damaged"):
        Ledger.open(tmp_path / "ledger.jsonl")


def test_digests_of_a_newer_version_are_no_damage(tmp_path, monkeypatch):
    monkeypatch.setattr("dpfed.privacy.ledger.UNIVERSAL", "universal-2")
    path = Ledger.create(tmp_path / "ledger.jsonl", PLAN, universal=True).path
    monkeypatch.undo()
    with pytest.raises(UserError, match="'universal-2'.*the version of dpfed that wrote the file.*ledger-digest"):
        Ledger.open(path)
