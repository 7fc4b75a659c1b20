"""Clipped group gradients of sharded models, in real processes over gloo, against plain autograd in float64 on one."""

import itertools
import json
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

from cluster.sharded_vector import shard_model
from cluster.sharding import ShardedEngine
from dpfed.bounding.engines import GroupBatch, LoopEngine
from dpfed.config import AdaptationConfig, ModelConfig, ObjectiveConfig
from dpfed.models.building import build_model
from dpfed.models.parameters import TrainableVector
from dpfed.objectives.infonce import group_loss
from tests.models.conftest import SMALL

# Groups of each rank: different numbers, none, groups of one record.
SIZES = {1: [[4, 1, 3]], 2: [[4, 1, 3], [2, 5, 2]], 3: [[4, 1, 3], [], [2, 5, 2, 1, 3]]}
WORLDS = [pytest.param(world, marks=[pytest.mark.slow] * (world != 2)) for world in SIZES]
MODELS = ["cnn", "two towers", "odd", "adapters"]
LEARNT = ObjectiveConfig(learn_temperature=True)


class Odd(nn.Module):
    """Sizes that no number of ranks divides, a frozen block, a block called twice, and a weight that two layers share."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.entry = nn.Linear(48, 7)
        self.blocks = nn.Sequential(nn.Linear(7, 5), nn.Linear(5, 7), nn.Linear(7, 7, bias=False), nn.Linear(7, 7))
        self.tied = nn.Linear(7, 7, bias=False)
        self.tied.weight = self.blocks[2].weight
        self.blocks[3].requires_grad_(False)
        self.dropout = nn.Dropout(dropout)
        self.offset = nn.Parameter(torch.tensor(0.3))
        self.register_buffer("temperature", torch.tensor(0.3))

    def forward(self, views):
        x = torch.tanh(self.entry(F.avg_pool2d(views["image"].flatten(0, 1), 4).flatten(1)))
        for _ in range(2):
            x = self.dropout(torch.tanh(self.blocks[1](torch.tanh(self.blocks[0](x)))))
        x = self.tied(torch.tanh(self.blocks[3](self.blocks[2](x)))) + self.offset * x
        return {"image": F.normalize(x, dim=1).unflatten(0, views["image"].shape[:2])}


class InParts(nn.Module):
    """One block that is called twice, and each time reads another of its weights."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([_Half()])
        self.register_buffer("temperature", torch.tensor(1.0))

    def forward(self, views):
        x = views["image"].flatten(0, 1).flatten(1)[:, :6]
        x = self.blocks[0](torch.tanh(self.blocks[0](x, False)), True)
        return {"image": F.normalize(x, dim=1).unflatten(0, views["image"].shape[:2])}


class _Half(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Parameter(torch.randn(6, 6)), nn.Parameter(torch.randn(6, 6))

    def forward(self, x, second):
        return x @ (self.second if second else self.first)


class Unsteady(nn.Module):
    """Its gradient is another one in every backward pass: three times as long, or infinite."""

    def __init__(self, growth):
        super().__init__()
        self.blocks = nn.Sequential(nn.Linear(48, 7), nn.Linear(7, 5))
        self.passes = itertools.count()
        self.growth = growth
        self.register_buffer("temperature", torch.tensor(0.3))

    def forward(self, views):
        x = self.blocks(F.avg_pool2d(views["image"].flatten(0, 1), 4).flatten(1))
        x.register_hook(lambda g: g * self.growth ** (next(self.passes) % 2))
        return {"image": F.normalize(x, dim=1).unflatten(0, views["image"].shape[:2])}


def build(name, folder):
    torch.manual_seed(1)
    if name == "cnn":
        return build_model(ModelConfig(width=8, embedding=16, head_hidden=16), LEARNT)
    if name == "two towers":
        config = ModelConfig(kind="image-text", width=8, text_width=16, text_layers=2, vocabulary=128, embedding=16, context=8)
        return build_model(config, LEARNT)
    if name == "adapters":
        config = ModelConfig(kind="open_clip", architecture=str(folder / "small.json"))
        model = build_model(config, LEARNT, AdaptationConfig(rank=4, text_layers=["q", "v", "mlp"]))
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith(".up"):
                nn.init.normal_(parameter, std=0.05)
        return model
    return {"odd": Odd, "dropout": lambda: Odd(0.5), "in parts": InParts}[name]()


def groups(name, rank, sizes, extra=0):
    """The groups of one rank; `extra` adds records to its first group, and leaves the others as they are."""
    generator = torch.Generator().manual_seed(100 + rank)
    side = 32 if name == "adapters" else 16
    starts = [0, *itertools.accumulate(sizes)]
    views = {"image": torch.randn(starts[-1] + 1, 3, 3, side, side, generator=generator)}
    if name in ("two towers", "adapters"):
        context = 16 if name == "adapters" else 8
        views["text"] = torch.randint(1, 127, (starts[-1] + 1, 1, context), generator=generator)
    order = [*range(starts[1]), *[starts[-1]] * extra, *range(starts[1], starts[-1])] if sizes else []
    return GroupBatch({k: v[order] for k, v in views.items()}, [0, *(start + extra for start in starts[1:])])


def oracle(model, batches):
    """Every group's gradient by plain autograd in float64: ``(G, P)``."""
    model.double()
    rows = []
    for batch in batches:
        for first, end in zip(batch.starts, batch.starts[1:], strict=False):
            views = {k: v[first:end].double() if v.is_floating_point() else v[first:end] for k, v in batch.views.items()}
            model.zero_grad()
            group_loss(model(views), torch.ones(end - first, dtype=torch.bool), model.temperature).backward()
            rows.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.requires_grad]))
    model.zero_grad()
    model.float()
    return torch.stack(rows)


