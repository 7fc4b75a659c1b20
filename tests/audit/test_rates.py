"""Rates, intervals and bounds against closed forms, brute force and simulation."""

import math

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score, roc_curve

from dpfed.audit.rates import auc, clopper_pearson, most_tpr, tpr_at_fpr

RNG = np.random.default_rng(7)


def test_clopper_pearson_solves_the_binomial_tails():
    counts = np.arange(0, 41)
    low, high = clopper_pearson(counts, 40, error=0.01)
    assert low[0] == 0 and high[-1] == 1
    np.testing.assert_allclose(stats.binom.sf(counts[1:] - 1, 40, low[1:]), 0.01)
    np.testing.assert_allclose(stats.binom.cdf(counts[:-1], 40, high[:-1]), 0.01)


@pytest.mark.long
@pytest.mark.parametrize("fpr", [0.01, 0.1])
def test_the_rate_of_known_scores_is_found_and_covered(fpr):
    """Non-members N(0, 1), members N(1, 1): the true rate is a closed form; the interval must hold it in 95% of draws."""
    truth = stats.norm.sf(stats.norm.isf(fpr) - 1)
    rates = [tpr_at_fpr(RNG.normal(1, 1, 400), RNG.normal(0, 1, 1000), fpr) for _ in range(400)]
    assert np.mean([rate.value for rate in rates]) == pytest.approx(truth, rel=0.1)
    assert np.mean([rate.low <= truth <= rate.high for rate in rates]) >= 0.95 - 3 * math.sqrt(0.05 * 0.95 / 400)
    low, high = clopper_pearson(round(truth * 400), 400, error=0.025)  # what is left if the threshold were known
    assert high - low < np.mean([rate.high - rate.low for rate in rates]) < 3 * (high - low)


def test_the_threshold_lies_between_binomial_order_statistics():
    """All members at one score, moved up past one non-member after the other: where do the ends of the interval change?"""
    m, fpr, error = 1000, 0.01, 0.05 / 4
    tails = [math.fsum(math.comb(m, k) * fpr**k * (1 - fpr) ** (m - k) for k in range(j)) for j in range(60)]  # P(fewer than j)
    above = max(j for j, tail in enumerate(tails) if tail <= error)  # that many exceed the threshold, surely enough
    below = min(j for j, tail in enumerate(tails) if tail >= 1 - error)
    others = -np.arange(1, m + 1.0)  # of rank r: -r
    rates = [tpr_at_fpr(np.full(50, -rank + 0.5), others, fpr) for rank in range(1, 60)]  # just above the non-member of a rank
    assert max(rank for rank, rate in enumerate(rates, 1) if rate.low > 0) == above
    assert max(rank for rank, rate in enumerate(rates, 1) if rate.high == 1) == below


def test_ties_count_against_the_attack():
    constant = np.zeros(500)
    assert tpr_at_fpr(constant, constant, 0.01).value == 0 and auc(constant, constant).value == 0.5
    mostly = np.concatenate([np.ones(10), np.zeros(490)])  # the top 2% are tied: 1% cannot be cut off there
    assert tpr_at_fpr(mostly, mostly, 0.01).value == 0
    assert tpr_at_fpr(mostly, mostly, 0.02).value == 0.02


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.0), (0.5, 1e-5), (2.0, 0.01), (8.0, 1e-6), (800.0, 1e-5)])
@pytest.mark.parametrize("fpr", [0.0, 0.001, 0.01, 0.3, 1.0])
def test_the_bound_is_the_edge_of_the_privacy_region(epsilon, delta, fpr):
    """The region's two inequalities as they are defined, tried on a grid of rates."""
    grid = np.linspace(0, 1, 200_001)
    factor = np.exp(min(epsilon, 700.0))
    allowed = (grid <= factor * fpr + delta + 1e-12) & (1 - fpr <= factor * (1 - grid) + delta + 1e-12)
    assert most_tpr(fpr, epsilon, delta) == pytest.approx(grid[allowed].max(), abs=1e-5)


def test_areas_and_thresholds_are_those_of_scikit_learn():
    """Scores with ties. Both count what lies above a threshold; scikit-learn also what is equal to it."""
    for _ in range(20):
        members, others = RNG.integers(0, 12, 60) + 1.0, RNG.integers(-2, 10, 90) + 1.0
        truth, scores = np.repeat([1, 0], [60, 90]), np.concatenate([members, others])
        assert auc(members, others).value == pytest.approx(roc_auc_score(truth, scores))
        fpr, tpr, _ = roc_curve(truth, scores, drop_intermediate=False)
        for limit in (0.05, 0.2):
            assert tpr_at_fpr(members, others, limit).value == pytest.approx(tpr[fpr <= limit].max())
