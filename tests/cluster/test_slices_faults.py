"""Ranks that die, or whose disk fails, while they share a step: each step is released and paid for once, with the same bits."""

import itertools
import shutil

import pytest
import torch
from safetensors.torch import load_file

from dpfed.cluster.slices import Slices
from dpfed.models.parameters import TrainableVector
from dpfed.privacy.ledger import Ledger
from dpfed.training.releases import Releases
from dpfed.training.update import SliceUpdate
from tests.cluster.processes import Processes, come_and_wait, wait_for
from tests.cluster.test_slices import run
from tests.cluster.toy import ADAM, PLAN, STEPS, GivenSums, released, toy

STOPPED = 3  # of STEPS; a checkpoint is written after every second

# Where all are killed, in step 3: on which rank, owner and name of what it does next, or has just done; which kept releases are
# repeated although they were paid, and which steps are left to compute.
POINTS = {
    "a rank has not kept its part": (1, Releases, "save_part", "before", 1, [3, 4, 5]),
    "rank 0 has not kept its part": (0, Releases, "save_part", "before", 1, [3, 4, 5]),
    "all parts are kept, and nothing is paid": (0, Ledger, "charge", "before", 1, [4, 5]),
    "paid, and not yet used": (0, Ledger, "charge", "after", 2, [4, 5]),
    "a rank has not used it": (1, SliceUpdate, "take", "before", 2, [4, 5]),
    "a rank has used it": (2, SliceUpdate, "take", "after", 2, [4, 5]),
}


