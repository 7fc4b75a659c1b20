"""Keep, charge, use: each is on the disk, file and name, before the next begins. A power cut in between loses no payment."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from dpfed.config import OptimizerConfig
from dpfed.federation.coordinator.journal import Journal
from dpfed.privacy.blocks import Blocks
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.randomness import Randomness
from dpfed.training.checkpoint import Checkpoints, Progress
from dpfed.training.coordinator import Coordinator
from dpfed.training.releases import Part, Releases
from tests.files.disk import recorded
from tests.training.test_coordinator import zeros

PLAN = PrivacyPlan(1000, 64, 4, 0.5, 20, 1.3, 1e-5)
SIZE = 5


@pytest.fixture
def step(tmp_path, monkeypatch):
    """A run's coordinator, and what happens on the disk and to the model from its first step on."""
    model, folder = nn.Linear(SIZE, 1, bias=False), tmp_path / "run"
    folder.mkdir()
    ledger = Ledger.create(folder / "ledger.jsonl", PLAN)
    coordinator = Coordinator(
        PLAN, model, OptimizerConfig(name="sgd"), Randomness.from_seed(0), ledger, Releases(folder / "releases")
    )
    events = recorded(monkeypatch)
    use = coordinator.optimizer.step
    monkeypatch.setattr(coordinator.optimizer, "step", lambda: (events.append("use"), use()))

    def take(number):
        events.clear()
        coordinator.apply(number, zeros(size=SIZE))
        return list(events)

    return take, folder, ledger, model, coordinator


@pytest.mark.parametrize("number", [0, 1])
def test_a_noisy_sum_is_kept_then_paid_for_then_used(step, number):
    take, folder, ledger, *_ = step
    for earlier in range(number):
        take(earlier)
    events = take(number)
    release = ledger.release_of(number)
    kept = f"{number:08d}-{release.digest}.f32"
    content = (folder / "releases" / kept).read_bytes()
    assert len(content) == 4 * SIZE
    paid = (folder / "ledger.jsonl").read_bytes()
    assert json.loads(paid.splitlines()[-1])["digest"] == release.digest
    assert events == [
        *([("sync", "run", None)] if number == 0 else []),  # the name of the folder of releases
        ("sync", f".{kept}.partial", content),
        ("name", kept),
        ("sync", "releases", None),
        ("sync", "ledger.jsonl", paid),
        "use",
    ]


def test_a_part_of_a_release_is_on_disk_under_its_name_when_it_is_kept(tmp_path, monkeypatch):
    """A rank says that its part is kept, and rank 0 pays when all have said so."""
    blocks, noisy = Blocks(10, 4), torch.arange(10.0)
    events, part = recorded(monkeypatch), Part(3, "ab", 0, 3, blocks)
    Releases(tmp_path / "releases").save_part(part, noisy, blocks.digests(noisy))
    [path] = (tmp_path / "releases").iterdir()
    assert events == [
        ("sync", tmp_path.name, None),
        ("sync", f".{path.name}.partial", noisy.numpy().tobytes()),
        ("name", path.name),
        ("sync", "releases", None),
    ]


def test_a_long_noisy_sum_of_one_process_is_kept_then_paid_for_then_used(tmp_path, monkeypatch):
    model, folder = nn.Linear(SIZE, 1, bias=False), tmp_path / "run"
    folder.mkdir()
    ledger, releases = Ledger.create(folder / "ledger.jsonl", PLAN, block=2), Releases(folder / "releases")
    coordinator = Coordinator(PLAN, model, OptimizerConfig(name="sgd"), Randomness.from_seed(0), ledger, releases)
    events, use = recorded(monkeypatch), coordinator.optimizer.step
    monkeypatch.setattr(coordinator.optimizer, "step", lambda: (events.append("use"), use()))
    coordinator.apply(0, zeros(size=SIZE))
    [path] = (folder / "releases").iterdir()
    kept = [("sync", f".{path.name}.partial", path.read_bytes()), ("name", path.name), ("sync", "releases", None)]
    assert events == [("sync", "run", None), *kept, ("sync", "ledger.jsonl", ledger.path.read_bytes()), "use"]


def test_a_checkpoint_is_on_disk_under_its_name_before_older_ones_go(step, monkeypatch):
    _, folder, _, model, coordinator = step
    checkpoints = Checkpoints(folder / "checkpoints", keep=1)
    for done in range(2):
        checkpoints.save(Progress(done, done, PLAN.fingerprint), model, coordinator)
    events = recorded(monkeypatch)
    monkeypatch.setattr(Path, "unlink", lambda path, missing_ok=False: path.exists() and events.append(("gone", path.name)))
    path = checkpoints.save(Progress(2, 2, PLAN.fingerprint), model, coordinator)
    assert events == [
        ("sync", path.name, path.read_bytes()),
        ("name", path.name),
        ("sync", "checkpoints", None),
        ("gone", "step-00000001.safetensors"),
    ]


def test_a_new_ledger_and_a_new_journal_are_on_disk_with_their_names(tmp_path, monkeypatch):
    events = recorded(monkeypatch)
    Ledger.create(tmp_path / "ledger.jsonl", PLAN)
    Journal(tmp_path / "federation.jsonl").write("opened", 0)
    Journal(tmp_path / "federation.jsonl").write("collected", 0, arrived=[])
    done = [event[:2] for event in events]
    assert done[:3] == [("sync", ".ledger.jsonl.partial"), ("name", "ledger.jsonl"), ("sync", tmp_path.name)]
    assert done[3:] == [("sync", "federation.jsonl"), ("sync", tmp_path.name), ("sync", "federation.jsonl")]
    assert events[-1][2] == (tmp_path / "federation.jsonl").read_bytes()


def test_a_release_whose_writing_a_crash_cut_short_is_none_and_goes_with_the_others(tmp_path):
    folder = tmp_path / "releases"
    folder.mkdir()
    (folder / ".00000002-abc.f32.partial").write_bytes(b"1234")
    releases = Releases(folder)
    assert releases.load(2) is None and releases.latest() is None
    releases.forget(before=2)
    assert len(list(folder.iterdir())) == 1
    releases.forget(before=3)
    assert not list(folder.iterdir())
