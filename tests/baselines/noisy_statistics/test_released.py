"""Released statistics: the release moves as little as is stated and carries the planned noise; what is refused."""

import math

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting.rdp import RdpAccountant
from torch.nn.functional import normalize

from dpfed.baselines.noisy_statistics.record_gradients import StatisticsEngine
from dpfed.baselines.noisy_statistics.released_embeddings import ReleasedEmbeddings, ReleasedMoments, release_noise
from dpfed.building.engine import engine_for
from dpfed.building.method import public_parameters
from dpfed.config import parse_config
from dpfed.errors import UserError
from dpfed.models.building import build_model
from dpfed.privacy.randomness import Randomness
from dpfed.runs.build import build
from tests.baselines.noisy_statistics.released_lab import config_for, in_slots, plan_for, silent

HOSTILE = [
    torch.full((2, 8), 1e15),
    torch.full((2, 8), math.inf),
    torch.tensor([[math.nan] * 8, [1.0] * 8]),
    torch.eye(8)[:1].expand(2, 8),
    -torch.eye(8)[3:4].expand(2, 8),
    *(1.7 * normalize(torch.randn(20, 2, 8, generator=torch.Generator().manual_seed(0)), dim=2)),
]


@pytest.mark.parametrize("one_more", HOSTILE)
def test_one_record_more_moves_one_slot_by_sqrt_2_at_most(one_more):
    statistics = in_slots()
    others = normalize(torch.randn(30, 2, 8), dim=2)
    slot = statistics.draw_slots(31, 4)
    without = statistics.release(others, slot[:30], 4)
    moved = (statistics.release(torch.cat([others, one_more[None]]), slot, 4) - without).flatten(1).norm(dim=1)
    assert (moved > 1e-6).sum() <= 1
    assert moved.max() <= ReleasedEmbeddings.SENSITIVITY * (1 + 1e-6)
    if one_more.isfinite().all():
        assert moved.max() == pytest.approx(math.sqrt(2), rel=1e-4)  # the bound is tight


@pytest.mark.parametrize("one_more", HOSTILE)
def test_one_record_more_moves_the_moments_by_sqrt_5_at_most(one_more):
    statistics = ReleasedMoments(30, silent())
    others = normalize(torch.randn(30, 2, 8), dim=2)
    moved = statistics.release(torch.cat([others, one_more[None]]), 0) - statistics.release(others, 0)
    assert moved.norm() <= ReleasedMoments.SENSITIVITY * (1 + 1e-5)
    if one_more.abs().sum() == 2:  # a unit vector along one axis, twice
        assert moved.norm() == pytest.approx(math.sqrt(5), rel=1e-4)


def noise_of(engine: StatisticsEngine, dimensions: int) -> torch.Tensor:
    """What the engine's statistics hold where no record is: noise alone."""
    nobody = torch.zeros(0, 2, dimensions)
    statistics = engine._statistics
    if isinstance(statistics, ReleasedMoments):
        return statistics.release(nobody, 0)
    return statistics.release(nobody, torch.zeros(0, dtype=torch.long), 0)


@pytest.mark.parametrize("share", [0.5, 0.2])
@pytest.mark.parametrize("objective", ["infonce", "barlow_twins"])
def test_release_and_sum_have_planned_noise_and_cost_sigma(share, objective):
    options = {"release_share": share} | ({"slots": 64} if objective == "infonce" else {})
    config = config_for("one tower", objective, options=options)
    plan = plan_for(config)
    model = build_model(config_for("one tower").model, config_for("one tower").objective)
    noise = noise_of(engine_for(model, plan, Randomness.from_seed(2), 0, config=config), 256)
    release = noise.std().item() / math.sqrt(2 if objective == "infonce" else 5)
    assert abs(noise.mean().item()) < 5 * noise.std().item() / math.sqrt(noise.numel())
    assert release == pytest.approx(plan.noise.multiplier / math.sqrt(share), rel=0.02)
    gradient = plan.noise_std / plan.bounding.clip_norm
    assert 1 / release**2 + 1 / gradient**2 == pytest.approx(1 / plan.noise.multiplier**2, rel=0.04)
    assert plan.sensitivity == plan.bounding.clip_norm and plan.divisor == plan.sampling.batch and plan.bounding.cap is None


