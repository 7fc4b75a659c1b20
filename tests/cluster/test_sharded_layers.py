"""Ghost norms of sharded models, in real processes over gloo, against plain autograd in float64 on one."""

import json
import math

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh

from cluster.sharded_layers import ShardedLayerwiseEngine
from cluster.sharded_vector import _blocks, shard_model
from cluster.sharding import ShardedEngine
from cluster.shards import require_alike
from cluster.torchrun import process_group
from dpfed.bounding.bounded_sum import Clip
from dpfed.bounding.layer_rules.term import Materialised
from dpfed.config import AdaptationConfig, ModelConfig, ObjectiveConfig
from dpfed.errors import UserError
from dpfed.models.building import build_model
from tests.cluster import test_parameter_sharding as two_passes
from tests.cluster.processes import Processes
from tests.cluster.test_parameter_sharding import binding, clipped, distance, oracle
from tests.models.conftest import SMALL

# Groups of each rank: different numbers, none, groups of one record. With 5 records a pass, ranks have 1 to 3 passes.
SIZES = {1: [[4, 1, 3]], 2: [[4, 1, 3, 2, 2], [2, 5]], 3: [[4, 1, 3], [], [2, 5, 2, 1, 3]]}
RECORDS = 5
WORLDS = [pytest.param(world, marks=[pytest.mark.slow] * (world != 2)) for world in SIZES]
LEARNT = ObjectiveConfig(learn_temperature=True)
TOWERS = {"width": 8, "text_width": 16, "text_layers": 2, "vocabulary": 128, "embedding": 16, "context": 8}
MODELS = {
    "cnn": {"width": 6, "embedding": 15, "head_hidden": 17},
    "resnet18": {"image": "resnet18", "width": 8, "embedding": 15, "head_hidden": 17},
    "two towers": {"kind": "image-text", **TOWERS},
    "open_clip": {"kind": "open_clip"},  # small.json, trained in full
}


def build(name, folder):
    torch.manual_seed(1)
    if name not in MODELS:
        return two_passes.build(name, folder)
    architecture = {"architecture": str(folder / "small.json")} if name == "open_clip" else {}
    full = AdaptationConfig(image="full", text="full") if architecture else AdaptationConfig()
    return build_model(ModelConfig(**MODELS[name], **architecture), LEARNT, full)


def groups(name, rank, sizes, extra=0):
    return two_passes.groups("adapters" if name == "open_clip" else name, rank, sizes, extra)


def engine_of(model, name, records=RECORDS):
    return ShardedLayerwiseEngine(model, records=records, group_size=3, dummy_batch=groups(name, 99, [2]))


def work(rank, world, folder):
    """What one rank does; rank 0 writes down the sums, every rank what it held."""
    found, sizes, last = {}, SIZES[world][rank], rank == world - 1
    clip_norms = json.loads((folder / "clip_norms.json").read_text())
    with process_group():
        mesh = init_device_mesh("cpu", (world,))

        def sharded(name):
            model = build(name, folder)
            shard_model(model, mesh, least=1)
            return model

        for name, clip_norm in clip_norms.items():
            model = sharded(name)
            engine, batch = engine_of(model, name), groups(name, rank, sizes)
            for kind, bound in (("clipped", clip_norm), ("whole", 1e6), ("small", clip_norm / 10)):
                found[name, kind], found[name, "norms"] = two_passes.sharded_sum(engine, batch, bound)
            more = groups(name, rank, sizes, extra=last)
            found[name, "one record more"], _ = two_passes.sharded_sum(engine, more, clip_norm / 10)
            found[name, "alone"], _ = two_passes.sharded_sum(
                engine, groups(name, rank, [3] if last else []), Clip(1.0, math.inf)
            )
            if last:
                batch.views["image"][0, 0] = torch.nan
            found[name, "poisoned"], _ = two_passes.sharded_sum(engine, batch, clip_norm)
            found[name, "left behind"] = [p.grad is not None for p in model.parameters()]
            found[name, "blocks"] = [[engine.vector.whole.names[number] for number in block] for block in engine._blocks]
        found["refused"] = [refusal(lambda name=name: engine_of(sharded(name), name)) for name in ("adapters",)]
        # A block that is called twice is met in the first pass.
        two = groups("odd", rank, [2, 3])
        found["refused"].append(refusal(lambda: two_passes.sharded_sum(engine_of(sharded("odd"), "odd"), two, 1.0)))
        model = sharded("cnn")
        engine, oracle = engine_of(model, "cnn", 64), ShardedEngine(model, dummy_batch=groups("cnn", 99, [2]))
        few = groups("cnn", 7, [2, 3, 2])
        found["refused"].append(refusal(lambda: require_alike(engine, oracle, few)))
        real = Materialised.__post_init__
        Materialised.__post_init__ = lambda self: (setattr(self, "gradients", self.gradients.flip(0)), real(self))[1]
        found["refused"].append(refusal(lambda: require_alike(engine, oracle, few)))
    torch.save(found, folder / f"{rank}.pt")


