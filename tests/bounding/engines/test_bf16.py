"""bf16 where groups share a pass: who stands beside a group does not change how it is rounded."""

import pytest
import torch
from torch import nn

from dpfed.bounding.engines import GroupBatch, LayerwiseEngine, LoopEngine, fastest_engine
from dpfed.bounding.engines.choice import fitting_engines
from dpfed.config import ModelConfig, ObjectiveConfig
from dpfed.errors import UserError
from dpfed.models.building import build_model
from dpfed.models.parameters import TrainableVector
from tests.bounding.engines.test_engines import MODELS, WITH_TEMPERATURE, a_further_group_of_nothing, batch_for

CLIP = 0.05


@pytest.fixture(params=list(MODELS))
def case(request):
    torch.manual_seed(4)
    config = MODELS[request.param]
    return build_model(config, WITH_TEMPERATURE), batch_for(config)


def clipped(engine, batch):
    into = torch.zeros(TrainableVector(engine._loss.model).zeros().numel(), dtype=torch.float64)
    norms = engine.add_clipped(batch, CLIP, into)
    return into, norms


def test_groups_do_not_move_when_others_share_their_passes(case):
    model, batch = case
    alone, norms = clipped(LayerwiseEngine(model, "bf16", group_size=4), batch)
    assert (norms > CLIP).all()  # so a digit of a gradient more or less would show in its direction
    for records in (1, 2, 7, 40):
        beside, _ = clipped(LayerwiseEngine(model, "bf16", group_size=4), a_further_group_of_nothing(batch, records))
        assert (beside - alone).norm() < 1e-6 * CLIP


def test_groups_whose_records_are_nearly_equal_do_not_move_either():
    """Their gradients are what is left when large parts cancel: rounding is all of what they are."""
    model = build_model(MODELS["cnn"], ObjectiveConfig())
    generator = torch.Generator().manual_seed(1)
    image = torch.randn(8, 1, 2, 3, 16, 16, generator=generator) + 1e-3 * torch.randn(8, 4, 2, 3, 16, 16, generator=generator)
    batch = GroupBatch({"image": image.flatten(0, 1)}, list(range(0, 33, 4)))
    alone, _ = clipped(LayerwiseEngine(model, "bf16", group_size=4), batch)
    beside, _ = clipped(LayerwiseEngine(model, "bf16", group_size=4), a_further_group_of_nothing(batch, 3))
    assert (beside - alone).norm() < len(batch.sizes) * 1e-6 * CLIP


def test_bf16_it_is_and_blank_records_add_nothing(case):
    model, batch = case
    exact, _ = clipped(LayerwiseEngine(model, "fp32", group_size=4), batch)
    rounded, norms = clipped(LayerwiseEngine(model, "bf16", group_size=4), batch)
    loop, same = clipped(LoopEngine(model, "bf16"), batch)
    assert len(norms) == len(same) == 4
    assert 1e-4 < (rounded - exact).norm() / exact.norm()
    # As far from the loop's as both are from float32, at most.
    assert (rounded - loop).norm() < (rounded - exact).norm() + (loop - exact).norm()
    assert (rounded - exact).norm() < 2 * (loop - exact).norm()


class ByNeighbours(nn.Module):
    """An image encoder in front of which a record is scaled, a little, by what else is in its pass."""

    def __init__(self, model, by):
        super().__init__()
        self.model, self.by = model, by

    def forward(self, views):
        image = views["image"]
        change = {
            "place": torch.arange(len(image)) % 2,
            "others": image[:, 0, 0, 0, 0].nan_to_num().sum().sin().expand(len(image)),
            "count": torch.full((len(image),), len(image) % 32 / 32),
        }[self.by]
        return self.model({**views, "image": image * (1 + 1e-2 * change.view(-1, 1, 1, 1, 1))})

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.model, name)


@pytest.mark.parametrize("by", ["place", "others"])
def test_a_device_that_rounds_by_neighbours_is_found_out_and_the_loop_is_taken(by):
    model, batch = ByNeighbours(build_model(MODELS["cnn"], ObjectiveConfig()), by), batch_for(MODELS["cnn"])
    with pytest.raises(UserError, match="rounds a group by those beside it.*'loop'"):
        clipped(LayerwiseEngine(model, "bf16", group_size=4), batch)
    assert "layerwise" not in fitting_engines(model, batch, "bf16")


def test_one_that_rounds_by_the_number_of_records_always_sees_the_same_number():
    model, batch = ByNeighbours(build_model(MODELS["cnn"], ObjectiveConfig()), "count"), batch_for(MODELS["cnn"])
    alone, _ = clipped(LayerwiseEngine(model, "bf16", group_size=4), batch)
    beside, _ = clipped(LayerwiseEngine(model, "bf16", group_size=4), a_further_group_of_nothing(batch, 7))
    assert (beside - alone).norm() < 1e-6 * CLIP


def test_a_model_that_drops_at_random_is_refused():
    model = build_model(MODELS["cnn"], ObjectiveConfig())
    model.drop = nn.Dropout(0.1)
    with pytest.raises(UserError, match="drops units at random"):
        clipped(LayerwiseEngine(model, "bf16", group_size=4), batch_for(MODELS["cnn"]))


def test_the_automatic_choice_tries_it(case):
    model, batch = case
    assert set(fitting_engines(model, batch, "bf16")) == {"loop", "layerwise"}
    assert fastest_engine(model, batch, "bf16") in ("loop", "layerwise")


def test_a_group_larger_than_a_pass_has_passes_worth_of_room():
    model = build_model(ModelConfig(width=4, embedding=8, head_hidden=8), ObjectiveConfig())
    image = torch.randn(50, 2, 3, 16, 16, generator=torch.Generator().manual_seed(2))
    batch = GroupBatch({"image": image}, [0, 40, 45, 50])
    exact, _ = clipped(LayerwiseEngine(model, "fp32"), batch)
    rounded, norms = clipped(LayerwiseEngine(model, "bf16"), batch)
    assert len(norms) == 3 and torch.nn.functional.cosine_similarity(rounded, exact, dim=0) > 0.9
