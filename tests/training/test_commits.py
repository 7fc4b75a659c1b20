"""Steps in groups: nothing leaves before all steps that it depends on are charged, and no death loses a payment."""

import contextlib
import json
import os

import pytest
import torch

from dpfed.callbacks import Callback
from dpfed.errors import UserError
from dpfed.privacy.ledger import Ledger, Release
from dpfed.privacy.noise import GaussianNoise
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.randomness import Randomness
from dpfed.training.checkpoint import steps_of
from dpfed.training.commits import Commits
from tests.files.disk import full_disk, recorded
from tests.killed import Killed
from tests.training import small_steps
from tests.training.small_steps import KEY, PLAN, Small, Stopping, Sums, dying, opened, releases, weights


class Look(Callback):
    """Sees what is on disk when a step is shown."""

    def __init__(self, folder, every=1, waits=False):
        self.folder, self.every, self.waits, self.seen = folder, every, waits, []

    def on_step(self, step):
        self.seen.append((step.done, Ledger.open(self.folder / "ledger.jsonl").charged))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    steps, look = opened(folder), Look(folder)
    steps.run(Sums(steps.learner.model), [look])
    return weights(steps), releases(folder), [done for done, _ in look.seen]


def test_a_group_is_held_then_charged_once_then_named(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    steps = opened(folder, every=3, checkpoint_every=100)
    events = recorded(monkeypatch)
    steps.run(Sums(steps.learner.model, events=events))
    first = events[: events.index("aggregate 3")]
    assert first[:3] == ["aggregate 0", "aggregate 1", "aggregate 2"]  # nothing is written between them
    assert [event[:2] for event in first[3:]] == [
        ("sync", "run"),  # the name of the folder of states
        ("sync", "00000003.draft"),
        ("sync", "commits"),
        ("sync", "ledger.jsonl"),
        ("name", "00000003.state"),
    ]
    charged = [json.loads(line).get("step") for line in first[6][2].splitlines()[1:]]
    assert charged == [0, 1, 2]
    last = [event[:2] for event in events[events.index("aggregate 8") + 1 :]]
    payment = last.index(("sync", "ledger.jsonl"))
    assert payment < last.index(("sync", "step-00000009.safetensors"))  # no byte of a checkpoint before it
    assert not (folder / "releases").exists()


@pytest.mark.parametrize("waits", [False, True])
def test_who_looks_at_a_step_sees_it_charged(tmp_path, undisturbed, waits):
    folder = tmp_path / "run"
    steps, look = opened(folder), Look(folder, waits=waits)
    steps.run(Sums(steps.learner.model), [look])
    assert [done for done, _ in look.seen] == list(range(1, 10)) == undisturbed[2]
    assert all(charged >= done for done, charged in look.seen)
    together = {charged for _, charged in look.seen}
    assert together == ({3, 4, 7, 8, 9} if waits else set(range(1, 10)))  # groups end at checkpoints, too
    assert (weights(steps), releases(folder)) == undisturbed[:2]


def test_a_group_ends_where_an_engine_looks_anew(tmp_path, monkeypatch):
    """What it says then may depend on the weights: so many steps after a process began as there are between checkpoints."""
    folder = tmp_path / "run"
    steps = opened(folder, 100)
    with pytest.raises(Killed):
        steps.run(Stopping(steps.learner.model, 3))
    again, charge, charged = opened(folder, 100), Ledger.charge, []
    monkeypatch.setattr(Ledger, "charge", lambda self, *some: (charge(self, *some), charged.append(self.charged)))
    again.run(Sums(again.learner.model))
    assert again.start == 3 and charged == [4, 7, 8, 9]


def operations(tmp_path, monkeypatch):
    with dying(None, monkeypatch, tmp_path / "count") as done:
        steps = opened(tmp_path / "count")
        steps.run(Sums(steps.learner.model), [Look(tmp_path / "count", every=5)])
    return len(done)


def in_the_open(folder):
    """Steps of which something can be read by whoever has no key."""
    return [steps_of(path) for path in (folder / "checkpoints").glob("step-*.safetensors")]


@pytest.mark.parametrize("bits", [0.0, 0.25], ids=["the-same-machine", "a-machine-of-other-bits"])
def test_a_death_at_any_operation_loses_nothing(tmp_path, monkeypatch, undisturbed, bits):
    """Every step is charged once, none that is charged is computed again, and nothing in the open was not charged."""
    count = operations(tmp_path, monkeypatch)
    assert count > 40
    for at in range(count):
        folder = tmp_path / str(at)
        look = Look(folder, every=5)
        with contextlib.suppress(Killed), dying(at, monkeypatch, folder):
            steps = opened(folder)
            steps.run(Sums(steps.learner.model), [look])
        there = (folder / "ledger.jsonl").exists()
        before = releases(folder) if there else []
        assert all(done <= charged for done, charged in look.seen)
        assert all(done <= len(before) for done in [*in_the_open(folder), *(done for done, _ in look.seen)]), at
        steps, again = opened(folder), Look(folder, every=5)
        sums = Sums(steps.learner.model, bits)
        steps.run(sums, [again])
        assert all(step >= len(before) for step in sums.computed), at
        after = releases(folder)
        assert [step for step, _ in after] == list(range(9)) and after[: len(before)] == before, at
        if not bits:
            assert (weights(steps), after) == undisturbed[:2], at
        assert {done for done, _ in (*look.seen, *again.seen)} == {5, 9}, at
        assert not list((folder / "commits").glob("*.draft"))


def test_a_payment_that_was_cut_short_is_made_whole(tmp_path, monkeypatch, undisturbed):
    """The disk keeps any number of bytes of the one write that charges a group."""
    folder = tmp_path / "run"
    steps = opened(folder)
    whole, name = [], Commits.name
    monkeypatch.setattr(Commits, "name", lambda *_: (_ for _ in ()).throw(Killed))
    with pytest.raises(Killed):
        steps.run(Sums(steps.learner.model))
    monkeypatch.setattr(Commits, "name", name)
    whole = (folder / "ledger.jsonl").read_bytes()
    start = whole.index(b"\n") + 1
    draft = folder / "commits" / "00000003.draft"
    state = draft.read_bytes()
    for end in range(start, len(whole) + 1, 7):
        (folder / "ledger.jsonl").write_bytes(whole[:end])
        for path in (folder / "commits").iterdir():
            path.unlink()
        draft.write_bytes(state)
        again = opened(folder)
        assert (again.start, again.ledger.charged) == (3, 3) and (folder / "ledger.jsonl").read_bytes() == whole
    sums = Sums(again.learner.model)
    again.run(sums)
    assert sums.computed == list(range(3, 9)) and (weights(again), releases(folder)) == undisturbed[:2]


@pytest.mark.parametrize("room", [0, 40, 700, 1500])
def test_a_full_disk_stops_a_group_before_anything_is_seen(tmp_path, monkeypatch, undisturbed, room):
    folder = tmp_path / "run"
    steps, look = opened(folder), Look(folder, every=3)
    with pytest.raises(OSError, match="No space"), full_disk(monkeypatch, room):
        steps.run(Sums(steps.learner.model), [look])
    assert not look.seen and in_the_open(folder) == [0] and not releases(folder)
    with pytest.raises(OSError, match="No space"):
        steps.coordinator.commit()  # also where there is room by now: nobody knows what the disk has
    again = opened(folder)
    again.run(Sums(again.learner.model))
    assert (weights(again), releases(folder)) == undisturbed[:2]


def test_another_process_that_charges_ends_this_one(tmp_path):
    folder = tmp_path / "run"
    one, look = opened(folder), Look(folder, every=3)
    Ledger.open(folder / "ledger.jsonl").charge(Release(0, "of-another-process"))
    with pytest.raises(UserError, match="ledger-writers"):
        one.run(Sums(one.learner.model), [look])
    assert not look.seen and in_the_open(folder) == [0]
    again = opened(folder)  # the state that is there is not that of what was charged
    assert again.start == 0
    with pytest.raises(UserError, match="training-step-differs"):
        again.run(Sums(again.learner.model))
    assert releases(folder) == [(0, "of-another-process")]


def test_a_state_of_other_releases_than_the_charged_is_not_used(tmp_path):
    """Two processes, on storage whose locks failed, and the state of the one that did not pay has the name."""
    folder, other = tmp_path / "run", tmp_path / "other"
    for place, bits in ((folder, 0.0), (other, 0.25)):
        steps = opened(place, checkpoint_every=100)
        with pytest.raises(Killed):
            steps.run(Stopping(steps.learner.model, 3, bits))
    os.replace(other / "commits" / "00000003.state", folder / "commits" / "00000003.state")
    again = opened(folder, checkpoint_every=100)
    assert again.start == 0 and not list((folder / "commits").iterdir())


def test_a_ledger_behind_its_state_is_refused(tmp_path):
    folder = tmp_path / "run"
    steps = opened(folder, checkpoint_every=100)
    with pytest.raises(Killed):
        steps.run(Stopping(steps.learner.model, 4))
    lines = (folder / "ledger.jsonl").read_text().splitlines(keepends=True)
    for left in range(1, len(lines)):
        (folder / "ledger.jsonl").write_text("".join(lines[:left]))
        with pytest.raises(UserError, match="the commit of step 4 includes 4 releases.*resume-ledger-behind"):
            opened(folder, checkpoint_every=100)


def test_the_budget_is_asked_before_the_noise_is_drawn(tmp_path, monkeypatch):
    """Of releases that are made and not charged, too."""
    plan = PrivacyPlan.of(1000, 64, 4, 0.5, 9, 1.3, 1e-5, target_epsilon=PLAN.epsilon() * 1.0001)
    folder = tmp_path / "run"
    steps = opened(folder, 100, 100, plan)
    for extra in range(7):
        steps.ledger.charge(Release(100 + extra, "an accident"))
    drawn, real = [], GaussianNoise.steps
    monkeypatch.setattr(GaussianNoise, "steps", lambda self, *given: (drawn.append(given[3]), real(self, *given))[1])
    with pytest.raises(UserError, match="ledger-spent"):
        steps.run(Sums(steps.learner.model))
    assert drawn == [0, 1] and steps.ledger.charged == plan.steps


def test_a_state_tells_nothing_without_its_key(tmp_path):
    """Whatever follows from a release is encrypted: the file has no run of bytes of any tensor, name or figure in it."""
    folder = tmp_path / "run"
    steps = opened(folder, checkpoint_every=100)
    with pytest.raises(Killed):
        steps.run(Stopping(steps.learner.model, 3))
    content = (folder / "commits" / "00000003.state").read_bytes()
    secrets = [value.numpy().tobytes() for value in steps.learner.model.state_dict().values()]
    secrets += [release.encode() for _, release in releases(folder)]
    for secret in [*secrets, b"weight", b"step", b"digest", b"exp_avg", KEY.master]:
        for start in range(0, len(secret) - 3, 4):
            assert secret[start : start + 4] not in content
    assert opened(folder, randomness=Randomness.from_seed(6)).start == 0  # another key opens it not
    for place in range(0, len(content), 11):
        changed = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
        (folder / "commits" / "00000003.state").write_bytes(changed)
        assert opened(folder).start == 0
    for length in range(0, len(content), 97):
        (folder / "commits" / "00000003.state").write_bytes(content[:length])
        assert opened(folder).start == 0


def test_steps_of_a_loop_of_the_users_own_are_charged_one_by_one(tmp_path, undisturbed):
    folder = tmp_path / "run"
    steps = opened(folder)
    with pytest.raises(Killed):
        steps.run(Stopping(steps.learner.model, 2))
    again, seen = opened(folder), []
    for summary in again.each(Sums(again.learner.model)):
        seen.append((summary.done, Ledger.open(folder / "ledger.jsonl").charged))
        if summary.done == 6:
            break
    assert seen == [(done, done) for done in range(3, 7)]
    last = opened(folder)
    last.run(Sums(last.learner.model))
    assert (weights(last), releases(folder)) == undisturbed[:2]


class PartlyFrozen(Small):
    """A model with a weight that no checkpoint but the first one has."""

    def __init__(self, plan):
        super().__init__(plan)
        self.model.bias = torch.nn.Parameter(torch.zeros(1), requires_grad=False)


@pytest.mark.parametrize("gone", [True, False])
@pytest.mark.parametrize("from_commit", [True, False])
def test_a_state_without_its_frozen_weights_names_the_file_to_restore(tmp_path, monkeypatch, gone, from_commit):
    monkeypatch.setattr(small_steps, "Small", PartlyFrozen)
    steps = opened(tmp_path / "run")
    with pytest.raises(Killed):
        steps.run(Stopping(steps.learner.model, at=7))
    first, *_, state = sorted((tmp_path / "run" / "checkpoints").iterdir())
    if gone:
        first.unlink()
    else:
        first.write_bytes(first.read_bytes()[:-1])
    [commit] = (tmp_path / "run" / "commits").iterdir()
    if from_commit:
        state = commit
    else:
        commit.unlink()
    with pytest.raises(UserError, match=rf"{state} holds trained.*restore .*step-00000000.safetensors"):
        opened(tmp_path / "run")
