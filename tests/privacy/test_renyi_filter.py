"""The privacy filter: what it admits is private however runs are chosen, and the shortcut that it does not take is not."""

import itertools
import math
import re
import sys

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant

from dpfed.privacy import accounting, renyi_filter
from dpfed.privacy.mechanism import Mechanism
from dpfed.privacy.renyi_filter import RenyiFilter, added, limit, renyi_curve
from dpfed.privacy.samplers import FixedSizeSampler, PoissonSampler

BUDGETS = [(0.5, 1e-6), (1, 1e-5), (3, 1e-6), (10, 1e-6), (10, 1e-9), (30, 1e-7)]
RUNS = [
    (Mechanism(PoissonSampler(0.05), 1.5), 100),
    (Mechanism(PoissonSampler(0.01), 0.8), 900),
    (Mechanism(PoissonSampler(1), 20), 3),
]


@pytest.mark.parametrize("order", [1.5, 2.35, 4.2, 12.0, 60.0])
def test_a_cost_is_that_of_an_accountant_of_one_order(order):
    for mechanism, steps in RUNS:
        accountant = RdpAccountant([order])
        accountant.compose(mechanism.event(steps))
        epsilon = accountant.get_epsilon(1e-6)
        (cost,) = renyi_curve(mechanism, steps, (order,))
        assert limit(epsilon, 1e-6, order) == pytest.approx(cost, rel=1e-9)


@pytest.mark.parametrize("epsilon, delta", BUDGETS)
def test_one_order_admits_what_its_accountant_admits(epsilon, delta):
    """Brute force: compose runs until the accountant of every single order, at its share of delta, is above epsilon."""
    budget = RenyiFilter.of(epsilon, delta)
    assert math.fsum(budget.shares) == pytest.approx(1) and min(budget.orders) > 1
    for mechanism, _ in RUNS:
        once = budget.curve(mechanism, 1)
        most = budget.times((0.0,) * len(once), once)
        for steps in {most, most + 1} - {0}:
            spent = []
            for order, share in zip(budget.orders, budget.shares, strict=True):
                accountant = RdpAccountant([order])
                accountant.compose(mechanism.event(steps))
                spent.append(accountant.get_epsilon(share * delta))
            assert (min(spent) <= epsilon * (1 + 1e-9)) == (steps == most)


def test_costs_add_up_by_order_and_unknown_stays_unknown():
    curves = [renyi_curve(mechanism, steps, (2.0, 5.0)) for mechanism, steps in RUNS]
    accountant = RdpAccountant([2.0, 5.0])
    accountant.compose(dp_accounting.ComposedDpEvent([mechanism.event(steps) for mechanism, steps in RUNS]))
    assert added(curves, 2) == pytest.approx(tuple(accountant._rdp), rel=1e-12)
    assert added([], 2) == (0.0, 0.0) and added([(math.inf, 1.0), (1.0, 1.0)], 2) == (math.inf, 2.0)
    budget = RenyiFilter(1.0, 1e-6, (20.0, 40.0), (0.5, 0.5))
    assert budget.part((math.inf, budget.limits[1] / 2)) == pytest.approx(0.5)
    assert budget.part((math.inf, math.inf)) == math.inf and not budget.admits((math.inf, math.inf))
    assert budget.part((0.0, 0.0)) == 0


def test_no_noise_costs_everything_and_no_step_nothing():
    assert renyi_curve(Mechanism(PoissonSampler(0.1), 0.0), 3, (2.0,)) == (math.inf,)
    assert renyi_curve(Mechanism(PoissonSampler(0.1), 1.0), 0, (2.0,)) == (0.0,)


def test_samples_of_fixed_size_have_a_cost_of_their_own_relation():
    (cost,) = renyi_curve(Mechanism(FixedSizeSampler(1000, 10), 2.0), 5, (4.0,))
    assert 0 < cost < math.inf


@pytest.mark.parametrize("orders, shares", [((2.0,), (1.1,)), ((2.0, 3.0), (0.5, 0.6)), ((1.0,), (1.0,)), ((2.0,), (0.5, 0.5))])
def test_shares_that_are_more_than_delta_are_no_filter(orders, shares):
    with pytest.raises(ValueError):
        RenyiFilter(1.0, 1e-6, orders, shares)


@pytest.mark.parametrize("epsilon, delta", BUDGETS)
def test_what_is_admitted_holds_by_loss_distributions_too(epsilon, delta):
    """For plans that are fixed before, composing loss distributions is exact: the filter must admit no more than they do."""
    budget = RenyiFilter.of(epsilon, delta)
    mechanism = Mechanism(PoissonSampler(0.05), 2.0)
    steps = budget.times((0.0,) * 8, budget.curve(mechanism, 1))
    if steps:
        assert accounting.epsilon(mechanism, steps, delta, "pld") <= epsilon


