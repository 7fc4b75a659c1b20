"""Workers that crash, differ, fail or are too many: what is spent stays right, and nothing hangs or tells a secret."""

import itertools
import json
import shutil
import socket

import pytest
import torch
import torch.distributed as dist

from dpfed.artifacts.directory import RunDirectory
from dpfed.config import load_config
from dpfed.data.generated.shapes import write_shapes
from dpfed.data.store.records import RecordStore
from dpfed.errors import UserError
from dpfed.models.parameters import TrainableVector
from dpfed.privacy.ledger import Ledger
from dpfed.runs import build as building
from dpfed.training.commits import Commits
from dpfed.training.worker import Worker
from tests.cluster.conftest import STEPS
from tests.cluster.processes import Processes, come_and_wait, command, dpfed, pretrain, wait_for
from tests.sparing import sparing

pytestmark = pytest.mark.long

STOPPED = 3  # of STEPS; a checkpoint is written after every second


def freeze_text(rank, *arguments):
    """Trains the image tower alone."""
    model_of = building.model_of

    def frozen(*args, **kwargs):
        model = model_of(*args, **kwargs)
        model.text_encoder.requires_grad_(False)
        return model

    building.model_of = frozen


def ledger_lines(run):
    """What was released; how many owners there were stands in other lines."""
    return [line for line in map(json.loads, run.ledger.read_text().splitlines()[1:]) if "charged" in line]


def check_paid(run, undisturbed):
    """Each step was paid for exactly once, and what was spent is what it would have been."""
    lines = ledger_lines(run)
    assert [line["step"] for line in lines if line["charged"]] == list(range(STEPS))
    assert Ledger.open(run.ledger).epsilon == Ledger.open(undisturbed.ledger).epsilon
    results, expected = (json.loads(one.results.read_text()) for one in (run, undisturbed))
    assert results["privacy"] == expected["privacy"]
    return [line["step"] for line in lines if not line["charged"]]


# Where all are killed, in the second commit, of steps 2 and 3: owner and name of what rank 0 does next, or has just done, and
# which steps are left to compute.
POINTS = {
    "before the state is held": (Commits, "write", "before", [2, 3, 4, 5]),
    "between holding and paying": (Ledger, "charge", "before", [4, 5]),
    "paid, and not yet named": (Ledger, "charge", "after", [4, 5]),
}


def stop(rank, place, point, *arguments):
    owner, method, when, _ = POINTS[point]
    real, calls = getattr(owner, method), itertools.count()

    def wrapped(*args):
        last = next(calls) == 1
        if last and when == "before":
            come_and_wait(place)
        result = real(*args)
        if last:
            come_and_wait(place)
        return result

    setattr(owner, method, wrapped)
    dpfed(*arguments)


@pytest.fixture(scope="module", params=sparing(POINTS, "between holding and paying", "paid, and not yet named"))
def crashed(request, source, tmp_path_factory):
    """A run of two processes that were killed at some point, and that point."""
    folder = tmp_path_factory.mktemp("crashed")
    arguments = (folder / "here", request.param, *pretrain(source, folder / "run"))
    with Processes(2, folder / "out", stop, *arguments) as processes:
        wait_for(folder / "here", processes)
        processes.kill()
    return folder / "run", request.param


def resume(rank, log, *arguments):
    """Goes on with a run, and writes down which steps are computed."""
    bounded_sum = Worker.bounded_sum

    def logged(self, step):
        with open(f"{log}-{rank}", "a") as file:
            file.write(f"{step}\n")
        return bounded_sum(self, step)

    Worker.bounded_sum = logged
    dpfed("resume", *arguments, "--cluster", "torchrun")


