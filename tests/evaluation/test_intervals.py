"""Intervals hold what they say: they agree with other libraries, cover, and know of records that belong together."""

import numpy as np
import pytest
from scipy import stats

from dpfed.evaluation.intervals import Outcomes, wilson

RNG = np.random.default_rng(5)


def alone(values):
    return Outcomes(np.asarray(values, float), np.arange(len(values)))


@pytest.mark.parametrize(("right", "count"), [(0, 20), (20, 20), (3, 10), (161, 321), (1, 1)])
def test_a_share_has_wilsons_interval(right, count):
    expected = stats.binomtest(right, count).proportion_ci(method="wilson")
    values = [1.0] * right + [0.0] * (count - right)
    assert alone(values).interval() == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_a_paired_change_covers_as_often_as_it_says():
    truth, inside = 0.1, 0
    for _ in range(1000):
        draws = RNG.random(150)
        before, after = (draws < 0.3).astype(float), ((draws < 0.25) | (draws > 0.85)).astype(float)
        low, high = alone(after).change_from(alone(before))
        inside += low <= truth <= high
    assert inside / 1000 >= 0.93


def test_the_figure_of_one_model_has_no_spread():
    after, before = alone([1, 1, 0]), alone([0, 1, 0])
    with pytest.raises(ValueError, match="at least two models"):
        after.change_from(before, [0.3])
    assert after.change_from(before, [0.3, 0.3]) == pytest.approx(after.change_from(before))


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
