"""However many workers there are, a run is one mechanism: against an oracle in float64, with the noise fixed and free."""

import copy
import dataclasses
import itertools
import json
import re

import numpy as np
import pytest
import torch

from dpfed.artifacts.directory import RunDirectory
from dpfed.cluster.collective import Collective
from dpfed.cluster.link import Link
from dpfed.cluster.torchrun import process_group, take_part
from dpfed.cluster.work import Task
from dpfed.config import parse_config
from dpfed.objectives.infonce import group_loss
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.noise import digest_of
from dpfed.privacy.randomness import Randomness
from dpfed.progress import Silent
from dpfed.runs.build import build
from dpfed.runs.pretraining import pretrain
from dpfed.training.coordinator import Coordinator
from dpfed.training.worker import Worker
from tests.cluster.processes import Processes
from tests.privacy.gaps import drawn_by_hand

pytestmark = pytest.mark.long

SEED, RECORDS, RATE = 11, 600, 0.05
WORKERS = {"alone": 1, "1": 1, "2": 2, "3": 3}  # alone: without a process group
# In the first plan every group counts. In the second there is hardly anything but noise, and workers often draw no record.
PLANS = {
    "full": {"batch": 60, "size": 4, "clip": 0.5, "sigma": 0.4, "steps": 4},
    "sparse": {"batch": 6, "size": 2, "clip": 1e-3, "sigma": 50.0, "steps": 6},
}


def configuration(shapes, plan):
    towers = {"kind": "image-text", "width": 8, "text_width": 16, "text_layers": 1, "vocabulary": 256, "embedding": 16}
    return parse_config(
        {
            "name": "mechanism",
            "data": {"source": "store", "path": str(shapes.path), "size": 16},
            "views": {"crop_scale": [0.5, 1.0], "jitter": 0.5},
            "model": towers,
            "bounding": {"group_size": plan["size"], "clip_norm": plan["clip"], "engine": "loop", "microbatch": 16},
            "privacy": {k: plan[k] for k in ("batch", "steps")}
            | {"noise_multiplier": plan["sigma"], "seed": SEED, "accountant": "rdp"},
            "optimizer": {"name": "sgd", "learning_rate": RATE, "momentum": 0.0},
            "training": {"device": "cpu"},
            "evaluation": {"tasks": ["retrieval"], "records": 20},
        }
    )


def watch(rank, config, folder, how):
    """Carries out a run, and writes down what this process held and computed in each step."""
    seen = {"held": [], "own": [], "groups": [], "total": [], "before": [], "after": []}
    bounded_sum, apply = Worker.bounded_sum, Coordinator.apply

    def watched_sum(self, step):
        share = bounded_sum(self, step)
        seen["held"].append({name: value.clone() for name, value in self._model.state_dict().items()})
        seen["own"].append((share.values.clone(), share.numbers()))
        seen["groups"].append(share.groups)
        return share

    def watched_apply(self, step, total):
        seen["total"].append((total.values.clone(), total.unit, total.groups, total.sensitivity))
        seen["before"].append(self._vector.gather())
        summary = apply(self, step, total)
        seen["after"].append(self._vector.gather())
        return summary

    Worker.bounded_sum, Coordinator.apply = watched_sum, watched_apply
    if how == "alone":
        pretrain(config, folder / "run", Silent())
    else:
        take_part(Task(folder / "run", config), Silent())
    torch.save(seen, folder / f"{rank}.pt")