def test_small_blocks_have_no_messages_of_their_own():
    model = build("two towers", None)
    blocks = {least: list(_blocks(model, least)) for least in (1, 500, 1 << 16)}
    sizes = {least: [sum(p.numel() for p in block.parameters()) for block in found] for least, found in blocks.items()}
    assert min(sizes[1]) < 500 <= min(sizes[500]) and len(sizes[1]) > len(sizes[500]) > 0 == len(sizes[1 << 16])


def refusal(act):
    try:
        act()
    except UserError as error:
        return str(error)


@pytest.fixture(scope="module", params=WORLDS, ids=lambda world: f"{world} ranks")
def outcome(request, tmp_path_factory):
    """World size, its folder, what each rank found, and for each model the oracle's gradients and the clip norm."""
    world, folder = request.param, tmp_path_factory.mktemp("ranks")
    (folder / "small.json").write_text(json.dumps(SMALL | {"text_cfg": SMALL["text_cfg"] | {"vocab_size": 128}}))
    gradients = {
        name: oracle(build(name, folder), [groups(name, r, s) for r, s in enumerate(SIZES[world]) if s]) for name in MODELS
    }
    clip_norms = {name: binding(rows) for name, rows in gradients.items()}
    (folder / "clip_norms.json").write_text(json.dumps(clip_norms))
    with Processes(world, folder, work, world, folder) as processes:
        assert processes.wait() == [0] * world, processes.text
    return world, folder, [torch.load(folder / f"{rank}.pt") for rank in range(world)], gradients, clip_norms


every_model = pytest.mark.parametrize("name", MODELS)
ROUNDING = 1e-4  # what Gram matrices add to a norm lest it be too short; without clipping there is none


@every_model
def test_the_sum_is_the_oracles(outcome, name):
    world, _, found, gradients, clip_norms = outcome
    assert distance(found[0][name, "clipped"], clipped(gradients[name], clip_norms[name])) < ROUNDING
    assert distance(found[0][name, "small"], clipped(gradients[name], clip_norms[name] / 10)) < ROUNDING
    assert distance(found[0][name, "whole"], gradients[name].sum(0)) < 1e-5
    assert all(rank[name, "whole"] is None for rank in found[1:])
    norms = torch.cat([rank[name, "norms"] for rank in found]).sort().values  # small groups come first
    expected = gradients[name].norm(dim=1).sort().values
    assert torch.allclose(norms, expected[expected > 1e-9], rtol=ROUNDING)  # groups of one record have none


@every_model
def test_one_record_changes_its_own_groups_part_alone(outcome, name):
    world, folder, found, gradients, clip_norms = outcome
    bound, last = clip_norms[name] / 10, world - 1
    moved = found[0][name, "one record more"].double() - found[0][name, "small"].double()
    assert 0 < moved.norm() <= 2 * bound
    first = sum(len(sizes) for sizes in SIZES[world][:-1])
    before = gradients[name][first : first + 1]
    batch = groups(name, last, SIZES[world][last], extra=1)
    after = oracle(build(name, folder), [batch.first(1)])
    assert (moved - clipped(after, bound) + clipped(before, bound)).norm() < ROUNDING * bound


@every_model
def test_a_group_is_never_longer_than_the_clip_norm_also_where_others_have_none(outcome, name):
    _, _, found, _, _ = outcome
    assert 1 - ROUNDING < found[0][name, "alone"].double().norm() <= 1


@every_model
def test_a_group_that_is_not_finite_contributes_nothing(outcome, name):
    world, _, found, gradients, clip_norms = outcome
    poisoned = sum(len(sizes) for sizes in SIZES[world][:-1])  # the first group of the last rank
    rest = torch.cat([gradients[name][:poisoned], gradients[name][poisoned + 1 :]])
    assert distance(found[0][name, "poisoned"], clipped(rest, clip_norms[name])) < ROUNDING


@every_model
def test_fsdp_adds_nothing_up_and_gradients_are_whole_block_by_block(outcome, name):
    _, folder, found, _, _ = outcome
    assert not any(any(rank[name, "left behind"]) for rank in found)
    blocks = found[0][name, "blocks"]
    sharded = [n for n, p in build(name, folder).named_parameters() if p.requires_grad and p.dim()]
    assert sorted(parameter for block in blocks for parameter in block) == sorted(sharded)
    assert len(blocks) > 4


def test_what_the_rules_do_not_cover_is_refused_on_all_ranks(outcome):
    _, _, found, _, _ = outcome
    for rank in found:
        adapters, twice, right, misread = rank["refused"]
        assert right is None
        assert "adapters on a sharded model" in adapters
        assert "does not fit this model" in twice
        assert "bounding.engine = 'layerwise' does not come to the gradients" in misread and "'loop'" in misread
