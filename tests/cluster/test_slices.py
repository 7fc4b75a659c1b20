"""Ranks that share the coordinator's work: the same bits for any number of them, each number's noise once, paid before used."""

import time

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file

import dpfed.cluster.slices
from dpfed.cluster.collective import Collective
from dpfed.cluster.slices import Slices
from dpfed.config import OptimizerConfig
from dpfed.privacy.blocks import Blocks, SumNoise
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.randomness import KEY_BYTES, Randomness
from dpfed.training.releases import Releases
from dpfed.training.slices import slices_of
from dpfed.training.update import SliceUpdate
from tests.cluster.processes import Processes
from tests.cluster.toy import ADAM, ADAPTIVE, DISCRETE, LENGTH, PLAN, SECRET, STEPS, model, released, size_of, toy
from tests.sparing import sparing

MOMENTUM = OptimizerConfig(name="sgd", learning_rate=0.1, momentum=0.9, weight_decay=0.01)
CASES = {"adam": (PLAN, ADAM), "momentum": (PLAN, MOMENTUM), "discrete": (DISCRETE, ADAM), "adaptive": (ADAPTIVE, ADAM)}
WORLDS = {"alone": 0, "simple": 2, "1": 1, "2": 2, "3": 3}


def count(rank, folder, how):
    """Writes down how often this rank made a slice noisy; `simple`: ranks do not share the coordinator's work."""
    made = Slices.make_noisy

    def make_noisy(self, *args):
        with open(folder / f"noisy-{rank}", "a") as file:
            file.write(".")
        return made(self, *args)

    Slices.make_noisy = make_noisy
    if how == "simple":
        Collective.share_out = lambda *_: None


def run(folder, ranks, *args):
    folder.mkdir(exist_ok=True)
    with Processes(max(1, ranks), folder / "out", toy, folder, ranks, *args) as processes:
        assert processes.wait() == [0] * max(1, ranks), processes.text
    return folder


@pytest.mark.parametrize("case", sparing(CASES, "adaptive", "discrete"))
def test_releases_weights_checkpoints_and_figures_have_the_same_bits_whoever_shares_the_work(case, tmp_path):
    plan, config = CASES[case]
    for how, ranks in WORLDS.items():
        folder = run(tmp_path / how, ranks, plan, config, count, (tmp_path / how, how))
        shared = [len(path.read_text()) for path in folder.glob("noisy-*")]
        assert shared == ([] if how in ("alone", "simple") else [STEPS] * ranks)
    alone = tmp_path / "alone"
    assert len(released(alone)[0]) == STEPS
    names = sorted(path.name for path in (alone / "checkpoints").iterdir())
    assert len(names) == 3  # the first one, and the last two
    for how in WORLDS:
        assert released(tmp_path / how) == released(alone), how
        told = [torch.load(folder / "told.pt", weights_only=False)[0] for folder in (tmp_path / how, alone)]
        assert told[0] == told[1], how
        for name in names:
            mine, theirs = (load_file(folder / "checkpoints" / name) for folder in (tmp_path / how, alone))
            assert mine.keys() == theirs.keys()
            assert all(torch.equal(mine[key], theirs[key]) for key in mine), (how, name)
    assert any(key.startswith("optimizer/") for key in load_file(alone / "checkpoints" / names[-1]))


def watch(rank, folder, sabotage=None):
    """Writes down what reaches and leaves this rank in each step, and what is on disk when."""
    seen = {"clean": [], "noisy": [], "received": [], "events": []}
    hashed, made, used, charge, save = Slices.hash, Slices.make_noisy, SliceUpdate.take, Ledger.charge, Releases.save_part
    ledger, releases = folder / "ledger.jsonl", Releases(folder / "releases")

    def hash_of(self):
        seen["clean"].append(self._values.clone())
        return hashed(self)

    def make_noisy(self, *args):
        reports = made(self, *args)
        seen["noisy"].append(self._values.clone())
        torch.save(seen, folder / f"seen-{rank}.pt")
        return reports

    def take(self, step, noisy, threshold):
        kept = releases.load(step) is not None
        seen["events"].append(("use", step, Ledger.open(ledger).charged, kept, time.monotonic()))
        found = used(self, step, noisy, threshold)
        torch.save(seen, folder / f"seen-{rank}.pt")
        return found

    def charged(self, release):
        seen["events"].append(("charge", release.step, releases.load(release.step, release.digest) is not None))
        return charge(self, release)

    def saved(self, part, noisy, digests):
        seen["events"].append(("keep", part.step, Ledger.open(ledger).charged))
        return save(self, part, noisy, digests)

    def listening(real):
        def call(first, *args, **kwargs):
            result = real(first, *args, **kwargs)
            if isinstance(first, torch.Tensor) and first.dtype in (torch.uint8, torch.int64):
                seen["received"].append(first.numpy().tobytes())
            return result

        return call

    Slices.hash, Slices.make_noisy, SliceUpdate.take = hash_of, make_noisy, take
    Ledger.charge, Releases.save_part = charged, saved
    for name in ("broadcast", "scatter"):
        setattr(dist, name, listening(getattr(dist, name)))
    if sabotage:
        sabotage(rank)


