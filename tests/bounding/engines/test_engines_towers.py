"""Group gradients through open_clip towers with adapters, against plain autograd in float64."""

import json

import pytest
import torch

from dpfed.bounding.engines import ENGINES, GroupBatch, LoopEngine
from dpfed.config import AdaptationConfig, ModelConfig, ObjectiveConfig
from dpfed.models.building import build_model
from dpfed.models.parameters import TrainableVector
from tests.models.conftest import SIGLIP, SMALL

STARTS = [0, 4, 5, 11, 13]


def build(tmp_path, content, objective, **adaptation):
    (tmp_path / "small.json").write_text(json.dumps(content))
    config = ModelConfig(kind="open_clip", architecture=str(tmp_path / "small.json"))
    model = build_model(config, objective, AdaptationConfig(rank=4, **adaptation))
    for name, parameter in model.named_parameters():
        if name.endswith(".up"):
            torch.nn.init.normal_(parameter, std=0.05)
    return model


def batch():
    generator = torch.Generator().manual_seed(5)
    images = torch.randn(STARTS[-1], 2, 3, 32, 32, generator=generator)
    return GroupBatch({"image": images, "text": torch.randint(1, 49407, (STARTS[-1], 2, 16), generator=generator)}, STARTS)


def oracle(model, groups, loss, clip_norm):
    """Backward passes in float64 over ``.grad``, clipped one by one."""
    model.double()
    total = 0
    for first, end in zip(groups.offsets, groups.offsets[1:], strict=False):
        views = {k: v[first:end].double() if v.is_floating_point() else v[first:end] for k, v in groups.views.items()}
        model.zero_grad()
        loss(model(views), torch.ones(end - first, dtype=torch.bool), model.temperature, model.bias).backward()
        flat = torch.cat([p.grad.flatten() for p in model.parameters() if p.requires_grad])
        total = total + flat * min(1.0, clip_norm / max(flat.norm().item(), 1e-30))
    model.zero_grad()
    model.float()
    return total


@pytest.mark.parametrize("clip_norm", [0.05, 1e4])
@pytest.mark.parametrize("engine", list(ENGINES))
@pytest.mark.parametrize("content", [SMALL, SIGLIP], ids=["clip", "timm"])
@pytest.mark.parametrize("loss", ["infonce", "siglip"])  # that learn a temperature
def test_every_engine_agrees_with_the_oracle(tmp_path, engine, content, loss, clip_norm):
    model = build(
        tmp_path, content, ObjectiveConfig(name=loss, learn_temperature=True, bias=-1.0 if loss == "siglip" else None)
    )
    into = TrainableVector(model).zeros()
    further = {"if_unlike": "go on"} if engine == "layerwise" else {}  # whether groups are computed alike is asked elsewhere
    ENGINES[engine](model, loss=ObjectiveConfig(name=loss).group_loss(), **further).add_clipped(batch(), clip_norm, into)
    expected = oracle(model, batch(), ObjectiveConfig(name=loss).group_loss(), clip_norm)
    assert (into.double() - expected).norm() / expected.norm() < 1e-4


@pytest.mark.parametrize("adaptation", [{"image": "frozen", "text": "full"}, {"image": "full", "text": "lora"}], ids=str)
def test_frozen_towers_take_no_part(tmp_path, adaptation):
    model = build(tmp_path, SMALL, ObjectiveConfig(), **adaptation)
    vector = TrainableVector(model)
    assert vector.numel == sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert any(not p.requires_grad for p in model.parameters())
    into = vector.zeros()
    LoopEngine(model).add_clipped(batch(), 1.0, into)
    expected = oracle(model, batch(), ObjectiveConfig().group_loss(), 1.0)
    assert (into.double() - expected).norm() / expected.norm() < 1e-4
    assert all(parameter.grad is None for parameter in model.parameters())


def test_random_layers_are_computed_in_one_thread(tmp_path):
    """Lanes would take turns at one random generator in no fixed order, and a step could not be computed again."""
    from timm.layers import DropPath

    model = build(tmp_path, SMALL, ObjectiveConfig())
    assert torch.get_num_threads() == 1 or LoopEngine(model)._threads.count > 1
    model.clip.visual.drop = DropPath(0.5)
    assert LoopEngine(model)._threads.count == 1