def test_two_releases_of_one_sample_cost_what_is_accounted_for():
    plan = plan_for(config_for("one tower", options={"release_share": 0.3}), accountant="rdp")
    two = [dp_accounting.GaussianDpEvent(plan.noise.multiplier / math.sqrt(share)) for share in (0.3, 0.7)]
    sampled = dp_accounting.PoissonSampledDpEvent(plan.sampling.rate, dp_accounting.ComposedDpEvent(two))
    spent = RdpAccountant().compose(dp_accounting.SelfComposedDpEvent(sampled, plan.steps)).get_epsilon(plan.promise.delta)
    assert plan.epsilon() == pytest.approx(spent, rel=1e-6)


def test_noise_repeats_and_differs_by_step_owner_and_statistics():
    randomness = Randomness.from_seed(2)

    def noise(step=0, rank=0, context="", offset=0.0):
        clean = torch.full((50, 4), offset)
        return release_noise(randomness, 1.0, rank, context).add_(clean.clone(), step) - clean

    base = noise()
    assert torch.equal(base, noise())
    for other in (noise(step=1), noise(rank=1), noise(context="x"), noise(offset=1.0)):
        assert abs(torch.corrcoef(torch.stack([base.flatten(), other.flatten()]))[0, 1]) < 0.3


def test_slots_are_uniform_and_new_in_every_step():
    statistics = in_slots(slots=8)
    drawn = statistics.draw_slots(20_000, 0)
    assert torch.equal(drawn, statistics.draw_slots(20_000, 0))
    counts = torch.bincount(drawn, minlength=8)
    assert len(counts) == 8 and (counts - 2500).abs().max() < 5 * math.sqrt(2500)
    assert (drawn == statistics.draw_slots(20_000, 1)).float().mean() < 0.15


@pytest.mark.parametrize(
    ("objective", "options", "complaint"),
    [
        ("siglip", {}, "'infonce' or 'barlow_twins', got 'siglip'"),
        ("infonce", {"slot": 3}, "slot"),
        ("infonce", {"slots": 1}, "slots"),
        ("infonce", {"release_share": 1.0}, "release_share"),
        ("infonce", {"release_share": 0.0}, "release_share"),
        ("barlow_twins", {"slots": 8}, "slots"),
    ],
)
def test_what_the_method_cannot_do_is_refused(objective, options, complaint):
    with pytest.raises(UserError, match=complaint):
        public_parameters(config_for("one tower", objective, options=options))


@pytest.mark.long
def test_a_worker_repeats_its_steps_and_draws_new_noise_in_each(tiny):
    tiny["bounding"] = {"method": "released", "microbatch": 32, "options": {"slots": 8}}
    tiny["privacy"] = {"noise_multiplier": 1.0, "batch": 60, "steps": 6}
    parts = build(parse_config(tiny), Randomness.from_seed(5))
    sums = [parts.learner.worker(Randomness.from_seed(5)).bounded_sum(step) for step in (0, 0, 1)]
    assert torch.equal(sums[0].values, sums[1].values) and not torch.equal(sums[0].values, sums[2].values)
    assert sums[0].sensitivity == parts.plan.sensitivity and sums[0].groups == parts.plan.groups == 1
    elsewhere = parts.learner.worker(Randomness.from_seed(5))
    elsewhere._randomness = Randomness.from_seed(5)
    secret = np.random.default_rng(0).bytes(32)
    elsewhere.engine = engine_for(parts.model, parts.plan, Randomness(secret), 0, config=parts.config)
    assert not torch.equal(elsewhere.bounded_sum(0).values, sums[0].values)  # other release noise, other slots
