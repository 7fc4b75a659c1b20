"""Draws by gaps are the same process as a coin for every record and step, and each record's are a function of its own key."""

from fractions import Fraction

import numpy as np
import pytest
import scipy.stats

from dpfed.privacy import geometric_skips
from dpfed.privacy.geometric_skips import GeometricSkips, block_length, gap_thresholds
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.randomness import Randomness
from dpfed.privacy.samplers import PoissonSampler
from tests.privacy.gaps import drawn_by_hand

RANDOMNESS = Randomness.from_seed(3)


def keys(count, seed=0):
    return np.random.default_rng(seed).integers(0, 2**64, size=count, dtype=np.uint64)


def drawn(rate, length, key, steps, randomness=RANDOMNESS):
    """Who was drawn: ``(steps, n)`` bool."""
    taking_part, draws = GeometricSkips(rate, length, randomness, key), np.zeros((steps, len(key)), bool)
    for step in range(steps):
        draws[step, taking_part(step)] = True
    return draws


@pytest.mark.parametrize(("rate", "length"), [(0.3, 4), (0.05, 20), (0.9, 2), (0.5, 7), (0.02, 1)])
def test_a_record_is_drawn_as_its_own_words_say_and_nothing_else(rate, length):
    key = keys(60)
    draws = drawn(rate, length, key, 3 * length + 1)
    np.testing.assert_array_equal(draws, drawn_by_hand(RANDOMNESS, rate, length, key, 3 * length + 1))
    np.testing.assert_array_equal(drawn(rate, length, key[::7], 3 * length + 1), draws[:, ::7])


@pytest.mark.parametrize(("rate", "length"), [(0.25, 4), (0.25, 3), (0.1, 10), (0.6, 1), (0.03, 40)])
def test_the_draws_are_independent_coins_over_records_and_steps(rate, length):
    count, steps = 4000, 120
    draws = drawn(rate, length, keys(count, 1), steps)
    table = np.array([draws.sum(), draws.size - draws.sum()])
    assert scipy.stats.chisquare(table, [draws.size * rate, draws.size * (1 - rate)]).pvalue > 1e-4
    # Every step has the same rate, also the first and the last of a block; the step's number says nothing.
    assert scipy.stats.chisquare(draws.sum(1), np.full(steps, draws.sum() / steps)).statistic < scipy.stats.chi2(steps).ppf(
        0.9999
    )
    # All patterns of a record over three steps in a row, wherever a block ends among them.
    weights = np.array([rate ** bin(p).count("1") * (1 - rate) ** (3 - bin(p).count("1")) for p in range(8)])
    for lag in (1, 2, length):
        for first in range(0, steps - 2 * lag, max(1, (steps - 2 * lag) // 9)):
            patterns = draws[first] * 4 + draws[first + lag] * 2 + draws[first + 2 * lag]
            assert scipy.stats.chisquare(np.bincount(patterns, minlength=8), weights * count).pvalue > 1e-6
    # A step's size is binomial: its variance over steps is N q (1 - q), where another record's draws say nothing.
    assert draws.sum(1).var() == pytest.approx(count * rate * (1 - rate), rel=0.5)
    together = (draws[:, :-1] & draws[:, 1:]).sum()
    expected = rate**2 * steps * (count - 1)
    assert abs(together - expected) < 5 * expected**0.5


def test_blocks_of_any_number_of_records_are_alike(monkeypatch):
    key = keys(500)
    whole = drawn(0.1, 10, key, 25)
    monkeypatch.setattr(geometric_skips, "_AT_ONCE", 64)
    np.testing.assert_array_equal(drawn(0.1, 10, key, 25), whole)


def test_a_step_is_drawn_alike_from_wherever_a_run_goes_on():
    key = keys(300)
    whole = drawn(0.07, 15, key, 60)
    for step in (59, 0, 31, 30, 14, 15):
        fresh = np.zeros(300, bool)
        fresh[GeometricSkips(0.07, 15, RANDOMNESS, key)(step)] = True
        np.testing.assert_array_equal(fresh, whole[step])
    assert (drawn(0.07, 15, key, 60, Randomness.from_seed(4)) != whole).any()


@pytest.mark.parametrize(("rate", "length"), [(0.3, 50), (1e-9, 100), (1 - 1e-12, 5), (65536 / 1e8, 1526)])
def test_the_thresholds_are_right_to_the_last_of_64_bits(rate, length):
    thresholds, failure = gap_thresholds(rate, length), 1 - Fraction(rate)
    assert thresholds[0] == 0
    for gap in {1, 2, length // 2, length} - {0}:
        assert abs(int(thresholds[gap]) - ((1 - failure**gap) * 2**64)) <= 1


def test_blocks_draw_about_once_a_record_and_all_where_q_is_one():
    plan = PrivacyPlan.of(1000, 100, 4, 1.0, 50, 1.0, 1e-5)
    assert plan.mechanism.sampler == PoissonSampler(0.1, 10)
    assert [block_length(*case) for case in [(0.1, 50), (0.1, 3), (1, 9), (1e-9, 10**9)]] == [10, 3, 1, 1 << 16]
    every = plan.replace(records=100).mechanism.sampler
    for step in (0, 7):
        np.testing.assert_array_equal(every.participants(RANDOMNESS, keys(100))(step), np.arange(100))
        participants = every.participants(RANDOMNESS, keys(100), lambda first, end: np.arange(first, end) % 3 == 0)
        np.testing.assert_array_equal(participants(step), np.arange(0, 100, 3))


@pytest.mark.parametrize(("rate", "length"), [(0.9, 1), (0.5, 64), (0.004, 245), (0.3, 4096), (1.5e-5, 65_536), (1e-12, 5000)])
def test_leading_bits_say_the_gap_that_all_bits_say(rate, length):
    thresholds, leading = gap_thresholds(rate, length), geometric_skips.gaps_by_leading_bits(rate, length)
    words = np.random.default_rng(2).integers(0, 2**64, 100_000, np.uint64)
    one, ends = np.uint64(1), np.array([0, 2**64 - 1], np.uint64)
    below = words % np.maximum(thresholds[-1], one)
    words = np.concatenate([words, below, thresholds, thresholds - one, thresholds + one, ends])
    np.testing.assert_array_equal(
        geometric_skips._gaps(words, thresholds, leading), np.searchsorted(thresholds, words, side="right")
    )
    assert (leading >= 0).mean() > 0.9  # most words need no search