def stop(rank, place, point):
    """Has a rank come to a point, and stay there."""
    at, owner, method, when, _, _ = POINTS[point]
    if at != rank:
        return
    real, calls = getattr(owner, method), itertools.count()

    def wrapped(*args):
        last = next(calls) == STOPPED
        if last and when == "before":
            come_and_wait(place)
        result = real(*args)
        if last:
            come_and_wait(place)
        return result

    setattr(owner, method, wrapped)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The finished run of one process."""
    return run(tmp_path_factory.mktemp("undisturbed") / "run", 0)


@pytest.fixture(scope="module", params=POINTS)
def crashed(request, tmp_path_factory):
    """A run of three processes that were killed at some point, and that point."""
    folder = tmp_path_factory.mktemp("crashed")
    arguments = (folder / "run", 3, PLAN, ADAM, stop, (folder / "here", request.param))
    with Processes(3, folder / "out", toy, *arguments) as processes:
        wait_for(folder / "here", processes)
        processes.kill()
    return folder / "run", request.param


def weights(folder):
    return load_file(max((folder / "checkpoints").iterdir()))


@pytest.mark.parametrize("ranks", [0, 2])
def test_a_crash_costs_nothing_twice_and_changes_no_bit_whoever_goes_on(crashed, undisturbed, tmp_path, ranks):
    folder, point = crashed
    *_, replayed, computed = POINTS[point]
    shutil.copytree(folder, tmp_path / "run")
    parts = list((folder / "releases").glob(f"{STOPPED:08d}-*.f32"))
    assert len(parts) == 3 if computed[0] > STOPPED else len(parts) < 3
    run(tmp_path / "run", ranks)
    assert torch.load(tmp_path / "run" / "told.pt", weights_only=False)[1] == computed
    assert released(tmp_path / "run") == (released(undisturbed)[0], replayed)
    mine, theirs = weights(tmp_path / "run"), weights(undisturbed)
    assert mine.keys() == theirs.keys() and all(torch.equal(mine[key], theirs[key]) for key in theirs)


def other_sums(rank):
    """As another number of workers would have them."""
    real = GivenSums.bounded_sum

    def bounded_sum(self, step):
        total = real(self, step)
        total.values.mul_(1.5)
        return total

    GivenSums.bounded_sum = bounded_sum


def test_a_paid_release_of_which_a_part_is_lost_is_not_released_in_another_way(tmp_path):
    folder = run(tmp_path / "run", 3)
    shutil.rmtree(folder / "checkpoints")
    before, kept = (folder / "ledger.jsonl").read_bytes(), sorted((folder / "releases").iterdir())
    kept[1].unlink()  # of step 0
    run(folder, 2, PLAN, ADAM, other_sums)
    assert "step 0 was released before and comes out differently" in (folder / "error").read_text()
    assert (folder / "ledger.jsonl").read_bytes() == before
    assert sorted((folder / "releases").iterdir()) == [*kept[:1], *kept[2:]]  # another sum is not even kept


def test_a_paid_release_of_which_a_part_is_lost_is_computed_again_with_the_same_bits(undisturbed, tmp_path):
    folder = run(tmp_path / "run", 3)
    shutil.rmtree(folder / "checkpoints")
    sorted((folder / "releases").iterdir())[1].unlink()  # of step 0
    run(folder, 2)
    assert torch.load(folder / "told.pt", weights_only=False)[1] == [0]
    assert released(folder) == (released(undisturbed)[0], STEPS)
    mine, theirs = weights(folder), weights(undisturbed)
    assert all(torch.equal(mine[key], theirs[key]) for key in theirs)


def no_space(rank):
    save, calls = Releases.save_part, itertools.count()

    def full(self, *args):
        if rank == 1 and next(calls) == STOPPED:
            raise OSError(28, "No space left on device", str(self._folder))
        return save(self, *args)

    Releases.save_part = full


def not_finite(rank, which=2):
    bring_in, calls = Slices.bring_in, itertools.count()

    def broken(self, own):
        values = bring_in(self, own)
        if rank == which and next(calls) == STOPPED:
            values[0] = torch.nan
        return values

    Slices.bring_in = broken


def not_finite_on_rank_0(rank):
    not_finite(rank, 0)


@pytest.mark.parametrize(
    ("hook", "said"),
    [
        (no_space, "worker 1 cannot keep its part of the release (No space left on device)"),
        (not_finite, "not finite"),
        (not_finite_on_rank_0, "not finite"),
    ],
    ids=["no space", "not finite", "not finite on rank 0"],
)
def test_what_one_rank_cannot_do_ends_the_run_before_anything_is_paid(hook, said, tmp_path):
    folder = run(tmp_path / "run", 3, PLAN, ADAM, hook)
    assert said in (folder / "error").read_text()
    assert Ledger.open(folder / "ledger.jsonl").charged == STOPPED and Releases(folder / "releases").load(STOPPED) is None
    run(folder, 2)
    assert Ledger.open(folder / "ledger.jsonl").charged == STEPS


def die(rank, place):
    made, calls = Slices.make_noisy, itertools.count()

    def dying(self, *args):
        if rank == 1 and next(calls) == STOPPED:
            come_and_wait(place)
        return made(self, *args)

    Slices.make_noisy = dying


def test_when_one_rank_is_killed_all_end_and_the_run_can_go_on(tmp_path):
    folder = tmp_path / "run"
    with Processes(3, tmp_path / "out", toy, folder, 3, PLAN, ADAM, die, (tmp_path / "here",)) as processes:
        wait_for(tmp_path / "here", processes)
        processes.members[1].kill()
        codes = processes.wait()
    assert codes[1] == -9 and 0 not in codes
    assert Ledger.open(folder / "ledger.jsonl").charged == STOPPED
    run(folder, 2)
    assert Ledger.open(folder / "ledger.jsonl").charged == STEPS


def flip(rank):
    """Another bit in a weight of rank 1 that rank 0 updates."""
    from dpfed.cluster import collective

    collective.CHECK_EVERY, take_step = 2, Slices.take_step

    def flipped(self, step, *args):
        told = take_step(self, step, *args)
        if rank == 1 and step == STOPPED:
            self._vectors[0].parameters[0].data.view(torch.uint8)[0] ^= 1
        return told

    Slices.take_step = flipped


def test_other_weights_are_noticed(tmp_path):
    folder = run(tmp_path / "run", 3, PLAN, ADAM, flip)
    assert "step 4: the weights of worker 1 are not those of worker 0" in (folder / "error").read_text()


def test_the_toy_is_a_run_with_several_blocks_for_each_rank():
    from tests.cluster.toy import LENGTH, model

    assert TrainableVector(model()).numel > 6 * LENGTH