class Oracle:
    """The clipped sums by the definition, from records, keys and views: one group after the other, in float64."""

    def __init__(self, config, plan):
        self.plan = plan
        self.parts = build(config, Randomness.from_seed(SEED))
        self.randomness = Randomness.from_seed(SEED).for_ranks()
        self.views = self.parts.learner.worker(self.randomness).views
        self.model = copy.deepcopy(self.parts.model).double().train()

    @property
    def groups(self):
        return round(self.plan["batch"] / self.plan["size"])

    def groups_of(self, worker, workers):
        return len(range(worker, self.groups, workers))

    def members(self, step, worker=0, workers=1):
        """The indices of each of a worker's groups."""
        store = self.parts.store
        indices = store.split("train").tolist()
        rate, keys = self.plan["batch"] / RECORDS, store.keys[indices]
        drawn = drawn_by_hand(self.randomness, rate, self.plan["steps"], keys, self.plan["steps"])[step]  # all are one block
        of_group = self.randomness.per_record("sample", step, keys, 2)[:, 1]
        groups = [[] for _ in range(self.groups)]
        for row, taking_part, group in zip(indices, drawn, of_group, strict=True):
            if taking_part:
                groups[int(group * self.groups)].append(row)
        hands = [[] for _ in range(workers)]  # dealt to and fro, the largest groups first, and the last ones from the left
        ranked = sorted(groups, key=len, reverse=True)
        while ranked:
            row, ranked = ranked[:workers], ranked[workers:]
            turn = len(row) == workers and len(hands[0]) % 2 == 1
            for hand, group in zip(reversed(hands) if turn else hands, row, strict=False):
                hand.append(group)
        return hands[worker]

    def own_sum(self, state, step, worker, workers):
        self.model.load_state_dict(state)
        trained = [p for p in self.model.parameters() if p.requires_grad]
        total = torch.zeros(sum(p.numel() for p in trained), dtype=torch.float64)
        for indices in self.members(step, worker, workers):
            if len(indices) < 2:
                continue
            views = self.views(np.array(indices), self.randomness, step, torch.device("cpu"))
            views = {name: view.double() if view.is_floating_point() else view for name, view in views.items()}
            loss = group_loss(self.model(views), torch.ones(len(indices), dtype=torch.bool), self.model.temperature)
            gradient = torch.cat([part.flatten() for part in torch.autograd.grad(loss, trained)])
            total += gradient * min(1.0, self.plan["clip"] / gradient.norm().item())
        return total

    def noisy(self, step, total, unit):
        """With the run's own noise, which depends on the bits of the sum; its distribution is tested where it is free."""
        context = f"{self.parts.plan.fingerprint}/{digest_of(total)}"
        scale = 2 * self.plan["clip"] * self.plan["sigma"] / unit
        return unit * Randomness.from_seed(SEED).normal_steps(total, scale, "noise", step, context=context).double()


@pytest.fixture(scope="module")
def outcomes(shapes, tmp_path_factory):
    """What each process saw, and the finished run, by plan and number of workers: carried out when somebody asks."""

    class Outcomes(dict):
        def __missing__(self, asked):
            name, how = asked
            folder, config, world = tmp_path_factory.mktemp(f"{name}-{how}"), configuration(shapes, PLANS[name]), WORKERS[how]
            with Processes(world, folder, watch, config, folder, how) as processes:
                assert processes.wait() == [0] * world, processes.text
            seen = [torch.load(folder / f"{rank}.pt") for rank in range(world)]
            self[asked] = seen, RunDirectory.open(folder / "run")
            return self[asked]

    return Outcomes()


