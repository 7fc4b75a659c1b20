"""Canaries move the real sum by as much as a record can, where the auditor looks, and nothing else does."""

import numpy as np
import pytest
import torch

from dpfed.audit.lower_bounds import of_repetitions
from dpfed.audit.trade_off import Family
from dpfed.audit.under_test import Scale, UnderTest, sign_of
from dpfed.audit.white_box import Board, most_moved
from dpfed.building.plan import plan_of
from dpfed.config import parse_config
from dpfed.privacy.randomness import Randomness
from tests.sparing import sparing

OWNERS, NOISE = Randomness.from_seed(1), Randomness.from_seed(2)


def under(folder, method="group", rate=0.5, batch=64, canaries=24, world_size=1, **privacy) -> UnderTest:
    tree = {
        "name": "canaries",
        "bounding": {"method": method, "clip_norm": 0.7},
        "privacy": {"noise_multiplier": 0.9, "batch": 1000, "steps": 4, **privacy},
        **({"public": {"source": "shapes"}} if method == "public" else {}),
    }
    config = parse_config(tree)
    plan = plan_of(2000, config)
    return UnderTest.build(config, plan, Scale.of(rate, batch, 4, 6), canaries, folder, world_size)


@pytest.mark.parametrize("kind", [{}, {"world_size": 2}, {"unit": "user", "per_unit": 2}, {"method": "public", "batch": 16}])
def test_a_lone_canary_moves_its_place_by_the_shift_or_not(tmp_path, kind):
    board = Board.build(under(tmp_path, **kind))
    case, count = board.under, board.under.canaries
    assert board.shift == pytest.approx(case.parts.plan.sensitivity)
    everyone = list(case.sums(case.present(np.ones(count, bool)), OWNERS))
    nobody = list(case.sums(case.present(np.zeros(count, bool)), OWNERS))
    moved, free = [], []
    for step, (with_, without) in enumerate(zip(everyone, nobody, strict=True)):
        places, alone = board.places(step, OWNERS)
        moved += list(sign_of(step) * (with_ - without).numpy()[places[alone]])
        free += list(alone)
    drawn = np.isclose(moved, board.shift, rtol=2e-3)
    assert np.all(drawn | np.isclose(moved, 0, atol=1e-2 * board.shift))
    assert np.mean(drawn) == pytest.approx(0.5, abs=0.2) and np.mean(free) > 0.1


@pytest.mark.parametrize("method", sparing(["group", "public", "batch", "sample"], "group", "public"))
def test_neighbours_reach_the_sensitivity_and_stay_within(tmp_path, method):
    case = under(tmp_path, method, rate=1.0, batch=32, canaries=1)
    distance, most = most_moved(case), case.parts.plan.sensitivity
    assert 0.9 * most <= distance <= most * (1 + 1e-6)


def test_the_audited_plan_has_the_runs_numbers(tmp_path):
    plan = under(tmp_path, rate=0.3, batch=30).parts.plan
    assert (plan.noise.multiplier, plan.bounding.clip_norm, plan.noise_std) == (0.9, 0.7, pytest.approx(0.9 * 1.4))
    assert plan.sampling.rate == pytest.approx(0.3, rel=0.01) and plan.sampling.rate <= 0.3


def scores(count: int, shift: float, seed: int = 0) -> tuple[dict[str, np.ndarray], np.ndarray]:
    generator = np.random.default_rng(seed)
    there = np.arange(count) % 2 == 0
    return {"noisy sums": generator.normal(size=count) + shift * there}, there


@pytest.mark.parametrize("noise, wrong", [(1.0, False), (0.5, True)])
def test_repetitions_show_the_noise_that_there_is(noise, wrong):
    """Against normal numbers, whose noise is known."""
    by_channel, there = scores(3000, 1 / noise)
    (shown,) = of_repetitions(by_channel, there, np.arange(3000) // 2 % 4 == 0, Family(1.0, 1.0, 1), 0.001)
    assert noise <= shown.noise <= 1.6 * noise and (shown.noise < 1) == wrong


def test_noise_makes_all_the_difference_to_what_leaves(tmp_path):
    board = Board.build(under(tmp_path, rate=1.0, batch=16, canaries=2))
    case, present = board.under, board.under.present(np.ones(2, bool))
    clean = list(case.sums(present, OWNERS))
    for left, total in zip(case.live(present, OWNERS, NOISE), clean, strict=True):
        assert torch.allclose(left["exp_avg"], left["noisy sums"], atol=1e-4)
        assert (left["noisy sums"] - total).std().item() == pytest.approx(case.parts.plan.noise_std, rel=0.6)
