"""The grid: exact arithmetic modulo 2^32, the right distribution, and the claim on which its privacy rests."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
import scipy.stats

from dpfed.errors import UserError
from dpfed.protocol.fixed_point import Grid

GRID = Grid(2.0**-10)
RNG = np.random.default_rng(0)


def exact_steps(value: float, spacing: float) -> int:
    """The oracle: Python's integers and fractions; `round` takes ties to even."""
    return round(Fraction(value) / Fraction(spacing)) % 2**32


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_encoding_is_the_nearest_multiple_modulo_the_ring(dtype):
    values = np.concatenate([RNG.normal(scale=scale, size=200) for scale in (1e-3, 1.0, 1e3, 1e7, 1e12)]).astype(dtype)
    ties = (np.arange(-4, 5) + 0.5).astype(dtype) * dtype(GRID.spacing)
    for value, steps in zip(both := np.concatenate([values, ties]), GRID.encode(both), strict=True):
        assert int(steps) == exact_steps(float(value), GRID.spacing)


def test_values_are_signed_and_the_ends_of_the_ring_are_exact():
    ends = np.array([0, 1, 2**31 - 1, 2**31, 2**32 - 1], np.uint32)
    assert GRID.decode(ends).tolist() == [0, 2.0**-10, np.float32((2**31 - 1) * 2.0**-10), -(2.0**21), -(2.0**-10)]
    assert GRID.decode(ends).dtype == np.float32


def test_wrapping_is_exact():
    values = RNG.integers(-(2**20), 2**20, size=1000) * GRID.spacing
    turn = 2**32 * GRID.spacing
    for turns in (-5, 1, 2**20):
        assert np.array_equal(GRID.encode(values + turns * turn), GRID.encode(values))


def test_sums_of_encodings_decode_to_the_rounded_values_sum():
    # partial sums leave the ring's range; the total does not
    parts = [np.full(3, 1.5e6), np.full(3, 1.5e6), np.full(3, -2.0e6)]
    assert GRID.decode(sum((GRID.encode(part) for part in parts[1:]), GRID.encode(parts[0]))).tolist() == [1e6] * 3


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30])
def test_what_cannot_be_encoded_is_refused(value):
    values = np.zeros(300_000)
    values[-1] = value
    with pytest.raises(UserError, match="share-not-finite"):
        GRID.encode(values)


@pytest.mark.parametrize("bound, noise_std, share_std", [(64, 2.0, 1.0), (1e4, 0.5, 0.1), (0.3, 4.0, 4.0), (1e-6, 1e-7, 1e-7)])
def test_the_grid_for_sums_is_the_finest_on_which_they_fit(bound, noise_std, share_std):
    spacing = Grid.for_sums(bound, noise_std, share_std).spacing
    assert np.log2(spacing) % 1 == 0
    assert bound + 12 * noise_std <= 2**31 * spacing
    assert bound + 12 * noise_std > 2**31 * spacing / 2


def test_a_share_of_noise_below_64_steps_is_refused():
    # 2^31 steps reach 2^25: the spacing is 2^-6, and one unit of noise is exactly 64 steps
    assert Grid.for_sums(2**25 - 12, 1.0, 1.0).spacing == 2**-6
    with pytest.raises(UserError, match="share-noise"):
        Grid.for_sums(2**25 - 12, 1.0, 0.999)


def test_the_decoded_noisy_sum_is_the_gaussian_mechanism():
    """Four sites, the coarsest grid that is allowed: mean, variance and shape against N(sum, 4 s^2)."""
    count, share = 200_000, 64 * GRID.spacing
    clipped = RNG.uniform(-1, 1, size=4)  # each site's value, off the grid
    parts = [GRID.encode(value + RNG.normal(scale=share, size=count)) for value in clipped]
    total = GRID.decode(parts[0] + parts[1] + parts[2] + parts[3]).astype(np.float64)
    error, std = total - clipped.sum(), 2 * share
    assert abs(error.mean()) < 5 * std / count**0.5
    assert abs(error.var() / std**2 - 1) < 5 * (2 / count) ** 0.5
    assert (
        scipy.stats.kstest(error, "norm", args=(0, std)).statistic < 0.0055
    )  # 1e-4 for 200,000 draws, and half a step's 0.0016


def density(z: int, rest: np.ndarray, sums: np.ndarray, m: float) -> float:
    """Of (Z, r_1 .. r_a) as they come about: over all ways in which the sites' integers add up to z."""
    reach = np.arange(-9, 10)
    total = 0.0
    for head in itertools.product(reach, repeat=len(rest) - 1):
        steps = np.array([*head, z - sum(head)])
        total += scipy.stats.norm.pdf(steps + rest - sums, scale=m).prod()
    return total


@pytest.mark.parametrize("sites", [1, 2, 3])
@pytest.mark.parametrize("m", [0.4, 0.5, 0.7])
def test_rounding_after_the_noise_is_post_processing_up_to_theta(sites, m):
    """The claim of the module, where theta is large enough to be seen."""
    worst = 0.0
    for _ in range(60):
        sums, rest = RNG.uniform(-1, 1, size=sites), RNG.uniform(-0.5, 0.5, size=sites)
        z = round(sums.sum()) + int(RNG.integers(-1, 2))
        ideal = scipy.stats.norm.pdf(z + rest.sum() - sums.sum(), scale=m * sites**0.5)
        worst = max(worst, abs(density(z, rest, sums, m) / ideal - 1))
    bound = (1 + 2 * np.exp(-((np.pi * m * np.arange(1, 20)) ** 2)).sum()) ** sites - 1
    assert worst <= (bound if sites > 1 else 0) + 1e-9
    assert sites == 1 or worst > bound / 8, "the bound would be of little worth"


# ---- discrete noise, on a finer grid


def weight(z: int, rest: np.ndarray, sums: np.ndarray, m: float, c: int) -> float:
    """Of (Z, r_1 .. r_a) with discrete noise, but for a constant: over all ways in which the sites' integers add up to z."""
    reach, total = np.arange(-9, 10), 0.0
    for head in itertools.product(reach, repeat=len(rest) - 1):
        steps = np.array([*head, z - sum(head)])
        total += np.exp(-((c * steps + rest - sums) ** 2) / (2 * m**2)).prod()
    return total


@pytest.mark.parametrize("sites", [1, 2, 3])
@pytest.mark.parametrize("m", [0.4, 0.5, 0.7])
def test_rounding_discrete_noise_is_post_processing_up_to_theta(sites, m):
    """The claim of the module about whole numbers: the weight is a function of c z + sum r - sum s alone."""
    c, ratios = 8, []
    for _ in range(60):
        sums, rest = RNG.integers(-c, c, size=sites), RNG.integers(-c // 2, c // 2, size=sites)
        z = round(sums.sum() / c) + int(RNG.integers(-1, 2))
        total = c * z + rest.sum() - sums.sum()
        ideal = np.exp(-(total**2) / (2 * sites * (m * c) ** 2)) * (m * (2 * np.pi) ** 0.5) ** (sites - 1) / sites**0.5
        ratios.append(weight(z, rest, sums, m * c, c) / ideal)
    theta = 3 * sites * np.exp(-(np.pi**2) * m**2)
    assert max(ratios) <= 1 + theta and min(ratios) >= 1 - theta
    assert sites == 1 or max(ratios) - min(ratios) > 1e-5  # there is something to bound
