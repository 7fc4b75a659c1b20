"""Whole numbers added to exact sums: the grid leaves sigma times the sensitivity, and the exact sampler draws what is added."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfed.privacy.discrete_gaussian import Coins, discrete_gaussian
from dpfed.privacy.noise import KeyedNoise, in_floats
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.randomness import Randomness
from dpfed.privacy.sum_grid import SumGrid

PLAN = PrivacyPlan.of(1000, 64, 4, 0.5, 20, 1.3, 1e-5, noise_kind="discrete")  # 16 groups, sensitivity 1
SIZE = 100_000
NOISE = PLAN.noise_of()
LABELS = ("share", 5, 3, "plan")


def exact(size=SIZE):
    """An exact sum: whole numbers of steps of the plan's grid."""
    return torch.randint(-(10**6), 10**6, (size,), generator=torch.Generator().manual_seed(0))


def noisy(values: torch.Tensor, noise=NOISE, labels=LABELS, seed: int = 1) -> torch.Tensor:
    return in_floats(noise.steps(values, Randomness.from_seed(seed), *labels), noise)


@settings(max_examples=300, deadline=None)
@given(
    bound=st.floats(1e-9, 1e9),
    change=st.sampled_from([1.0, 2.0, 2.0 / math.sqrt(0.99), 300.0]),
    multiplier=st.floats(0.1, 1000),
    parties=st.integers(1, 5000),
    bits=st.integers(20, 46),
)
def test_the_grid_leaves_sigma_over_the_sensitivity(bound, change, multiplier, parties, bits):
    """The lemma's premise as fractions: a (m^2 - 16) >= (sigma times the sensitivity)^2 in steps, m = 2^31, of a parties."""
    grid = SumGrid.for_discrete(bound, 2.0**bits, change, multiplier, parties)
    moved = Fraction(grid.radius) * grid.finer * Fraction(change)
    assert parties * ((2**31) ** 2 - 16) >= (Fraction(multiplier) * moved) ** 2
    assert (1 - Fraction(1, 2**26)) * parties * (2**31 - 1) ** 2 <= (Fraction(multiplier) * moved) ** 2  # and no more noise
    assert grid.radius <= 2.0**bits and grid.unit == bound / grid.radius
    assert grid.finer == 1 or grid.radius > 2.0 ** (bits - 1)  # as fine as the sum allows


@pytest.mark.parametrize("sigma", [0.3, 1.3, 40.0, 999.0])
@pytest.mark.parametrize("parties", [1, 3])
def test_a_plan_has_that_noise(sigma, parties):
    plan = PLAN.replace(noise_multiplier=sigma)
    noise, grid = plan.noise_of(parties), plan.grid_of(parties)
    assert noise.std * math.sqrt(parties) / plan.sensitivity == pytest.approx(sigma, rel=1e-7)
    assert noise.std * math.sqrt(parties) >= sigma * plan.sensitivity
    assert (noise.unit, noise.finer) == (grid.unit, grid.finer) and noise.step_length * noise.finer == noise.unit


def test_the_added_noise_is_the_exact_samplers_keyed_alike():
    coins = Coins(Randomness.from_seed(1).stream(*LABELS))
    steps = exact() * NOISE.finer + torch.from_numpy(discrete_gaussian(coins, SIZE))
    assert torch.equal(NOISE.steps(exact(), Randomness.from_seed(1), *LABELS), steps)
    assert torch.equal(noisy(exact()), (steps.double() * NOISE.step_length).float())


def test_its_deviation_is_the_plans_neither_more_nor_less():
    noise = noisy(torch.zeros(SIZE, dtype=torch.int64)).double()
    assert noise.std().item() == pytest.approx(1.3, rel=4 * (2 * SIZE) ** -0.5)
    assert 1.3 <= PLAN.noise_std < 1.3 * (1 + 1e-7)
    assert abs(noise.mean().item()) < 5 * 1.3 / SIZE**0.5


def test_no_chunk_repeats_the_noise_of_another(monkeypatch):
    monkeypatch.setattr("dpfed.privacy.noise._CHUNK", SIZE // 4)
    noise = noisy(torch.zeros(SIZE, dtype=torch.int64)).view(4, -1)
    assert (torch.corrcoef(noise) - torch.eye(4)).abs().max() < 5 / (SIZE / 4) ** 0.5


def test_equal_numbers_get_equal_noise_and_others_their_own():
    values = torch.zeros(SIZE, dtype=torch.int64)
    keyed = [KeyedNoise(PLAN.noise_of(), Randomness.from_seed(1), "share", "plan") for _ in range(2)]
    one, again = (noise.noisy(values, 5) for noise in keyed)
    assert torch.equal(one, again)
    other = values.clone()
    other[0] = 1
    for different in (keyed[0].noisy(other, 5), keyed[0].noisy(values, 6), noisy(values, seed=2)):
        assert abs(torch.corrcoef(torch.stack([one, different]))[0, 1].item()) < 5 / SIZE**0.5


def test_only_whole_numbers_get_it():
    with pytest.raises(TypeError, match="whole numbers: expected int64, got torch.float64"):
        noisy(torch.zeros(3, dtype=torch.float64))
    with pytest.raises(TypeError, match="only Gaussian noise"):
        KeyedNoise(NOISE, Randomness.from_seed(1), "share", "plan").add_(torch.zeros(3), 0)


def test_a_plan_with_it_is_another_plan():
    plain = PLAN.replace(noise_kind="gaussian")
    assert plain.fingerprint != PLAN.fingerprint
    assert PrivacyPlan.from_dict(PLAN.as_dict()) == PLAN and PrivacyPlan.from_dict(plain.as_dict()) == plain
    assert plain.mechanism == PLAN.mechanism and plain.sensitivity == PLAN.sensitivity


def test_discrete_noise_is_rounded_continuous_up_to_the_lemma():
    """The lemma of `dpfed.privacy.discrete_gaussian` in one dimension, on a smaller grid where the difference can be seen.

    T ~ N(s, m^2 - b^2), then a discrete Gaussian of parameter b around T: against the discrete Gaussian of parameter m.
    """
    m = 3.0
    for b, most in ((0.6, 4 * math.exp(-2 * math.pi**2 * 0.36)), (1.0, 4 * math.exp(-2 * math.pi**2))):
        t = np.linspace(-40, 40, 40_001)
        density = np.exp(-(t**2) / (2 * (m**2 - b**2))) / math.sqrt(2 * math.pi * (m**2 - b**2))
        around = sum(np.exp(-((k - t) ** 2) / (2 * b**2)) for k in range(-60, 61))
        ratios = []
        for z in range(-8, 9):
            rounded = np.trapezoid(density * np.exp(-((z - t) ** 2) / (2 * b**2)) / around, t)
            direct = math.exp(-(z**2) / (2 * m**2)) / sum(math.exp(-(k**2) / (2 * m**2)) for k in range(-60, 61))
            ratios.append(abs(math.log(direct / rounded)))
        assert max(ratios) <= most
        assert max(ratios) > 1e-10 or b == 1.0  # there is something to bound