def watched(folder, sabotage=None):
    run(folder, 3, PLAN, ADAM, watch, (folder, sabotage))
    return [torch.load(folder / f"seen-{rank}.pt", weights_only=False) for rank in range(3)]


BLOCKS = Blocks(size_of(model(), PLAN), LENGTH)
NOISE = SumNoise(PLAN.noise, SECRET, BLOCKS, PLAN.fingerprint)


def check_noise(seen):
    """Each number's noise once: of one step, from all ranks, by its size, and against what the run's own secret says."""
    for step in range(STEPS):
        clean, noisy = (torch.cat([one[what][step] for one in seen]) for what in ("clean", "noisy"))
        assert len(clean) == BLOCKS.size
        noise = (noisy.double() - clean.double()) / PLAN.noise_std
        for block in noise.split(LENGTH):
            assert abs(block.std().item() - 1) < 6 / (2 * len(block)) ** 0.5
        expected = clean.clone()
        NOISE.add_(expected, step)
        assert torch.equal(noisy, expected)


def check_keys(seen):
    """What reaches a rank holds the keys of its own blocks, not those of others, and nothing that they follow from."""
    slices = slices_of(BLOCKS, len(seen))
    for rank in range(1, len(seen)):
        heard = seen[rank]["received"]
        assert not any(SECRET.master in message for message in heard)
        for step in range(STEPS):
            for number, key in enumerate(NOISE.keys(step, 0, BLOCKS.count)):
                own = slices[rank].first <= number < slices[rank].end
                assert any(key in message for message in heard) == own, (rank, step, number)
        # Whatever 32 bytes of it are taken for a key, or for what keys follow from: nobody else's is among them.
        windows = {message[at : at + KEY_BYTES] for message in heard for at in range(len(message) - KEY_BYTES + 1)}
        [theirs] = NOISE.keys(1, 0, 1)
        assert len(windows) > 100 and theirs not in windows
        assert theirs not in {Randomness(window).key("block of noise", 0, 1) for window in windows}


def check_order(seen):
    """Kept whole before it is paid for, paid for before anybody uses it."""
    charges = {event[1]: event[2] for event in seen[0]["events"] if event[0] == "charge"}
    for step in range(STEPS):
        assert charges[step]  # all parts were on disk, with the digest that was paid for
        for one in seen:
            keep, use = (event for event in one["events"] if event[1] == step and event[0] != "charge")
            assert keep[0] == "keep" and keep[2] == step
            assert use[0] == "use" and use[2] == step + 1 and use[3]


CHECKS = {"noise": check_noise, "keys": check_keys, "order": check_order}


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    return watched(tmp_path_factory.mktemp("honest"))


@pytest.mark.parametrize("check", CHECKS)
def test_each_number_gets_its_noise_once_from_its_owner_and_is_paid_for_before_it_is_used(honest, check):
    CHECKS[check](honest)


def noise_twice(rank):
    add = dpfed.cluster.slices.add_to_blocks_

    def twice(*args):
        for _ in range(1 + (rank == 1)):
            add(*args)

    dpfed.cluster.slices.add_to_blocks_ = twice


def noise_on_one_slice_only(rank):
    if rank:
        dpfed.cluster.slices.add_to_blocks_ = lambda *_: None


def one_noise_for_all_blocks(rank):
    keys = SumNoise.keys
    SumNoise.keys = lambda self, step, first, end: keys(self, step, 0, 1) * (end - first)


def the_master_key_travels(rank):
    keys = SumNoise.keys
    SumNoise.keys = lambda self, step, first, end: [self._randomness.master, *keys(self, step, first, end)[1:]]


def used_before_paid(rank):
    make_noisy = Slices.make_noisy

    def at_once(self, *args):
        reports = make_noisy(self, *args)
        if rank == 1:
            step = Ledger.open(self._releases._folder.parent / "ledger.jsonl").charged
            self.update.take(step, self._values.clone(), None)
        return reports

    Slices.make_noisy = at_once


def paid_before_kept(rank):
    make_noisy, take_step, save = Slices.make_noisy, Slices.take_step, Releases.save_part

    def nothing_kept(self, *args):
        Releases.save_part = lambda *_: None
        try:
            return make_noisy(self, *args)
        finally:
            Releases.save_part = save

    def kept_late(self, *args):
        self._keep()
        return take_step(self, *args)

    if rank == 2:
        Slices.make_noisy, Slices.take_step = nothing_kept, kept_late


SABOTAGE = {
    noise_twice: "noise",
    noise_on_one_slice_only: "noise",
    one_noise_for_all_blocks: "keys",
    the_master_key_travels: "keys",
    used_before_paid: "order",
    paid_before_kept: "order",
}


@pytest.mark.parametrize("sabotage", SABOTAGE, ids=lambda one: one.__name__)
def test_each_check_sees_what_it_is_for(tmp_path, sabotage):
    seen = watched(tmp_path / "run", sabotage)
    with pytest.raises((AssertionError, ValueError)):
        CHECKS[SABOTAGE[sabotage]](seen)
