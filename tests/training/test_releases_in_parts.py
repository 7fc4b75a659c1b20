"""Kept releases in parts: what is put together is one attempt's, whole and undamaged, or nothing."""

import itertools

import pytest
import torch
from torch import nn

from dpfed.bounding.bounded_sum import BoundedSum
from dpfed.config import OptimizerConfig
from dpfed.errors import UserError
from dpfed.privacy.blocks import Blocks
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.randomness import Randomness
from dpfed.training.coordinator import Coordinator
from dpfed.training.releases import Part, Releases
from dpfed.training.slices import slices_of

BLOCKS = Blocks(1050, 100)
PLAN = PrivacyPlan(1000, 64, 4, 0.5, 20, 1.3, 1e-5)


def keep(releases, noisy, tag="ab", owners=3, step=4, leave_out=()):
    for number, own in enumerate(slices_of(BLOCKS, owners)):
        if number not in leave_out:
            part = noisy[own.place]
            releases.save_part(Part(step, tag, own.first, own.end, BLOCKS), part, BLOCKS.digests(part))


@pytest.fixture
def releases(tmp_path):
    return Releases(tmp_path / "releases")


@pytest.mark.parametrize("owners", [1, 2, 3, 11, 16])
def test_all_parts_of_a_release_are_the_release(releases, owners):
    noisy = torch.randn(BLOCKS.size)
    keep(releases, noisy, owners=owners)
    assert torch.equal(releases.load(4), noisy) and torch.equal(releases.load(4, BLOCKS.digest(noisy)), noisy)
    assert releases.load(4, "0" * 32) is None and releases.load(3) is None and releases.latest() == 4


@pytest.mark.parametrize("missing", range(3))
def test_a_release_that_lacks_a_part_is_none(releases, missing):
    noisy = torch.randn(BLOCKS.size)
    keep(releases, noisy, leave_out=[missing])
    assert releases.load(4) is None and releases.load(4, BLOCKS.digest(noisy)) is None
    keep(releases, noisy, tag="cd", leave_out=[0])
    assert releases.load(4) is None or missing == 0
    assert releases.latest() == 4  # and yet it shows that earlier steps were paid for


def test_parts_of_two_attempts_are_never_put_together(releases):
    """Each group's gradient in another part of the sum: the halves of two sums can move by more than one of them."""
    one, other = torch.randn(2, BLOCKS.size).unbind()
    keep(releases, one, tag="aa", leave_out=[1, 2])
    keep(releases, other, tag="bb", leave_out=[0])
    assert releases.load(4) is None
    keep(releases, other, tag="cc", owners=2)
    assert torch.equal(releases.load(4), other)


@pytest.mark.parametrize(
    "damage", [lambda c: c[:-4], lambda c: c + c[:4], lambda c: b"\1" + c[1:], lambda c: c[::-1], lambda c: b""]
)
def test_a_damaged_part_is_none(releases, tmp_path, damage):
    keep(releases, torch.randn(BLOCKS.size))
    for path in sorted((tmp_path / "releases").iterdir()):
        content = path.read_bytes()
        path.write_bytes(damage(content))
        assert releases.load(4) is None
        path.write_bytes(content)
    assert releases.load(4) is not None


def test_a_renamed_part_is_none(releases, tmp_path):
    noisy = torch.randn(BLOCKS.size)
    keep(releases, noisy)
    first, second, third = sorted((tmp_path / "releases").iterdir())
    names = first.name, second.name
    for path, name in zip((first, second), names, strict=True):
        path.rename(path.with_name(f"x{name}"))
    (tmp_path / "releases" / f"x{names[0]}").rename(second)
    (tmp_path / "releases" / f"x{names[1]}").rename(first)
    assert releases.load(4) is None and third.exists()


def test_old_parts_go_and_what_a_crash_cut_short_goes_with_them(releases, tmp_path):
    keep(releases, torch.randn(BLOCKS.size), step=4)
    keep(releases, torch.randn(BLOCKS.size), step=5)
    (tmp_path / "releases" / ".00000004-ab.0-4of11x100.00.f32.partial").write_bytes(b"1")
    releases.forget(before=5)
    assert releases.load(4) is None and releases.load(5) is not None and len(list((tmp_path / "releases").iterdir())) == 3


