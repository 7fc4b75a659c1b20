"""An update of slices has the bits of an update of all: parameters, averages, the figure of the norm, statistics."""

import copy

import pytest
import torch
from torch import nn

from dpfed.bounding.bounded_sum import BoundedSum
from dpfed.config import OptimizerConfig
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.randomness import Randomness
from dpfed.training.coordinator import Coordinator
from dpfed.training.slices import slices_of
from dpfed.training.update import SliceUpdate, norm_of

PLAN = PrivacyPlan(1000, 64, 4, 0.5, 20, 1.3, 1e-5)
PROGRESS = {"share": 0.1, "quantile": 0.5, "loss_range": 2.0, "phase": 5}
LENGTH = 100


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(37, 51), nn.Linear(51, 13), nn.LayerNorm(13), nn.Linear(13, 1, bias=False))


def whole(plan, config, tmp_path, steps=5):
    """A coordinator's own updates, and the noisy sums that it used."""
    model = network()
    ledger = Ledger.create(tmp_path / "ledger.jsonl", plan, block=LENGTH)
    coordinator = Coordinator(plan, model, config, Randomness.from_seed(0), ledger)
    size, told = coordinator.blocks.size, []
    for step in range(steps):
        total = BoundedSum(torch.zeros(size), plan.sensitivity, plan.groups)
        threshold, noisy = coordinator.threshold, coordinator._release(step, total)
        kept = noisy.clone()
        told.append((kept, threshold, coordinator._update(step, noisy)))
    return model, coordinator, told


@pytest.mark.parametrize("owners", [1, 2, 3, 5, 40])
@pytest.mark.parametrize(
    ("config", "plan"),
    [
        (OptimizerConfig(name="adam", learning_rate=3e-3, ema=0.9, schedule="cosine"), PLAN),
        (OptimizerConfig(name="adamw", learning_rate=3e-3, weight_decay=0.1, warmup=3), PLAN),
        (OptimizerConfig(name="sgd", learning_rate=0.1, momentum=0.9, weight_decay=1e-3), PLAN),
        (OptimizerConfig(name="sgd", learning_rate=0.1, momentum=0.0), PLAN),
        (OptimizerConfig(name="lars", learning_rate=0.1, momentum=0.9, warmup=2), PLAN),
        (
            OptimizerConfig(name="adam", ema=0.5),
            PrivacyPlan(1000, 64, 4, 0.5, 20, 1.3, 1e-5, clipping="adaptive", progress=PROGRESS),
        ),
    ],
    ids=["adam", "adamw", "momentum", "sgd", "lars", "adaptive"],
)
def test_slices_have_the_bits_of_the_whole(owners, config, plan, tmp_path):
    model, coordinator, told = whole(plan, config, tmp_path)
    assert coordinator.can_share and coordinator.blocks.count > 20
    shared = network()
    updates = [SliceUpdate(plan, shared, config, own) for own in slices_of(coordinator.blocks, owners)]
    for step, (noisy, threshold, summary) in enumerate(told):
        mine = noisy.clone()
        parts = [mine[own.place] for own in slices_of(coordinator.blocks, owners)]
        statistics = sum(update.statistics(part) for update, part in zip(updates, parts, strict=True))
        assert torch.equal(statistics, noisy[noisy.numel() - plan.statistics_count :])
        sums = [value for update, part in zip(updates, parts, strict=True) for value in update.take(step, part, threshold)]
        assert norm_of(sums) == summary.noisy_gradient_norm
        assert all(update.finite for update in updates)
    for mine, theirs in zip(shared.parameters(), model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert not torch.equal(next(shared.parameters()), next(network().parameters()))
    if config.ema:
        average = torch.cat([update.average.served(None) for update in updates])
        assert torch.equal(average, coordinator.post_processors[-1].served(None))


def test_a_slice_updates_its_own_numbers_and_no_others(tmp_path):
    model, coordinator, told = whole(PLAN, OptimizerConfig(name="adam"), tmp_path, steps=1)
    before = network()
    for own in slices_of(coordinator.blocks, 3):
        one = copy.deepcopy(before)
        SliceUpdate(PLAN, one, OptimizerConfig(name="adam"), own).take(0, told[0][0][own.place].clone(), None)
        was, now, end = (torch.cat([p.detach().flatten() for p in who.parameters()]) for who in (before, one, model))
        moved = torch.zeros(len(was), dtype=torch.bool)
        moved[own.place] = True
        assert torch.equal(now[moved], end[moved]) and torch.equal(now[~moved], was[~moved])


class Moving(nn.Linear):
    def move(self):
        pass


@pytest.mark.parametrize(
    ("config", "model", "block", "can"),
    [
        (OptimizerConfig(), nn.Linear(30, 30), 100, True),
        (OptimizerConfig(), nn.Linear(30, 30), None, False),
        (OptimizerConfig(), nn.Linear(30, 30), 1000, False),  # one block
        (OptimizerConfig(name="lars"), nn.Linear(30, 30), 100, True),
        (OptimizerConfig(name="lars", weight_decay=0.1), nn.Linear(30, 30), 100, False),
        (OptimizerConfig(), Moving(30, 30), 100, False),
        (OptimizerConfig(), nn.Linear(30, 30).double(), 100, False),
    ],
)
def test_what_needs_the_whole_vector_is_not_shared(config, model, block, can, tmp_path):
    ledger = Ledger.create(tmp_path / "ledger.jsonl", PLAN, block=block)
    assert Coordinator(PLAN, model, config, Randomness.from_seed(0), ledger).can_share == can