def clipped(gradients, clip_norm):
    norms = gradients.norm(dim=1)
    return ((clip_norm / norms.clamp(min=1e-30)).clamp(max=1.0)[:, None] * gradients).sum(0)


def binding(gradients):
    """A clip norm that clips some groups and not others."""
    norms = sorted(norm for norm in gradients.norm(dim=1).tolist() if norm > 1e-9)
    assert norms[-1] > 1.05 * norms[0]
    return (norms[0] * norms[-1]) ** 0.5


def distance(one, other):
    return ((one.double() - other.double()).norm() / other.double().norm()).item()


def sharded_sum(engine, batch, clip_norm):
    into = engine.zeros()
    norms = engine.add_clipped(batch, clip_norm, into) if len(batch.starts) > 1 else torch.zeros(0)
    return engine.vector.gather_sum(engine.finish(into)), norms


def work(rank, world, folder):
    """What one rank does; rank 0 writes down the sums, every rank what it held."""
    torch.set_num_threads(1)
    address = f"file://{folder}/rendezvous"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=world, timeout=timedelta(minutes=5))
    mesh, sizes, found = init_device_mesh("cpu", (world,)), SIZES[world], {}
    clip_norms = json.loads((folder / "clip_norms.json").read_text())
    for name in MODELS:
        model, clip_norm = build(name, folder), clip_norms[name]
        shard_model(model, mesh, least=1)
        engine = ShardedEngine(model, dummy_batch=groups(name, 99, [2]))
        batch = groups(name, rank, sizes[rank])
        for kind, bound in (("clipped", clip_norm), ("whole", 1e6), ("small", clip_norm / 10)):
            found[name, kind], found[name, "norms"] = sharded_sum(engine, batch, bound)
        more = groups(name, rank, sizes[rank], extra=rank == world - 1)
        found[name, "one record more"], _ = sharded_sum(engine, more, clip_norm / 10)
        if rank == world - 1:
            batch.views["image"][0, 0] = torch.nan
        found[name, "poisoned"], _ = sharded_sum(engine, batch, clip_norm)
        found[name, "shards"] = [(len(p.to_local()), p.shape) for p in model.parameters() if isinstance(p, DTensor)]
        found[name, "not sharded"] = [p.numel() for p in model.parameters() if not isinstance(p, DTensor)]
        found[name, "part"] = engine.zeros().numel()
    remaining(rank, world, folder, mesh, found)
    torch.save(found, folder / f"{rank}.pt")
    dist.destroy_process_group()


def remaining(rank, world, folder, mesh, found):
    batch = groups("two towers", rank, SIZES[world][rank])
    dummy_batch = groups("two towers", 99, [2])
    model = build("two towers", folder)
    shard_model(model, mesh, least=1)
    engine = ShardedEngine(model, "bf16", dummy_batch=dummy_batch)
    found["bf16"], _ = sharded_sum(engine, batch, 3.0)
    engine.vector.scatter_parameters(other_parameters(folder) if rank == 0 else None)
    values = [p.detach().to_local().flatten() if isinstance(p, DTensor) else p.detach()[None] for p in model.parameters()]
    found["scattered"] = engine.vector.gather_sum(torch.cat(values))
    found["moved"], _ = sharded_sum(ShardedEngine(model, dummy_batch=dummy_batch), batch, 3.0)
    model = build("dropout", folder)
    shard_model(model, mesh, least=1)
    engine = ShardedEngine(model, dummy_batch=groups("odd", 99, [2]))
    torch.manual_seed(rank)
    found["dropout"], _ = sharded_sum(engine, groups("odd", rank, SIZES[world][rank]), 0.5)
    for growth in (3.0, torch.inf):
        model = Unsteady(growth)
        shard_model(model, mesh, least=1)
        engine = ShardedEngine(model, dummy_batch=groups("odd", 99, [2]))
        found["unsteady", growth], _ = sharded_sum(engine, groups("odd", rank, [3] if rank == 0 else []), 1e-3)
    model = build("in parts", folder)
    shard_model(model, mesh, least=1)
    try:
        sharded_sum(ShardedEngine(model, dummy_batch=groups("odd", 99, [2])), groups("odd", rank, [3]), 1.0)
    except RuntimeError as error:
        found["refused"] = str(error)


def other_parameters(folder):
    return TrainableVector(build("two towers", folder)).gather().flip(0) * 1.5