def make(tmp_path, size=1050, name="ledger.jsonl"):
    model, path = nn.Linear(size, 1, bias=False), tmp_path / name
    nn.init.zeros_(model.weight)
    ledger = Ledger.open(path) if path.exists() else Ledger.create(path, PLAN, block=100)
    config = OptimizerConfig(name="sgd", learning_rate=1.0, momentum=0.0)
    return model, Coordinator(PLAN, model, config, Randomness.from_seed(0), ledger, Releases(tmp_path / "releases")), ledger


def zeros():
    return BoundedSum(torch.zeros(1050), PLAN.sensitivity, PLAN.groups)


def test_one_process_repeats_what_it_kept_and_what_several_kept(tmp_path):
    one, coordinator, ledger = make(tmp_path)
    coordinator.apply(0, zeros())
    [path] = (tmp_path / "releases").iterdir()
    noisy = Releases(tmp_path / "releases").load(0, ledger.release_of(0).digest)
    assert ledger.block == 100 and torch.equal(one.weight.detach()[0], -noisy / PLAN.groups)
    same, again, _ = make(tmp_path)
    assert again.replay(0) is not None and torch.equal(same.weight, one.weight)
    path.unlink()
    keep(Releases(tmp_path / "releases"), noisy, step=0, owners=4)
    same, again, reopened = make(tmp_path)
    assert again.replay(0) is not None and torch.equal(same.weight, one.weight)
    assert (reopened.charged, reopened.replays) == (1, 2)


def test_a_paid_release_that_lacks_a_part_is_computed_again_with_the_same_bits_or_refused(tmp_path):
    one, coordinator, ledger = make(tmp_path)
    coordinator.apply(0, zeros())
    noisy = Releases(tmp_path / "releases").load(0)
    for path in (tmp_path / "releases").iterdir():
        path.unlink()
    keep(Releases(tmp_path / "releases"), noisy, step=0, leave_out=[1])
    same, again, _ = make(tmp_path)
    assert again.replay(0) is None
    again.apply(0, zeros())
    assert torch.equal(same.weight, one.weight)
    other, again, reopened = make(tmp_path)
    for path in (tmp_path / "releases").glob("*of11*"):
        path.unlink()
    before, another = ledger.path.read_bytes(), zeros()
    another.values[500] = 1e-3
    with pytest.raises(UserError, match="comes out differently"):
        again.apply(0, another)
    assert ledger.path.read_bytes() == before and not other.weight.any() and not list((tmp_path / "releases").iterdir())


def test_an_unpaid_release_is_paid_and_used_whole(tmp_path, monkeypatch):
    _, coordinator, ledger = make(tmp_path)
    monkeypatch.setattr(ledger, "charge", lambda release: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        coordinator.apply(0, zeros())
    model, again, ledger = make(tmp_path)
    assert ledger.charged == 0 and again.replay(0) is not None and ledger.charged == 1
    noisy = Releases(tmp_path / "releases").load(0, ledger.release_of(0).digest)
    assert torch.equal(model.weight.detach()[0], -noisy / PLAN.groups)


def test_a_run_keeps_the_blocks_that_its_ledger_names(tmp_path):
    """Where it names none, a sum is one block, however long."""
    ledger = Ledger.create(tmp_path / "old.jsonl", PLAN)
    assert "block" not in ledger.path.read_text() and Ledger.open(ledger.path).block is None
    new = Ledger.create(tmp_path / "new.jsonl", PLAN, block=100)
    assert Ledger.open(new.path).block == 100
    digests = set()
    for name, block in itertools.product(("old.jsonl", "new.jsonl"), (0, 1)):
        _, coordinator, ledger = make(tmp_path, name=name)
        if block == 0:
            coordinator.apply(0, zeros())
        digests.add((name, Ledger.open(ledger.path).release_of(0).digest))
    assert len(digests) == 2 and len({digest for _, digest in digests}) == 2