@pytest.fixture(scope="module", params=PLANS)
def plan(request, shapes):
    """A plan's name, its figures and its oracle; with one thread, for nothing here is large."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield request.param, PLANS[request.param], Oracle(configuration(shapes, PLANS[request.param]), PLANS[request.param])
    torch.set_num_threads(threads)


# Each number of workers carries out a plan at once, and the other one in the slow suite.
AT_ONCE = {"full": ("alone", "1", "3"), "sparse": ("alone", "2", "3")}
SLOW = [pytest.param("full", "2", marks=pytest.mark.slow), pytest.param("sparse", "1", marks=pytest.mark.slow)]
every_case = pytest.mark.parametrize(
    ("name", "how"), [(name, how) for name, hows in AT_ONCE.items() for how in hows[1:]] + SLOW
)
every_number = pytest.mark.parametrize("how", [*AT_ONCE["sparse"], pytest.param("1", marks=pytest.mark.slow)])


# One worker's steps are the plain run's, bit for bit, as is tested below.
@pytest.mark.parametrize("how", [pytest.param("1", marks=pytest.mark.slow), "3"])
def test_each_step_is_the_oracles(outcomes, plan, how):
    name, figures, oracle = plan
    seen, workers = outcomes[name, how][0], WORKERS[how]
    groups = round(figures["batch"] / figures["size"])
    small = 1e-3 * figures["clip"]  # to the sum of up to 15 gradients of norm C: each is clipped 5e-5 shorter, in float32
    for step in range(figures["steps"]):
        expected = [oracle.own_sum(seen[0]["held"][step], step, worker, workers) for worker in range(workers)]
        for worker in range(workers):
            assert (seen[worker]["own"][step][1] - expected[worker]).norm() < small
            assert seen[worker]["groups"][step] == oracle.groups_of(worker, workers)
        total, unit, over, sensitivity = seen[0]["total"][step]
        assert torch.equal(total, sum(one["own"][step][0] for one in seen)) and unit == figures["clip"] / 2**24
        assert over == groups == sum(oracle.groups_of(worker, workers) for worker in range(workers))
        assert sensitivity == 2 * figures["clip"]
        update = seen[0]["after"][step].double() - seen[0]["before"][step].double()
        wanted = -RATE * oracle.noisy(step, total, unit) / groups
        assert (update - wanted).norm() < 1e-7 * (seen[0]["before"][step].norm() + wanted.norm())


def test_there_were_sums_to_compare_and_workers_without_records(outcomes, shapes):
    assert all(values.any() for seen in outcomes["full", "3"][0] for values, _ in seen["own"])
    oracle = Oracle(configuration(shapes, PLANS["sparse"]), PLANS["sparse"])
    empty = [
        (step, worker) for step, worker in itertools.product(range(6), range(3)) if not any(oracle.members(step, worker, 3))
    ]
    assert empty  # and yet they took every step:
    assert all(len(seen["own"]) == 6 for seen in outcomes["sparse", "3"][0])
    assert not any(outcomes["sparse", "3"][0][worker]["own"][step][0].any() for step, worker in empty)


@every_case
def test_all_workers_hold_the_same_bits_in_every_step(outcomes, name, how):
    first, *others = outcomes[name, how][0]
    assert len(first["held"]) == PLANS[name]["steps"]
    for other in others:
        for mine, theirs in zip(first["held"], other["held"], strict=True):
            assert mine.keys() == theirs.keys()
            assert all(torch.equal(mine[key], theirs[key]) for key in mine)


@every_case
def test_any_number_of_workers_is_the_plain_run_bit_for_bit(outcomes, name, how):
    """Sums, releases, weights: a sum of whole numbers is the same whoever adds it up."""
    ((alone, *_), plain), ((first, *_), run) = outcomes[name, "alone"], outcomes[name, how]
    for (mine, *_), (theirs, *_) in zip(alone["total"], first["total"], strict=True):
        assert mine.dtype == torch.int64 and torch.equal(mine, theirs)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(alone["after"], first["after"], strict=True))
    releases = [
        [Ledger.open(one.ledger).release_of(step).digest for step in range(PLANS[name]["steps"])] for one in (plain, run)
    ]
    assert releases[0] == releases[1]
    weights = [(one.model / "model.safetensors").read_bytes() for one in (plain, run)]
    assert weights[0] == weights[1]


def noises(seen, plan):
    """``(T, P)`` what each step added to the parameters, in units of the noise that was promised: 2 C sigma / K."""
    unit = RATE * 2 * plan["clip"] * plan["sigma"] / round(plan["batch"] / plan["size"])
    return torch.stack([(b.double() - a.double()) / unit for b, a in zip(seen["before"], seen["after"], strict=True)])


@every_number
def test_the_noise_is_added_once_whoever_computes(outcomes, how):
    noise = noises(outcomes["sparse", how][0][0], PLANS["sparse"])
    count = noise.numel()
    # Four standard errors of the variance of Gaussians. The gradients add at most (K C)^2 / P to it, which is 1e-6.
    assert abs(noise.var().item() - 1) < 4 * (2 / count) ** 0.5
    assert abs(noise.mean().item()) < 4 / count**0.5


@every_number
def test_steps_do_not_share_their_noise(outcomes, how):
    noise = noises(outcomes["sparse", how][0][0], PLANS["sparse"])
    steps, size = noise.shape
    for one, other in itertools.combinations(range(steps), 2):
        assert abs((noise[one] * noise[other]).mean().item()) < 4 / size**0.5


def test_the_promise_does_not_depend_on_the_number_of_workers(outcomes):
    for name, figures in PLANS.items():
        promises = [promise(outcomes[name, how][1]) for how in AT_ONCE[name]]
        for one in promises:
            assert one == promises[0]
        results, _, lines, _ = promises[0]
        assert results["noise_multiplier"] == figures["sigma"]
        assert results["sensitivity"] == 2 * figures["clip"]
        assert [(line["step"], line["charged"]) for line in lines[1:]] == [(step, True) for step in range(figures["steps"])]


def promise(run):
    lines = [line for line in map(json.loads, run.ledger.read_text().splitlines()) if not {"owners", "papers"} & line.keys()]
    for line in lines:
        line.pop("chain")
    card = re.sub(
        r"central: [^\n]*|\| (Run id|Hash of the ledger|SHA-256 of the model's weights) \|[^\n]*", "", run.card.read_text()
    )  # the number of processes, and this run's name
    assert "central: " in run.card.read_text()
    return json.loads(run.results.read_text())["privacy"], card, lines, Ledger.open(run.ledger).epsilon


STEP = 0  # is computed again without one record


def remove(rank, config, folder, gone):
    """The sums of one step with all records, and without each of some records; on rank 0 also the total."""
    sums = []
    with process_group():
        link = Link()
        parts = build(config, Randomness.from_seed(SEED), rank=link.rank, world_size=link.size)
        for missing in [None, *gone]:
            partition = parts.learner.partition
            indices = np.asarray(partition.indices)
            partition = dataclasses.replace(partition, indices=indices[indices != missing])
            worker = parts.learner.worker(Randomness.from_seed(SEED).for_ranks(), partition=partition)
            share = worker.bounded_sum(STEP).values
            collective = Collective(link, parts.model, worker)
            if link.rank == 0:
                sums.append((share, collective.aggregate(STEP).values))
                link.announce(None)
            else:
                collective.follow()
                sums.append((share, None))
    torch.save(sums, folder / f"{rank}.pt")


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(4, marks=pytest.mark.slow)])
def test_one_record_moves_the_workers_sum_by_at_most_2c(shapes, tmp_path, workers):
    figures = PLANS["full"] | {"clip": 0.01}  # binds in every group
    config = configuration(shapes, figures)
    oracle = Oracle(config, figures)
    grid = oracle.parts.plan.grid_of()
    # Two records of a full group of each worker, and one that was not drawn.
    gone = [row for w in range(workers) for row in max(oracle.members(STEP, w, workers), key=len)[:2]]
    drawn = {row for w in range(workers) for group in oracle.members(STEP, w, workers) for row in group}
    gone.append(next(row for row in shapes.split("train").tolist() if row not in drawn))
    with Processes(workers, tmp_path, remove, config, tmp_path, gone) as processes:
        assert processes.wait() == [0] * workers, processes.text
    sums = [torch.load(tmp_path / f"{rank}.pt") for rank in range(workers)]
    total = sums[0][0][1]
    for number, row in enumerate(gone, start=1):
        same = [torch.equal(sums[rank][number][0], sums[rank][0][0]) for rank in range(workers)]
        assert not all(same) if row in drawn else all(same)  # with another record, groups may move to other workers
        moved = (sums[0][number][1] - total).double().norm().item()
        assert moved <= 2 * grid.radius
        assert moved > 0.01 * grid.radius if row in drawn else moved == 0
