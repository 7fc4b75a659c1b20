"""A loss of the user's own sees the rows of one group: no padding, no other group, in both engines."""

from __future__ import annotations

import pytest
import torch

from dpfed.bounding.engines import GroupBatch
from dpfed.bounding.engines.layerwise import LayerwiseEngine
from dpfed.bounding.engines.loop import LoopEngine
from dpfed.errors import UserError
from dpfed.models.own import SimCLR, finish_model
from dpfed.objectives.own import OwnLoss, refuse_unfit
from tests.own_parts import contrast, encoder

SIZES = [5, 2, 3, 4]


def batch(seed: int = 0) -> GroupBatch:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(sum(SIZES), 2, 3, 8, 8, generator=generator)
    offsets = [0, *torch.tensor(SIZES).cumsum(0).tolist()]
    return GroupBatch({"image": images}, offsets)


@pytest.fixture
def model() -> SimCLR:
    torch.manual_seed(1)
    made = SimCLR(encoder(), embedding=6, hidden=8)
    finish_model(made, torch.zeros(2, 3, 8, 8), None)
    return made


def test_padding_does_not_reach_the_loss():
    seen: list[torch.Tensor] = []
    z, present = torch.randn(5, 2, 4), torch.tensor([True, True, False, True, False])
    loss = OwnLoss(lambda rows: seen.append(rows) or rows.square().mean())({"image": z}, present, torch.tensor(0.1))
    assert torch.equal(seen[0], z[present]) and torch.allclose(loss, 3 * z[present].square().mean())


@pytest.mark.long
def test_the_loss_is_called_with_one_group_at_a_time(model):
    for make in (LoopEngine, LayerwiseEngine):
        shapes: list[int] = []
        engine = make(model, "fp32", OwnLoss(lambda z, shapes=shapes: shapes.append(len(z)) or contrast(z)))
        shapes.clear()  # what the engine tried on noise
        engine.add_clipped(batch(), 1.0, engine.zeros())
        assert sorted(shapes[-len(SIZES) :]) == sorted(SIZES)


@pytest.mark.long
def test_both_engines_clip_the_same_gradients(model):
    sums = []
    for make in (LoopEngine, LayerwiseEngine):
        engine = make(model.double(), "fp32", OwnLoss(contrast))
        total, views = engine.zeros(), {"image": batch().views["image"].double()}
        norms = engine.add_clipped(GroupBatch(views, batch().offsets), 0.1, total)
        sums.append((total, norms.sort().values))
    assert torch.allclose(sums[0][0], sums[1][0], rtol=1e-6, atol=1e-9) and torch.allclose(sums[0][1], sums[1][1])


def test_a_group_more_moves_the_sum_by_c_at_most(model):
    engine = LayerwiseEngine(model, "fp32", OwnLoss(contrast))
    whole, without = engine.zeros(), engine.zeros()
    engine.add_clipped(batch(), 0.3, whole)
    first = batch().first(3)
    engine.add_clipped(first, 0.3, without)
    assert torch.linalg.vector_norm((whole - without).double()) <= 0.3 * (1 + 1e-9)


def test_a_loss_whose_backward_pass_fails_is_refused():
    def loss(z: torch.Tensor) -> torch.Tensor:
        y = z.sigmoid()
        y += 1
        return y.mean()

    with pytest.raises(UserError, match=r"inplace operation.*\[loss-backward"):
        refuse_unfit(loss, torch.randn(4, 2, 8))


def test_a_loss_that_fails_without_a_message_is_refused():
    def loss(z: torch.Tensor) -> torch.Tensor:
        raise AssertionError

    with pytest.raises(UserError, match=r"AssertionError: no message\. \[loss-fails"):
        refuse_unfit(loss, torch.randn(4, 2, 8))


@pytest.mark.parametrize("error", [MemoryError, torch.OutOfMemoryError])
def test_too_little_memory_is_not_the_fault_of_a_loss(error):
    def loss(z: torch.Tensor) -> torch.Tensor:
        raise error

    with pytest.raises(error):
        refuse_unfit(loss, torch.randn(4, 2, 8))