@pytest.fixture(scope="module", params=WORLDS, ids=lambda world: f"{world} ranks")
def outcome(request, tmp_path_factory):
    """World size, what each rank found, and for each model the oracle's gradients and the clip norm."""
    world, folder = request.param, tmp_path_factory.mktemp("ranks")
    (folder / "small.json").write_text(json.dumps(SMALL | {"text_cfg": SMALL["text_cfg"] | {"vocab_size": 128}}))
    gradients = {
        name: oracle(build(name, folder), [groups(name, r, s) for r, s in enumerate(SIZES[world]) if s]) for name in MODELS
    }
    clip_norms = {name: binding(rows) for name, rows in gradients.items()}
    (folder / "clip_norms.json").write_text(json.dumps(clip_norms))
    mp.start_processes(work, (world, folder), nprocs=world, start_method="forkserver")
    found = [torch.load(folder / f"{rank}.pt") for rank in range(world)]
    return world, folder, found, gradients, clip_norms


def loop(model, world, name, clip_norm, precision="fp32", seed=False):
    engine = LoopEngine(model, precision)
    total = engine.zeros()
    for rank, sizes in enumerate(SIZES[world]):
        if seed:
            torch.manual_seed(rank)
        if sizes:
            engine.add_clipped(groups(name, rank, sizes), clip_norm, total)
    return total


@pytest.mark.parametrize("name", MODELS)
def test_the_sum_is_the_oracles(outcome, name):
    world, folder, found, gradients, clip_norms = outcome
    assert distance(found[0][name, "clipped"], clipped(gradients[name], clip_norms[name])) < 1e-5 + 1e-5  # and 1e-5 of slack
    assert distance(found[0][name, "whole"], gradients[name].sum(0)) < 1e-5
    assert all(rank[name, "whole"] is None for rank in found[1:])
    norms = torch.cat([rank[name, "norms"] for rank in found])
    expected = gradients[name].norm(dim=1)
    assert torch.allclose(norms, expected[expected > 1e-9], rtol=1e-5)  # groups of one record have none


@pytest.mark.parametrize("name", MODELS)
def test_the_sum_is_the_loop_engines_up_to_rounding(outcome, name):
    world, folder, found, _, clip_norms = outcome
    expected = loop(build(name, folder), world, name, clip_norms[name])
    assert distance(found[0][name, "clipped"], expected) < 5e-7


def test_so_it_is_in_bf16_and_with_dropout(outcome):
    world, folder, found, _, _ = outcome
    assert distance(found[0]["bf16"], loop(build("two towers", folder), world, "two towers", 3.0, "bf16")) < 5e-7
    assert distance(found[0]["dropout"], loop(build("dropout", folder), world, "odd", 0.5, seed=True)) < 5e-7


@pytest.mark.parametrize("name", MODELS)
def test_a_group_that_is_not_finite_contributes_nothing(outcome, name):
    world, _, found, gradients, clip_norms = outcome
    poisoned = sum(len(sizes) for sizes in SIZES[world][:-1])  # the first group of the last rank
    rest = torch.cat([gradients[name][:poisoned], gradients[name][poisoned + 1 :]])
    assert distance(found[0][name, "poisoned"], clipped(rest, clip_norms[name])) < 2e-5


@pytest.mark.parametrize("name", MODELS)
def test_one_record_moves_the_sum_by_at_most_twice_the_clip_norm(outcome, name):
    _, _, found, _, clip_norms = outcome
    moved = (found[0][name, "one record more"].double() - found[0][name, "small"].double()).norm().item()
    assert 0 < moved <= 2 * clip_norms[name] / 10 * (1 + 1e-6)


@pytest.mark.parametrize("growth", [3.0, torch.inf])
def test_the_bound_holds_even_if_the_second_pass_comes_out_differently(outcome, growth):
    _, _, found, _, _ = outcome
    norm = found[0]["unsteady", growth].double().norm().item()
    assert norm <= 1e-3 * (1 + 1e-6)
    assert norm > 0.99e-3 or growth == torch.inf


@pytest.mark.parametrize("name", MODELS)
def test_every_rank_holds_its_share_only(outcome, name):
    world, _, found, gradients, _ = outcome
    for rank in found:
        assert rank[name, "not sharded"] == [1] * len(rank[name, "not sharded"])  # scalars
    for copies in zip(*(rank[name, "shards"] for rank in found), strict=True):
        rows = copies[0][1][0]
        assert sum(held for held, _ in copies) == rows
        assert max(held for held, _ in copies) <= -(-rows // world)
    if name in ("cnn", "two towers"):  # where there are many more rows than ranks
        assert max(rank[name, "part"] for rank in found) < gradients[name].shape[1] / world * 1.1


def test_parameters_arrive_in_order_and_are_used(outcome):
    world, folder, found, _, _ = outcome
    assert torch.equal(found[0]["scattered"], other_parameters(folder))
    model = build("two towers", folder)
    TrainableVector(model).assign(other_parameters(folder))
    assert distance(found[0]["moved"], loop(model, world, "two towers", 3.0)) < 5e-7


def test_a_gradient_in_parts_is_refused(outcome):
    _, _, found, _, _ = outcome
    assert all("in several parts" in rank["refused"] for rank in found)
