"""Trade-off functions against closed forms."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from dpfed.audit.trade_off import Family, trade_off
from dpfed.privacy import accounting
from dpfed.privacy.mechanism import Mechanism
from dpfed.privacy.samplers import PoissonSampler

RATES = np.array([1e-4, 0.01, 0.1, 0.3, 0.5, 0.8, 0.99])


@pytest.mark.parametrize("sigma, steps", [(1.0, 1), (0.7, 1), (2.0, 9)])
def test_without_sampling_it_is_the_gaussian_one(sigma, steps):
    exact = norm.cdf(norm.ppf(RATES) + math.sqrt(steps) / sigma)
    tpr = trade_off(sigma, 1.0, steps).most_tpr(RATES)
    assert np.all(tpr >= exact - 1e-9) and np.allclose(tpr, exact, atol=2e-3)


def test_with_sampling_no_threshold_test_beats_the_curve():
    sigma, rate = 0.5, 0.2
    thresholds = np.linspace(-2, 4, 400)
    fpr = norm.sf(thresholds / sigma)
    tpr = (1 - rate) * fpr + rate * norm.sf((thresholds - 1) / sigma)
    room = trade_off(sigma, rate, 1).most_tpr(fpr) - tpr
    assert room.min() >= -1e-9 and room[fpr < 0.2].max() < 0.01


@pytest.mark.parametrize("steps", [1, 20])
@pytest.mark.parametrize("sigma, rate", [(1.2, 0.3), (0.5, 1.0), (0.3, 0.01)])
def test_epsilon_at_a_delta_is_the_accountants_or_a_little_less(sigma, rate, steps):
    for delta in (1e-5, 1e-3):
        exact = accounting.epsilon(Mechanism(PoissonSampler(rate), sigma), steps, delta)
        assert 0.985 * exact <= trade_off(sigma, rate, steps).epsilon(delta) <= exact * (1 + 1e-9)


@pytest.mark.parametrize("true", [0.5, 0.97, 1.9])
def test_the_noise_shown_is_the_most_that_an_outcome_allows(true):
    family = Family(1.0, 1.0, 1)
    tpr = float(norm.cdf(norm.ppf(0.1) + 1 / true))
    assert true * 0.99 <= family.noise_shown(lambda curve: bool(tpr <= curve.most_tpr(0.1))) <= true * 1.03
    assert family.noise_shown(lambda curve: True) == math.inf
