"""Noise on a grid: what rounding costs is in the plan, and what is added is the exact sampler's, once."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfed.errors import UserError
from dpfed.privacy.discrete_gaussian import Coins, discrete_gaussian
from dpfed.privacy.noise import DiscreteGaussianNoise, KeyedNoise
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.randomness import Randomness

PLAN = PrivacyPlan.of(1000, 64, 4, 0.5, 20, 1.3, 1e-5, noise_kind="discrete")  # 16 groups, sensitivity 1
SIZE = 100_000
NOISE = PLAN.noise_of()
LABELS = ("share", 5, 3, "plan")
floats = st.floats(width=32, allow_nan=False, allow_infinity=False)


def noisy(values: torch.Tensor, noise=NOISE, labels=LABELS, seed: int = 1) -> torch.Tensor:
    values = values.clone()
    noise.add_(values, Randomness.from_seed(seed), *labels)
    return values


@settings(max_examples=300, deadline=None)
@given(sensitivity=st.floats(1e-9, 1e9), multiplier=st.floats(0.1, 1000))
def test_the_grid_leaves_sigma_of_continuous_noise_over_the_sensitivity_with_rounding(sensitivity, multiplier):
    """The lemma's premise as fractions: m^2 - 16 >= (sigma (sensitivity + 2^16 steps))^2, m = 2^31 steps."""
    noise = DiscreteGaussianNoise(sensitivity, multiplier)
    moved = Fraction(sensitivity) * Fraction(noise.scale) + 2**16  # in steps
    assert (2**31) ** 2 - 16 >= (Fraction(multiplier) * moved) ** 2
    longest = float(2**24 - 1)  # of a float32's digits
    assert Fraction(longest * noise.scale) == Fraction(longest) * Fraction(noise.scale)
    finer = Fraction(noise.scale) * (1 + Fraction(1, 2**27))  # as fine as its digits allow
    assert (2**31) ** 2 < (Fraction(multiplier) * (Fraction(sensitivity) * finer + 2**16)) ** 2
    assert noise.std >= multiplier * noise.rounded_sensitivity * (1 - 1e-15)
    assert noise.std <= multiplier * sensitivity * (1 + 1.1 * multiplier / 2**15)


@settings(max_examples=300, deadline=None)
@given(sensitivity=st.floats(1e-9, 1e9), multiplier=st.floats(0.1, 1000), shares=st.integers(1, 5000))
def test_the_noise_of_several_parties_is_together_what_one_would_add(sensitivity, multiplier, shares):
    """The same premise for a m^2, the noise of a parties; each rounds its own sum to a grid that is finer by sqrt(a)."""
    noise, alone = DiscreteGaussianNoise(sensitivity, multiplier, shares), DiscreteGaussianNoise(sensitivity, multiplier)
    moved = Fraction(sensitivity) * Fraction(noise.scale) + 2**16
    assert shares * (2**31) ** 2 - 16 >= (Fraction(multiplier) * moved) ** 2
    longest = float(2**24 - 1)
    assert Fraction(longest * noise.scale) == Fraction(longest) * Fraction(noise.scale)
    finer = (Fraction(noise.scale) / Fraction(alone.scale)) ** 2  # so much smaller is the variance of one party
    assert shares * (1 - Fraction(1, 2**26)) <= finer <= shares
    assert shares > 1 or noise.scale == alone.scale


@settings(max_examples=200, deadline=None)
@given(value=floats, sensitivity=st.floats(1e-6, 1e6))
def test_a_float_is_rounded_to_the_nearest_point_of_the_grid_exactly(value, sensitivity):
    noise = DiscreteGaussianNoise(sensitivity, 1.0)
    found = int(noise.rounded(np.array([value], dtype=np.float32))[0])
    exact = Fraction(value) * Fraction(noise.scale)
    assert abs(found) <= 2**62
    assert found == round(exact) if abs(exact) <= 2**62 else abs(found) == 2**62


@settings(max_examples=200, deadline=None)
@given(pairs=st.lists(st.tuples(floats, floats), min_size=1, max_size=40), sensitivity=st.floats(1e-3, 1e3))
def test_rounding_moves_neighbours_apart_by_a_step_a_number_at_most(pairs, sensitivity):
    noise = DiscreteGaussianNoise(sensitivity, 1.0)
    one, other = np.array(pairs, dtype=np.float32).T
    steps = [int(a) - int(b) for a, b in zip(noise.rounded(one), noise.rounded(other), strict=True)]
    scale = Fraction(noise.scale)
    for moved, a, b in zip(steps, one, other, strict=True):
        assert abs(moved) <= abs(Fraction(float(a)) - Fraction(float(b))) * scale + 1


