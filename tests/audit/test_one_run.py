"""The limits of guesses in one run, held against enumeration, simulation and a linear program."""

import itertools
import math

import numpy as np
import pytest
from scipy import optimize, stats

from dpfed.audit.lower_bounds import compatible, epsilon_shown, p_value
from dpfed.audit.trade_off import TradeOff


def leaky(epsilon: float, delta: float) -> list[tuple[float, bool]]:
    """Randomised response that fails with probability delta: what comes of one coin, as (probability, guessed right)."""
    right = (1 - delta) / (1 + math.exp(-epsilon))
    return [(delta, True), (right, True), (1 - delta - right, False)]


@pytest.mark.parametrize("epsilon, delta", [(0.0, 0.0), (1.0, 0.0), (0.5, 0.05), (2.0, 0.01)])
def test_no_outcome_of_randomised_response_is_likelier_than_the_limit(epsilon, delta):
    canaries = 6
    chances = np.zeros(canaries + 1)
    for outcome in itertools.product(leaky(epsilon, delta), repeat=canaries):
        chances[sum(right for _, right in outcome)] += math.prod(chance for chance, _ in outcome)
    for correct in range(canaries + 1):
        exact, limit = chances[correct:].sum(), p_value(canaries, canaries, correct, epsilon, delta)
        assert exact <= limit + 1e-12
        if delta == 0:
            assert limit == pytest.approx(exact)  # it is the worst mechanism there is


def test_the_epsilon_shown_is_that_of_the_exact_binomial_test():
    found = epsilon_shown(canaries=200, guesses=100, correct=90, delta=0.0, error=0.05)
    rate = stats.binomtest(90, 100).proportion_ci(0.90, "exact").low  # one-sided at 95%
    assert found == pytest.approx(math.log(rate / (1 - rate)), abs=1e-3)
    assert epsilon_shown(200, 100, 50, 0.0, 0.05) == 0
    assert epsilon_shown(200, 100, 90, 1e-3, 0.05) < found


def test_the_epsilon_shown_by_randomised_response_is_rarely_too_high():
    generator, epsilon, count = np.random.default_rng(3), 1.5, 300
    correct = generator.binomial(count, 1 / (1 + math.exp(-epsilon)), 400)
    too_high = [epsilon_shown(count, count, int(right), 0.0, 0.05) > epsilon for right in correct]
    assert np.mean(too_high) <= 0.09


def curve(epsilon: float, delta: float) -> TradeOff:
    return TradeOff(np.array([0.0, epsilon]), np.array([max(delta, 1 - 2 * (1 - delta) / (1 + math.exp(epsilon))), delta]))


def highest_tail(found: TradeOff, canaries: int, guesses: int, correct: int) -> float:
    """The most probability of `correct` right guesses or more, by linear programming over all that the constraints allow."""
    count = np.arange(guesses + 1)
    rows, limits = [], []
    for least in range(1, guesses + 1):
        right = np.where(count >= least, count, 0) / canaries
        wrong = np.where(count >= least - 1, guesses - count, 0) / canaries
        for epsilon, delta in zip(found.epsilons, found.deltas, strict=True):
            rows += [right - math.exp(epsilon) * wrong, right - math.exp(-epsilon) * wrong]
            limits += [delta, 1 - math.exp(-epsilon) * (1 - delta)]
    solved = optimize.linprog(-1.0 * (count >= correct), rows, limits, np.ones((1, guesses + 1)), [1.0], bounds=(0, 1))
    return -solved.fun


@pytest.mark.parametrize("epsilon, delta", [(0.5, 0.0), (1.0, 0.02), (2.0, 0.1)])
@pytest.mark.parametrize("canaries, guesses, correct", [(8, 8, 7), (12, 8, 6), (20, 6, 6), (10, 10, 5)])
def test_the_f_dp_form_is_the_linear_program(epsilon, delta, canaries, guesses, correct):
    found = curve(epsilon, delta)
    exact = highest_tail(found, canaries, guesses, correct)
    assert exact > 0.99 or not compatible(found, canaries, guesses, correct, exact * 1.01)
    assert compatible(found, canaries, guesses, correct, exact * 0.99)
