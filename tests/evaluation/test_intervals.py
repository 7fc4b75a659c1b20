"""Intervals hold what they say: they agree with other libraries, cover, and know of records that belong together."""

import numpy as np
import pytest
from scipy import stats

from dpfed.evaluation.intervals import Outcomes, apart, wilson

RNG = np.random.default_rng(5)


def alone(values, statistic="share"):
    return Outcomes(np.asarray(values, float), np.arange(len(values)), statistic)


@pytest.mark.parametrize(("right", "count"), [(0, 20), (20, 20), (3, 10), (161, 321), (1, 1)])
def test_a_share_has_wilsons_interval(right, count):
    expected = stats.binomtest(right, count).proportion_ci(method="wilson")
    values = [1.0] * right + [0.0] * (count - right)
    assert alone(values).interval() == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_nine_tenths_of_a_point_on_321_records_is_no_result():
    """22 records won, 19 lost: +0.9 points."""
    before = np.zeros(321)
    before[:100] = 1
    after = before.copy()
    after[:19], after[100:122] = 0, 1
    low, high = alone(after).change_from(alone(before))
    assert alone(after).figure() - alone(before).figure() == pytest.approx(3 / 321)
    assert low < 0 < high and high - low > 0.05


def test_a_paired_change_covers_as_often_as_it_says():
    truth, inside = 0.1, 0
    for _ in range(1000):
        draws = RNG.random(150)
        before, after = (draws < 0.3).astype(float), ((draws < 0.25) | (draws > 0.85)).astype(float)
        low, high = alone(after).change_from(alone(before))
        inside += low <= truth <= high
    assert inside / 1000 >= 0.93


def test_a_paired_change_is_narrower_than_one_of_unrelated_draws():
    draws = RNG.random(400)
    before, after = alone(draws < 0.4), alone(draws < 0.45)
    low, high = after.change_from(before)
    wide = apart(after.figure(), after.interval(), before.figure(), before.interval())
    assert wide[0] < low < high < wide[1]


def test_records_of_one_person_count_as_few():
    """40 persons with 25 records each that all share one fate are 40 draws, not 1,000."""
    fate = (np.arange(40) < 20).astype(float)
    clusters = np.repeat(np.arange(40), 25)
    together = Outcomes(np.repeat(fate, 25), clusters).interval()
    assert together == pytest.approx(wilson(0.5, 39), abs=2e-3)
    single = alone(np.repeat(fate, 25)).interval()
    assert together[1] - together[0] > 4 * (single[1] - single[0])
    zeros = Outcomes(np.zeros(1000), clusters).interval()
    assert zeros == pytest.approx(wilson(0.0, 40))  # nobody was found: that says nothing of the records of one person


def test_clusters_cover_as_often_as_they_say():
    clusters = np.repeat(np.arange(30), 10)
    inside = paired = 0
    for _ in range(500):
        rate = RNG.beta(2, 2, 30)[clusters]
        before = Outcomes((RNG.random(300) < rate).astype(float), clusters)
        after = Outcomes((RNG.random(300) < np.clip(rate, 0, 0.999)).astype(float), clusters)
        low, high = before.interval()
        inside += low <= 0.5 <= high
        low, high = after.change_from(before)
        paired += low <= 0 <= high
    assert inside / 500 >= 0.92 and paired / 500 >= 0.93


@pytest.mark.parametrize("statistic", ["mean", "median"])
def test_ranks_have_the_bootstraps_interval(statistic):
    ranks = RNG.geometric(0.05, 200).astype(float)
    expected = stats.bootstrap((ranks,), getattr(np, statistic), method="percentile", n_resamples=2000, random_state=0)
    found = alone(ranks, statistic).interval()
    assert found == pytest.approx(tuple(expected.confidence_interval), rel=0.1)
    assert found == alone(ranks, statistic).interval()
    low, high = alone(ranks + 5, statistic).change_from(alone(ranks, statistic))
    assert (low, high) == pytest.approx((5, 5))  # the same records: their own spread is no part of the change


def test_one_cluster_tells_nothing_of_others():
    one = np.zeros(50, int)
    assert Outcomes(np.arange(1.0, 51), one, "mean").interval() is None
    low, high = Outcomes(np.ones(50), one).interval()
    assert low < 0.25 and high == 1
    assert Outcomes(np.ones(50), one).change_from(Outcomes(np.zeros(50), one)) == pytest.approx((0, 1), abs=0.05)


def test_other_queries_are_refused():
    with pytest.raises(ValueError, match="same queries"):
        alone([1, 0]).change_from(Outcomes(np.ones(2), np.zeros(2, int)))
    with pytest.raises(ValueError, match="one cluster"):
        Outcomes(np.ones(2), np.zeros(3, int))