# An adversary who chooses the second mechanism from what the first one said, at two far-apart orders. All is exact: outcomes
# are few, and delta is the hockey-stick divergence of the whole tree. Probabilities under P (with the record) and Q (without).
ORDERS, EPSILON, DELTA = (20.0, 60.0), 1.0, 1e-3


def divergence(p, q, order):
    """Of two distributions over a few outcomes, the larger one of both directions."""
    logs = [np.logaddexp.reduce(order * np.log(one) + (1 - order) * np.log(other)) for one, other in ((p, q), (q, p))]
    return max(logs) / (order - 1)


def leak(room, order, worth):
    """Two outcomes of which one tells as much as a divergence of `room` at an order allows: maximises P - worth Q of it."""
    best = (0.0, (0.5, 0.5), (0.5, 0.5))
    for p in np.linspace(0.01, 0.999, 400):
        low, high = 1e-12, p
        for _ in range(60):
            q = math.sqrt(low * high)
            fits = divergence(np.array([p, 1 - p]), np.array([q, 1 - q]), order) <= room
            low, high = (low, q) if fits else (q, high)
        best = max(best, (p - worth * high, (p, 1 - p), (high, 1 - high)))
    return best[1:]


def delta_of_adversary(limits):
    """What the tree leaks: each branch fills one order to its limit, and ignores the other one.

    Args:
        limits: of the two orders.
    """
    first_q = np.array([0.97, 0.03])
    first_p = np.array([1 - 0.033, 0.033])
    outcomes = []
    for branch, order in enumerate(ORDERS):
        room = limits[branch] - divergence(first_p, first_q, order)
        p, q = leak(room, order, math.exp(EPSILON) * first_q[branch] / first_p[branch])
        assert divergence(np.array(p), np.array(q), order) <= room  # the rule lets it pass: this order still has room
        outcomes += [(first_p[branch] * one, first_q[branch] * other) for one, other in zip(p, q, strict=True)]
    assert math.fsum(p for p, _ in outcomes) == pytest.approx(1) == math.fsum(q for _, q in outcomes)
    return math.fsum(max(0.0, p - math.exp(EPSILON) * q) for p, q in outcomes)


@pytest.mark.long
def test_any_order_at_the_whole_delta_would_be_wrong():
    """The attack on the shortcut: delta comes out half as large again as was promised."""
    assert delta_of_adversary([limit(EPSILON, DELTA, order) for order in ORDERS]) > 1.4 * DELTA


@pytest.mark.long
@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.9, 0.1), (0.1, 0.9)])
def test_with_delta_shared_out_the_adversary_fails(shares):
    assert delta_of_adversary(RenyiFilter(EPSILON, DELTA, ORDERS, shares).limits) <= DELTA


def test_random_adversaries_keep_the_promise():
    """Trees of three random mechanisms, each chosen from all outcomes before it, and stopped by the filter alone."""
    rng = np.random.default_rng(1)
    budget = RenyiFilter(1.5, 0.02, (3.0, 8.0), (0.5, 0.5))
    worst = 0.0
    for _ in range(150):
        leaves = [(1.0, 1.0, (0.0, 0.0))]
        for _ in range(3):
            grown = []
            for p, q, spent in leaves:
                strength = rng.uniform(0.2, 2.5)  # chosen anew in every branch
                one = rng.dirichlet([0.3, 0.3, 0.3]) * 0.98 + 0.02 / 3
                other = one * np.exp(strength * rng.uniform(-0.5, 0.5, 3))
                other /= other.sum()
                after = added([spent, tuple(divergence(one, other, order) for order in budget.orders)], 2)
                if budget.admits(after):
                    grown += [(p * a, q * b, after) for a, b in zip(one, other, strict=True)]
                else:
                    grown.append((p, q, spent))
            leaves = grown
        for sign in (1, -1):
            pairs = ((p, q) if sign > 0 else (q, p) for p, q, _ in leaves)
            worst = max(worst, math.fsum(max(0.0, p - math.exp(budget.epsilon) * q) for p, q in pairs))
    assert worst <= budget.delta


def test_a_larger_budget_admits_whatever_a_smaller_one_admits():
    for (epsilon, delta), (mechanism, steps) in itertools.product(BUDGETS, RUNS):
        budget = RenyiFilter.of(epsilon, delta)
        raised = RenyiFilter(2 * epsilon, delta, budget.orders, budget.shares)
        assert raised.part(budget.curve(mechanism, steps)) <= budget.part(budget.curve(mechanism, steps))


