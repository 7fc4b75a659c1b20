"""Ghost norms of sharded models, in real processes over gloo, against plain autograd in float64 on one."""

import json

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh

from cluster.sharded_layers import ShardedLayerwiseEngine
from cluster.sharded_vector import shard_model
from cluster.torchrun import process_group
from dpfed.config import AdaptationConfig, ModelConfig, ObjectiveConfig
from dpfed.models.building import build_model
from tests.cluster.processes import Processes
from tests.cluster.test_parameter_sharding import binding, clipped, distance, groups, oracle
from tests.models.conftest import SMALL

SIZES = {1: [[4, 1, 3]], 2: [[4, 1, 3, 2, 2], [2, 5]], 3: [[4, 1, 3], [], [2, 5, 2, 1, 3]]}
WORLDS = [pytest.param(world, marks=[pytest.mark.slow] * (world != 2)) for world in SIZES]
RECORDS = 5  # of a pass: ranks have different numbers of passes
LEARNT = ObjectiveConfig(learn_temperature=True)
MODELS = {
    "cnn": ModelConfig(width=8, embedding=16, head_hidden=16),
    "resnet": ModelConfig(image="resnet18", width=8, embedding=16, head_hidden=16),
    "two towers": ModelConfig(
        kind="image-text", width=8, text_width=16, text_layers=2, vocabulary=128, embedding=16, context=8
    ),
    "open_clip": None,
}


def build(name, folder):
    torch.manual_seed(1)
    if name == "open_clip":
        config = ModelConfig(kind="open_clip", architecture=str(folder / "small.json"))
        return build_model(config, LEARNT, AdaptationConfig(image="full", text="full"))
    return build_model(MODELS[name], LEARNT)


def batch_of(name, rank, sizes, extra=0):
    return groups("adapters" if name == "open_clip" else name, rank, sizes, extra)


def total(engine, batch, clip_norm):
    into = engine.zeros()
    norms = engine.add_clipped(batch, clip_norm, into) if len(batch.starts) > 1 else torch.zeros(0)
    return engine.vector.gather_sum(engine.finish(into)), norms


def work(rank, world, folder):
    found, sizes = {}, SIZES[world][rank]
    clip_norms = json.loads((folder / "clip_norms.json").read_text())
    with process_group():
        mesh = init_device_mesh("cpu", (world,))
        for name, clip_norm in clip_norms.items():
            model = build(name, folder)
            shard_model(model, mesh)
            engine = ShardedLayerwiseEngine(model, records=RECORDS, group_size=3, dummy_batch=batch_of(name, 99, [2]))
            batch = batch_of(name, rank, sizes)
            for kind, bound in (("clipped", clip_norm), ("whole", 1e6), ("small", clip_norm / 10)):
                found[name, kind], found[name, "norms"] = total(engine, batch, bound)
    torch.save(found, folder / f"{rank}.pt")


@pytest.fixture(scope="module", params=WORLDS, ids=lambda world: f"{world} ranks")
def outcome(request, tmp_path_factory):
    """World size, what each rank found, and for each model the oracle's gradients and the clip norm."""
    world, folder = request.param, tmp_path_factory.mktemp("ranks")
    (folder / "small.json").write_text(json.dumps(SMALL | {"text_cfg": SMALL["text_cfg"] | {"vocab_size": 128}}))
    gradients = {
        name: oracle(build(name, folder), [batch_of(name, r, s) for r, s in enumerate(SIZES[world]) if s]) for name in MODELS
    }
    clip_norms = {name: binding(rows) for name, rows in gradients.items()}
    (folder / "clip_norms.json").write_text(json.dumps(clip_norms))
    with Processes(world, folder, work, world, folder) as processes:
        assert processes.wait() == [0] * world, processes.text
    return world, [torch.load(folder / f"{rank}.pt") for rank in range(world)], gradients, clip_norms


@pytest.mark.parametrize("name", MODELS)
def test_the_sum_is_the_oracles(outcome, name):
    world, found, gradients, clip_norms = outcome
    print(
        distance(found[0][name, "clipped"], clipped(gradients[name], clip_norms[name])),
        distance(found[0][name, "whole"], gradients[name].sum(0)),
    )
    assert distance(found[0][name, "clipped"], clipped(gradients[name], clip_norms[name])) < 1e-4
    assert distance(found[0][name, "whole"], gradients[name].sum(0)) < 1e-5
    assert all(rank[name, "whole"] is None for rank in found[1:])
