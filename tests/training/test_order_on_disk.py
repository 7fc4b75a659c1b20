"""Keep, charge, use: each is on the disk, file and name, before the next begins. A power cut in between loses no payment."""

import json
import threading
import time
from pathlib import Path

import pytest
from torch import nn

from dpfed.callbacks import Callback
from dpfed.config import OptimizerConfig
from dpfed.errors import UserError
from dpfed.privacy.blocks import Blocks
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.randomness import Randomness
from dpfed.protocol.journal import Journal
from dpfed.training.checkpoint import Checkpoints, Position
from dpfed.training.coordinator import Coordinator
from dpfed.training.loop import train
from dpfed.training.releases import Releases
from tests.files.disk import recorded
from tests.training.test_coordinator import zeros

PLAN = PrivacyPlan.of(1000, 64, 4, 0.5, 20, 1.3, 1e-5)
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


def test_a_long_noisy_sum_is_kept_then_paid_then_used(tmp_path, monkeypatch):
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


class Sums:
    """A transport whose sums are there at once; says what is on disk when one is asked for."""

    def __init__(self, events):
        self._events = events

    def aggregate(self, step):
        self._events.append(f"aggregate {step}")
        return zeros(size=SIZE)


@pytest.mark.parametrize("ahead", [False, True])
def test_what_looks_at_a_step_waits_until_it_is_paid_for(step, monkeypatch, ahead):
    """Output commit: parameters may go on to the next sum, and an observer sees nothing that is not on disk."""
    _, folder, ledger, model, coordinator = step
    events, charge, slow = [], ledger.charge, threading.Event()
    monkeypatch.setattr(ledger, "charge", lambda release: (slow.wait(0.3), charge(release), events.append("paid")))
    seen = []

    class Look(Callback):
        every = 2

        def on_step(self, step):
            events.append("seen")
            seen.append((step.done, ledger.charged, len(list((folder / "releases").iterdir()))))

    coordinator.ahead = ahead
    train(Sums(events), coordinator, range(4), [Look()])
    assert seen == [(2, 2, 2), (4, 4, 4)] and ledger.charged == 4
    first = ["aggregate 0", "aggregate 1", "paid"] if ahead else ["aggregate 0", "paid", "aggregate 1"]
    assert events[:3] == first and events.count("paid") == 4


def test_an_error_is_said_when_the_release_before_it_is_paid_for(step, monkeypatch):
    *_, ledger, _, coordinator = step
    charge = ledger.charge
    monkeypatch.setattr(ledger, "charge", lambda release: (time.sleep(0.1), charge(release)))

    class Failing(Sums):
        def aggregate(self, step):
            if step == 1:
                raise UserError("a message that may depend on the parameters")
            return super().aggregate(step)

    coordinator.ahead = True
    with pytest.raises(UserError, match="may depend"):
        train(Failing([]), coordinator, range(4))
    assert ledger.charged == 1


class Seen(Callback):
    """Keeps all that a callback is given."""

    every = 1

    def __init__(self, seen):
        self.on_step = seen.append


def test_a_failed_payment_stops_the_run_before_anything_is_seen(step, monkeypatch):
    *_, ledger, _, coordinator = step
    monkeypatch.setattr(ledger, "charge", lambda release: (_ for _ in ()).throw(OSError(28, "No space left")))
    seen, coordinator.ahead = [], True
    with pytest.raises(OSError, match="No space"):
        train(Sums([]), coordinator, range(4), [Seen(seen)])
    assert not seen and ledger.charged == 0
    with pytest.raises(OSError, match="No space"):  # whoever goes on all the same takes no step
        coordinator.apply(1, zeros(size=SIZE))
    with pytest.raises(OSError, match="No space"):
        coordinator.discard(1)


def test_a_checkpoint_is_on_disk_before_older_ones_go(step, monkeypatch):
    _, folder, _, model, coordinator = step
    checkpoints = Checkpoints(folder / "checkpoints", keep=1)
    for done in range(2):
        checkpoints.save(Position(done, done, PLAN.fingerprint), model, coordinator)
    events = recorded(monkeypatch)
    monkeypatch.setattr(Path, "unlink", lambda path, missing_ok=False: path.exists() and events.append(("gone", path.name)))
    path = checkpoints.save(Position(2, 2, PLAN.fingerprint), model, coordinator)
    assert events == [
        ("sync", path.name, path.read_bytes()),
        ("name", path.name),
        ("sync", "checkpoints", None),
        ("gone", "step-00000001.safetensors"),
    ]


def test_new_ledgers_and_journals_are_on_disk_with_their_names(tmp_path, monkeypatch):
    events = recorded(monkeypatch)
    Ledger.create(tmp_path / "ledger.jsonl", PLAN)
    Journal(tmp_path / "federation.jsonl").write("opened", 0)
    Journal(tmp_path / "federation.jsonl").write("collected", 0, arrived=[])
    done = [event[:2] for event in events]
    assert done[:3] == [("sync", ".ledger.jsonl.partial"), ("name", "ledger.jsonl"), ("sync", tmp_path.name)]
    assert done[3:] == [("sync", "federation.jsonl"), ("sync", tmp_path.name), ("sync", "federation.jsonl")]
    assert events[-1][2] == (tmp_path / "federation.jsonl").read_bytes()


def test_a_release_cut_short_by_a_crash_is_none_and_goes(tmp_path):
    folder = tmp_path / "releases"
    folder.mkdir()
    (folder / ".00000002-abc.f32.partial").write_bytes(b"1234")
    releases = Releases(folder)
    assert releases.load(2, Blocks(1)) is None and releases.latest() is None
    releases.forget(before=2)
    assert len(list(folder.iterdir())) == 1
    releases.forget(before=3)
    assert not list(folder.iterdir())