@pytest.mark.parametrize("workers", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_a_crash_in_a_step_costs_nothing_twice_whoever_goes_on(crashed, undisturbed, tmp_path, workers):
    folder, point = crashed
    *_, computed = POINTS[point]
    shutil.copytree(folder, tmp_path / "run")
    before = Ledger.open(folder / "ledger.jsonl")
    with Processes(workers, tmp_path / "out", resume, tmp_path / "steps", tmp_path / "run") as processes:
        assert processes.wait() == [0] * workers, processes.text
    run = RunDirectory.open(tmp_path / "run")
    assert check_paid(run, undisturbed) == []  # none was computed again
    for rank in range(workers):
        assert (tmp_path / f"steps-{rank}").read_text().split() == [str(step) for step in computed]
    after = Ledger.open(run.ledger)
    assert all(after.release_of(step) == before.release_of(step) for step in before.steps)
    assert not (run.path / "secret.key").exists() and not (run.path / "commits").exists()


@pytest.mark.parametrize("crashed", ["paid, and not yet named"], indirect=True)
def test_any_number_of_workers_repeats_the_paid_release(crashed, tmp_path):
    """The state is lost; otherwise no step would be repeated. Another release of a paid step would be refused."""
    folder, _ = crashed
    shutil.copytree(folder, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "commits")
    before = Ledger.open(folder / "ledger.jsonl")
    with Processes(1, tmp_path / "out", command, "resume", tmp_path / "run", "--cluster", "torchrun") as processes:
        assert processes.wait() == [0], processes.text
    after = Ledger.open(tmp_path / "run" / "ledger.jsonl")
    assert before.charged == 4 and after.charged == STEPS and after.replays == 2
    assert all(after.release_of(step) == before.release_of(step) for step in range(before.charged))


def hang(rank, place, *arguments):
    bounded_sum = Worker.bounded_sum

    def hanging(self, step):
        if rank == 1 and step == STOPPED:
            come_and_wait(place)
        return bounded_sum(self, step)

    Worker.bounded_sum = hanging
    dpfed(*arguments)


def test_when_one_worker_is_killed_all_end_and_the_run_can_go_on(source, undisturbed, tmp_path):
    folder = tmp_path / "run"
    with Processes(3, tmp_path / "out", hang, tmp_path / "here", *pretrain(source, folder)) as processes:
        wait_for(tmp_path / "here", processes)
        processes.members[1].kill()
        codes = processes.wait()
    assert codes[1] == -9 and 0 not in codes
    assert Ledger.open(folder / "ledger.jsonl").charged == STOPPED
    with Processes(2, tmp_path / "again", command, "resume", folder, "--cluster", "torchrun") as processes:
        assert processes.wait() == [0, 0], processes.text
    check_paid(RunDirectory.open(folder), undisturbed)


def damage(rank, who, *arguments):
    images, calls = RecordStore.images, itertools.count()

    def damaged(self, indices, *args, **kwargs):
        if rank == who and next(calls) == 2:
            raise UserError(f"the image of {self.ids(indices[:1])[0]!r} cannot be decoded")
        return images(self, indices, *args, **kwargs)

    RecordStore.images = damaged
    dpfed(*arguments)


@pytest.mark.parametrize("who", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_store_damaged_midway_ends_the_run_and_names_no_record(source, shapes, tmp_path, who):
    with Processes(2, tmp_path / "out", damage, who, *pretrain(source, tmp_path / "run")) as processes:
        assert processes.wait() == [2, 0], processes.text
        assert "[worker-store]" in processes.output(0) and f"error: step 2: worker {who} " in processes.output(0)
        printed = processes.text
    assert "Traceback" not in printed
    written = "".join(path.read_text() for path in (tmp_path / "run").glob("*.*l"))  # configuration, ledger, metrics
    assert written and not any(id in printed + written for id in shapes.ids(range(len(shapes))))
    assert Ledger.open(tmp_path / "run" / "ledger.jsonl").charged == 2


def elsewhere(rank, path, *arguments):
    """Worker 1 finds other records at the same place."""
    if rank == 1:
        building.records_of = lambda *_, **__: RecordStore.open(path)
    dpfed(*arguments)


def test_a_worker_with_another_store_is_refused_unspent(source, tmp_path):
    write_shapes(tmp_path / "other", train=300, validation=0, test=200)  # of fewer records, each is drawn more often
    with Processes(2, tmp_path / "out", elsewhere, tmp_path / "other", *pretrain(source, tmp_path / "run")) as processes:
        assert processes.wait() == [2, 0], processes.text
        assert f"worker 1 on {socket.gethostname()} has different records" in processes.output(0)
        assert "Traceback" not in processes.text


def another_disk(rank, *arguments):
    """Worker 1 finds no run, or another one, where worker 0 has it."""
    if rank == 1:
        RunDirectory.identity = ""
    dpfed(*arguments)


def test_workers_that_do_not_share_the_runs_storage_are_refused(source, tmp_path):
    """Started again after a fault, such a worker could be rank 0, and would begin the run once more."""
    with Processes(2, tmp_path / "out", another_disk, *pretrain(source, tmp_path / "run")) as processes:
        assert processes.wait() == [2, 0], processes.text
        assert f"worker 1 on {socket.gethostname()}: the run at" in processes.output(
            0
        ) and "[worker-other-run]" in processes.output(0)
    assert not (tmp_path / "run" / "ledger.jsonl").exists()


COLLECTIVES = ["broadcast", "reduce", "all_reduce", "all_gather", "gather", "scatter", "all_gather_into_tensor"]


def count(rank, log, *arguments):
    freeze_text(rank)
    sent = []

    def counted(name, real):
        def call(*args, **kwargs):
            sent.append((name, *((one.dtype, one.numel()) for one in args if isinstance(one, torch.Tensor))))
            return real(*args, **kwargs)

        return call

    for name in COLLECTIVES:
        setattr(dist, name, counted(name, getattr(dist, name)))
    try:
        dpfed(*arguments)
    finally:
        torch.save(sent, f"{log}-{rank}")


def test_a_step_sends_what_is_trained_once_and_receives_it_once(source, tmp_path):
    with Processes(2, tmp_path / "out", count, tmp_path / "sent", *pretrain(source, tmp_path / "run")) as processes:
        assert processes.wait() == [0, 0], processes.text
    model = building.build(load_config(source)).model
    whole = [(torch.float32, value.numel()) for value in model.state_dict().values()]
    model.text_encoder.requires_grad_(False)
    trained = TrainableVector(model).numel
    assert trained < 0.9 * sum(size for _, size in whole)
    for rank in range(2):
        sent = torch.load(tmp_path / f"sent-{rank}")
        long = [(name, *what) for name, what in sent if what[0] == torch.float32 or name == "reduce"]
        first = [("broadcast", *what) for what in whole]
        assert long == first + [("broadcast", torch.float32, trained), ("reduce", torch.int64, trained)] * STEPS
        assert all(size <= 2 for name, (kind, size) in sent if kind == torch.int64 and name != "reduce")
