"""Clipped group gradients of Barlow Twins: engines against plain autograd in float64, one group at a time."""

import pytest
import torch

from dpfed.bounding.engines import ENGINES, GroupBatch, LoopEngine
from dpfed.config import ModelConfig, ObjectiveConfig
from dpfed.models.building import build_model
from dpfed.models.parameters import TrainableVector

STARTS = [0, 4, 5, 12, 15, 20]  # groups of 4, 1, 7, 3 and 5 records
IMAGES = {"kind": "image", "width": 8, "embedding": 8, "head_hidden": 16}
PAIRS = {"kind": "image-text", "width": 8, "text_width": 16, "text_layers": 1, "vocabulary": 128, "embedding": 8, "context": 8}
CASES = [("barlow_twins", IMAGES), ("barlow_twins", PAIRS)]


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0]}, {case[1]['kind']}")
def case(request):
    name, model = request.param
    objective = ObjectiveConfig(name=name)
    generator = torch.Generator().manual_seed(3)
    views = {"image": torch.randn(STARTS[-1], 2, 3, 16, 16, generator=generator)}
    if model is PAIRS:
        views["text"] = torch.randint(1, 128, (STARTS[-1], 1, 8), generator=generator)
    return build_model(ModelConfig(**model), objective), objective.group_loss(), GroupBatch(views, STARTS)


def gradients(model, loss, batch):
    """Of each group, in float64."""
    model.double()
    flat = []
    for first, end in zip(batch.offsets, batch.offsets[1:], strict=False):
        views = {k: v[first:end].double() if v.is_floating_point() else v[first:end] for k, v in batch.views.items()}
        model.zero_grad()
        loss(model(views), torch.ones(end - first, dtype=torch.bool), model.temperature, model.bias).backward()
        flat.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.requires_grad]))
    model.zero_grad()
    model.float()
    return flat


@pytest.mark.parametrize("clip_norm", [0.05, 1e6])
@pytest.mark.parametrize("name", list(ENGINES))
def test_every_engine_agrees_with_the_oracle(case, name, clip_norm):
    model, loss, batch = case
    parts = [gradient for gradient, size in zip(gradients(model, loss, batch), (4, 1, 7, 3, 5), strict=True) if size > 1]
    expected = sum(part * min(1.0, clip_norm / part.norm().item()) for part in parts)
    into = TrainableVector(model).zeros()
    norms = ENGINES[name](model, loss=loss).add_clipped(batch, clip_norm, into)
    assert (into.double() - expected).norm() / expected.norm() < 1e-4
    assert sorted(norms.tolist()) == pytest.approx(sorted(part.norm().item() for part in parts), rel=1e-3)
    assert min(norms) > 0.05 and max(norms) < 1e6  # so the two clip norms test both sides


def test_lanes_share_a_model(case, monkeypatch):
    model, loss, batch = case
    alone, together = TrainableVector(model).zeros(), TrainableVector(model).zeros()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    LoopEngine(model, loss=loss).add_clipped(batch, 0.05, alone)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    LoopEngine(model, loss=loss).add_clipped(batch, 0.05, together)
    assert torch.allclose(alone, together, atol=1e-6)


@pytest.mark.parametrize("name", list(ENGINES))
def test_one_record_moves_a_group_by_at_most_2c(case, name):
    """A record leaves a group, or one that is nothing like the others comes: adversarial, far from the data."""
    model, loss, batch = case
    views = {kind: view[:6] for kind, view in batch.views.items()}
    views["image"] = views["image"].clone()
    views["image"][5] = 50.0 * torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(9))
    engine, moved = ENGINES[name](model, loss=loss), []
    for size in (2, 3, 6):
        sums = []
        for kept in (size, size - 1):
            into = TrainableVector(model).zeros()
            engine.add_clipped(GroupBatch({kind: view[6 - kept :] for kind, view in views.items()}, [0, kept]), 0.05, into)
            sums.append(into.double())
        moved.append((sums[0] - sums[1]).norm().item())
    assert 0 < max(moved) <= 0.1