def test_the_worst_neighbours_on_the_grid_are_as_far_apart_as_the_plan_says():
    """All numbers but one lie half a step beyond a point of the grid, on one side or the other; the last one moves by 2C."""
    noise, size = PLAN.noise_of(), 1 << 12
    one, other = (np.full(size, side, dtype=np.float32) for side in (0.500001 / noise.scale, 0.499999 / noise.scale))
    one[-1], other[-1] = 0.5, -0.5
    moved = np.linalg.norm((noise.rounded(one) - noise.rounded(other)).astype(float)) / noise.scale
    assert PLAN.sensitivity < moved <= math.hypot(PLAN.sensitivity, (size - 1) ** 0.5 / noise.scale) * (1 + 1e-9)
    assert moved <= PLAN.rounded_sensitivity


def test_what_is_added_is_the_exact_sampler_keyed_as_all_noise_is():
    values = torch.randn(SIZE, generator=torch.Generator().manual_seed(0))
    noise = PLAN.noise_of()
    coins = Coins(Randomness.from_seed(1).stream(*LABELS))
    steps = noise.rounded(values.numpy()) + discrete_gaussian(coins, SIZE)
    assert np.array_equal(noisy(values).numpy(), (steps / noise.scale).astype(np.float32))


def test_its_deviation_is_the_plans_neither_more_nor_less():
    found = noisy(torch.zeros(SIZE)).double()
    assert found.std().item() == pytest.approx(1.3, rel=4 * (2 * SIZE) ** -0.5)
    assert PLAN.noise_std == pytest.approx(1.3 * PLAN.rounded_sensitivity, rel=1e-8)
    assert 1.3 < PLAN.noise_std < 1.3 * (1 + 1.4 / 2**15)
    assert abs(found.mean().item()) < 5 * 1.3 / SIZE**0.5


def test_no_chunk_repeats_the_noise_of_another(monkeypatch):
    monkeypatch.setattr("dpfed.privacy.noise._CHUNK", SIZE // 4)
    assert (torch.corrcoef(noisy(torch.zeros(SIZE)).view(4, -1)) - torch.eye(4)).abs().max() < 5 / (SIZE / 4) ** 0.5


def test_the_same_numbers_get_the_same_noise_and_all_others_their_own():
    values = torch.zeros(SIZE)
    keyed = [KeyedNoise(PLAN.noise_of(), Randomness.from_seed(1), "share", "plan") for _ in range(2)]
    one, again = (noise.add_(values.clone(), 5) for noise in keyed)
    assert torch.equal(one, again)
    other = values.clone()
    other[0] = 1e-30  # far below a step
    for different in (keyed[0].add_(other, 5), keyed[0].add_(values.clone(), 6), noisy(values, seed=2)):
        assert abs(torch.corrcoef(torch.stack([one, different]))[0, 1].item()) < 5 / SIZE**0.5


def test_released_numbers_are_points_of_the_grid_in_float32():
    """Nothing of what the sum was before it was rounded is left in the last bits."""
    values = torch.randn(SIZE, generator=torch.Generator().manual_seed(0)) / 1e5
    scale = PLAN.noise_of().scale
    steps = np.rint(noisy(values).numpy().astype(np.float64) * scale)
    small = np.abs(steps) < 2**24  # those that a float32 holds to the step
    assert small.sum() > 100
    assert np.array_equal(noisy(values).numpy()[small], (steps[small] / scale).astype(np.float32))


def test_what_cannot_be_added_to_exactly_is_refused(monkeypatch):
    with pytest.raises(TypeError, match="float32"):
        noisy(torch.zeros(3, dtype=torch.float64))
    monkeypatch.setattr("dpfed.privacy.noise._ROUNDING", 2)
    with pytest.raises(UserError, match="up to 4 .* got 5: .*noise-many-numbers"):
        noisy(torch.zeros(5))


def test_a_plan_with_it_is_another_plan():
    plain = PLAN.replace(noise_kind="gaussian")
    assert plain.fingerprint != PLAN.fingerprint
    assert PrivacyPlan.from_dict(PLAN.as_dict()) == PLAN and PrivacyPlan.from_dict(plain.as_dict()) == plain
    assert plain.mechanism == PLAN.mechanism and plain.rounded_sensitivity == plain.sensitivity == PLAN.sensitivity


def test_the_discrete_noise_is_a_randomly_rounded_continuous_one_up_to_the_lemmas_factor():
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
