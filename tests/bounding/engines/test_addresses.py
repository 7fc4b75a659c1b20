"""A group has the same bits behind whatever stands before it in a microbatch: its rows begin where new memory does."""

import pytest
import torch
from torch import nn

from dpfed.bounding.clipping import Clip, clip_factors
from dpfed.bounding.engines import GroupBatch, LoopEngine
from dpfed.bounding.engines import engine as engine_room


class Features(nn.Module):
    """A linear head on features, such as frozen towers give."""

    def __init__(self, width):
        super().__init__()
        self.head = nn.Linear(width, 8)
        self.register_buffer("temperature", torch.tensor(0.1))

    def forward(self, views):
        return {"image": nn.functional.normalize(self.head(views["image"]), dim=-1)}


def parts(width, size):
    """What one group adds, behind groups of 0 to 7 records that add nothing."""
    torch.manual_seed(width)
    engine, group = LoopEngine(Features(width)), torch.randn(size, 2, width)
    for before in range(8):
        others = torch.full((before, 2, width), torch.inf)
        offsets = [0, before, before + size] if before >= 2 else [before, before + size]
        into = engine.zeros().long()
        engine.add_clipped(GroupBatch({"image": torch.cat([others, group])}, offsets), Clip(2.0**24, 2.0**30), into)
        yield into


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("width", [10, 50, 129, 770])
def test_a_group_has_the_same_bits_behind_any_others_in_the_loop(width, size):
    first, *others = parts(width, size)
    assert first.any() and all(torch.equal(first, other) for other in others)


def test_a_view_of_a_batch_would_not_do(monkeypatch):
    """Sabotage: the rows of a group as they lie in the batch. Some processors compute them alike all the same."""
    monkeypatch.setattr(engine_room, "aligned", lambda rows: rows)
    differs = 0
    for width in (10, 50, 129, 257, 770):
        first, *others = parts(width, 2)
        differs += any(not torch.equal(first, other) for other in others)
    if not differs:
        pytest.skip("this processor's products do not go by addresses")


def test_a_gradient_whose_squares_vanish_is_not_blown_up():
    """However low the threshold is that a lying coordinator asks about: it is taken for no shorter than 1e-9."""
    for measured in (0.0, 1e-21, 1e-15):
        factor = clip_factors(torch.tensor([measured], dtype=torch.float64), Clip(2.0**24, 2.0**24 / 1e-40)).item()
        assert factor * max(measured, 1e-14) < 2.0**24