NEAR_ONE = RenyiFilter.of(1000, 1e-5)


def integrated(rate, sigma, order):
    """The larger divergence of both directions between N(0, s) and its mixture with N(1, s), by summing up densities."""
    x = np.linspace(-40 * sigma, 1 + 40 * sigma, 2_000_001)
    without = -(x**2) / (2 * sigma**2)
    with_ = np.logaddexp(math.log1p(-rate) + without, math.log(rate) - (x - 1) ** 2 / (2 * sigma**2))
    scale = math.log(x[1] - x[0]) - math.log(sigma * math.sqrt(2 * math.pi))
    both = (np.logaddexp.reduce(order * p + (1 - order) * q) + scale for p, q in ((with_, without), (without, with_)))
    return max(both) / (order - 1)


@pytest.mark.long
@pytest.mark.parametrize("rate, sigma", [(0.1, 0.5), (0.1, 0.822), (0.1, 1.0), (0.5, 1.0), (0.5, 3.0)])
def test_an_unknown_order_has_a_higher_orders_bound(rate, sigma):
    mechanism, steps = Mechanism(PoissonSampler(rate), sigma), 20
    accountant = RdpAccountant(list(NEAR_ONE.orders))
    accountant.compose(mechanism.event(steps))
    assert math.inf in accountant._rdp  # otherwise there would be nothing to see
    for order, cost, said in zip(NEAR_ONE.orders, NEAR_ONE.curve(mechanism, steps), accountant._rdp, strict=True):
        assert steps * integrated(rate, sigma, order) * (1 - 1e-6) <= cost < math.inf
        assert said in (math.inf, cost)  # what the accountant knows stays what it was


def test_a_bound_is_never_that_of_a_lower_order(monkeypatch):
    mechanism = Mechanism(PoissonSampler(0.1), 0.822)
    (alone,), (whole,) = renyi_curve(mechanism, 1, (1.6,)), renyi_curve(mechanism, 1, (2.0,))
    assert alone == whole == renyi_curve(mechanism, 1, (1.01, 1.6))[1]
    assert renyi_curve(mechanism, 1, (1.6, 1.9, 5.0))[0] == min(renyi_curve(mechanism, 1, (1.9, 2.0)))
    known = {1.5: math.inf, 2.0: 2.0, 2.5: math.inf, 3.0: 7.0, 4.5: 5.0}  # a looser bound at 3 than at 4.5, as there may be
    monkeypatch.setattr(renyi_filter, "_accounted", lambda mechanism, steps, orders: tuple(known[order] for order in orders))
    assert renyi_curve.__wrapped__(mechanism, 1, (1.5, 2.0, 2.5, 4.5)) == (2.0, 2.0, 5.0, 5.0)
    assert renyi_curve.__wrapped__(mechanism, 1, (2.0, 2.5)) == (2.0, 7.0)


@pytest.mark.parametrize("cost", [(math.nan, math.nan), (math.nan, math.inf), (-1.0, -1.0), (-1.0, math.inf)])
def test_a_cost_that_is_none_is_not_admitted(cost):
    budget = RenyiFilter(1.0, 1e-6, (20.0, 40.0), (0.5, 0.5))
    assert budget.part(cost) == math.inf and not budget.admits(cost)


@pytest.mark.parametrize(
    "numbers",
    [
        (math.nan, 1e-6, (2.0,), (1.0,)),
        (math.inf, 1e-6, (2.0,), (1.0,)),
        (1.0, math.nan, (2.0,), (1.0,)),
        (1.0, 1.0, (2.0,), (1.0,)),
        (1.0, 1e-6, (math.nan,), (1.0,)),
        (1.0, 1e-6, (math.inf,), (1.0,)),
        (1.0, 1e-6, (2.0, 3.0), (0.5, math.nan)),
    ],
)
def test_numbers_that_are_none_make_no_filter(numbers):
    with pytest.raises(ValueError, match=re.escape("; got ")):
        RenyiFilter(*numbers)


@pytest.mark.parametrize("once", [0.0, 1e-320])
def test_releases_of_hardly_any_cost_are_not_said_to_cost_all(once):
    budget = RenyiFilter(1.0, 1e-6, (20.0, 40.0), (0.5, 0.5))
    assert budget.times((0.0, 0.0), (once, 1.0)) == budget.times((budget.limits[0] / 2, math.inf), (once, 1.0)) == sys.maxsize
    assert budget.times((2 * budget.limits[0], 0.0), (once, budget.limits[1] / 3)) in (2, 3)
    assert budget.times((math.nan, math.inf), (once, 1.0)) == 0
