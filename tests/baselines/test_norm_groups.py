"""BatchNorm over one group and anchors, under clipping: a record reaches the gradient of its own group and no other."""

import pytest
import torch

import dpfed
from dpfed.bounding.engines import ENGINES, GroupBatch, LoopEngine, choose_engine
from dpfed.bounding.engines import loop as loop_room
from dpfed.config import ModelConfig, ObjectiveConfig, parse_config
from dpfed.errors import UserError
from dpfed.models.building import build_model

BATCH = ModelConfig(width=4, embedding=8, head_hidden=8, normalisation="batch", anchor_count=5)
STARTS = [0, 4, 7, 9]  # groups of 4, 3 and 2 records
RECORDS = torch.randn(10, 2, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def with_and_without() -> tuple[GroupBatch, GroupBatch]:
    """Neighbours: the second has one record less in the first group."""
    records = torch.cat([RECORDS[:3], 4 * RECORDS[3:4] + 1, RECORDS[4:9]])
    fewer = torch.cat([records[:3], records[4:]])
    return GroupBatch({"image": records}, STARTS), GroupBatch({"image": fewer}, [0, *(start - 1 for start in STARTS[1:])])


def summed(model: torch.nn.Module, batch: GroupBatch, clip_norm: float) -> torch.Tensor:
    engine = LoopEngine(model)
    into = engine.zeros()
    engine.add_clipped(batch, clip_norm, into)
    return into.double()


@pytest.fixture
def model():
    return build_model(BATCH, ObjectiveConfig(), size=16)


def test_a_record_leaves_other_groups_gradients_as_they_are(model, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    seen = []
    grad = torch.autograd.grad

    def keep(loss, parameters):
        gradients = grad(loss, parameters)
        seen.append(torch.cat([gradient.flatten() for gradient in gradients]))
        return gradients

    monkeypatch.setattr(loop_room.torch.autograd, "grad", keep)
    for batch in with_and_without():
        summed(model, batch, 1.0)
    assert len(seen) == 6 and not torch.equal(seen[0], seen[3])
    assert torch.equal(seen[1], seen[4]) and torch.equal(seen[2], seen[5])


def test_the_clipped_sum_moves_by_2c_at_most(model):
    first, second = (summed(model, batch, 0.01) for batch in with_and_without())
    assert 0 < (first - second).norm() <= 2 * 0.01


def test_the_group_is_normalised_as_one(model):
    """What makes group clipping necessary: a record moves the embeddings of its whole group."""
    with_it, without = with_and_without()
    z = model({"image": with_it.views["image"][:4]})["image"][:3]
    assert not torch.allclose(z, model({"image": without.views["image"][:3]})["image"], atol=1e-3)


@pytest.mark.parametrize("name", sorted(set(ENGINES) - {"loop"}))
def test_engines_that_run_several_groups_at_once_refuse(model, name):
    with pytest.raises(UserError, match=rf"'{name}'.*\[norm-needs-loop"):
        ENGINES[name](model)


def test_the_automatic_choice_is_the_loop(model):
    assert choose_engine(model, with_and_without()[0]) == "loop"


def test_bf16_reaches_the_same_direction(model):
    batch = with_and_without()[0]
    half = LoopEngine(model, "bf16")
    into = half.zeros()
    half.add_clipped(batch, 1.0, into)
    assert torch.nn.functional.cosine_similarity(into.double(), summed(model, batch, 1.0), dim=0) > 0.9


@pytest.mark.long
def test_a_whole_run(tiny, tmp_path):
    tiny["model"] |= {"normalisation": "batch", "anchor_count": 4, "weight_standardisation": True}
    run = dpfed.pretrain(parse_config(tiny), tmp_path / "run")
    images = torch.randint(0, 256, (5, 3, 16, 16), dtype=torch.uint8)
    features = dpfed.load(run.path).features(images)
    assert torch.allclose(features[2:3], dpfed.load(run.path).features(images[2:3]), atol=1e-4)


def test_other_engines_are_refused_before_anything_is_spent(tiny, tmp_path):
    tiny["model"] |= {"normalisation": "batch", "anchor_count": 4}
    tiny["bounding"] |= {"engine": "layerwise"}
    with pytest.raises(UserError, match=r"'layerwise'.*\[norm-needs-loop"):
        dpfed.pretrain(parse_config(tiny), tmp_path / "run")
    assert not (tmp_path / "run").exists()
