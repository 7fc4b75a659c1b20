"""Private selection: the paper's bounds computed otherwise, and the laws of the number of runs and of their settings."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant
from scipy import integrate, stats

from dpfed.errors import UserError
from dpfed.privacy.ledger import Ledger, Release
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.randomness import Randomness
from dpfed.privacy.selection import DISTRIBUTIONS, ORDERS, Selection, drawn_setting, epsilon_of

PLAN = PrivacyPlan(2_000, 200, group_size=4, clip_norm=1.0, steps=50, noise_multiplier=1.5, delta=1e-5, accountant="rdp")
NOISY = dataclasses.replace(PLAN, steps=10, noise_multiplier=4.0)
DRAWS = 20_000


def of(distribution, mean, *plans):
    return Selection(distribution, mean, plans or (PLAN,))


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("mean", [1.5, 10.0, 300.0])
@pytest.mark.parametrize("plan", [PLAN, NOISY])
def test_epsilon_is_that_of_another_implementation(distribution, mean, plan):
    shape = {"geometric": 1, "logarithmic": 0, "poisson": math.inf}[distribution]
    event = dp_event.RepeatAndSelectDpEvent(plan.mechanism.event(plan.steps), mean, shape)
    own, theirs = of(distribution, mean, plan), RdpAccountant([1 + 1e-7, *ORDERS])
    theirs.compose(event)  # order 1 is ours as a limit
    none = math.exp(-mean) if distribution == "poisson" else 0.0  # the outcome of no run at all, which they leave out
    assert theirs.get_epsilon(plan.delta) * (1 - 1e-9) <= own.epsilon
    assert own.epsilon == pytest.approx(theirs.get_epsilon(plan.delta), rel=1e-9 + none)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_the_bound_is_the_papers_formula(distribution):
    """Theorems 2 and 6 of Papernot and Steinke (2022), at one pair of orders at a time, for a Gaussian release of rho-zCDP."""
    plan = dataclasses.replace(PLAN, batch=2_000, steps=1, noise_multiplier=3.0)
    selection, rho = of(distribution, 10.0, plan), 1 / 18
    gamma = {"geometric": 0.1, "logarithmic": 0.0276}.get(distribution)
    if distribution == "logarithmic":
        assert (1 / gamma - 1) / math.log(1 / gamma) == pytest.approx(10.0, rel=2e-2)

    def extra(order):
        if distribution == "poisson":
            near = math.log1p(1 / (order - 1))
            return 10.0 * math.exp(min((a - 1) * (rho * a - near + math.log1p(-1 / a)) - math.log(a) for a in ORDERS))
        eta = 1 if distribution == "geometric" else 0
        return (1 + eta) * min((1 - 1 / a) * rho * a + math.log(1 / gamma) / a for a in ORDERS)

    for order in (2.0, 5.0, 20.0):
        wanted = min(rho * a + extra(a) + math.log(10.0) / (a - 1) for a in ORDERS if a >= order)  # no run at all: 5e-5
        assert selection.curve((order,))[0] == pytest.approx(wanted, rel=5e-3)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_the_best_of_gaussian_runs_keeps_the_bound(distribution):
    """The divergence of the best of K draws from a Gaussian, by integration, where shown draws would break the bound."""
    sigma, mean, order = 2.0, 8.0, 3.0
    plan = dataclasses.replace(PLAN, batch=2_000, steps=1, noise_multiplier=sigma)
    selection = of(distribution, mean, plan)
    weights = list(itertools.islice(selection.chances(), 600))

    def density(x, shift):
        z = (x - shift) / sigma
        below, own = stats.norm.cdf(z), stats.norm.pdf(z) / sigma
        return own * sum(number * chance * below ** (number - 1) for number, chance in weights if number)

    none = dict(weights).get(0, 0.0)
    for one, other in ((0.0, 1.0), (1.0, 0.0)):
        part = integrate.quad(
            lambda x, one=one, other=other: density(x, one) ** order * density(x, other) ** (1 - order), -14, 16, limit=200
        )[0]
        assert math.log(none + part) / (order - 1) <= selection.curve((order,))[0]
    if distribution == "geometric":  # as many draws that are shown, and K fixed and known, cost more than the bound says
        assert mean * order / (2 * sigma**2) > selection.curve((order,))[0]


def test_a_list_costs_what_its_worst_plan_costs_at_each_order():
    small = dataclasses.replace(PLAN, batch=4, noise_multiplier=0.5)  # dearer at large orders, cheaper at small ones
    both = of("geometric", 5.0, PLAN, small)
    alone = [of("geometric", 5.0, plan).curve(ORDERS) for plan in (PLAN, small)]
    assert any(x < y for x, y in zip(*alone, strict=True)) and any(x > y for x, y in zip(*alone, strict=True))
    assert all(whole >= max(parts) for whole, *parts in zip(both.curve(ORDERS), *alone, strict=True))
    assert both.epsilon >= max(of("geometric", 5.0, plan).epsilon for plan in (PLAN, small))
    assert both.covers(small) and not both.covers(NOISY)


def test_the_same_plan_twice_is_one_plan():
    assert of("geometric", 5.0, PLAN, PLAN) == of("geometric", 5.0)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_a_cost_at_some_orders_is_the_same_as_among_others(distribution):
    selection = of(distribution, 10.0)
    few = (1.37, 2.61, 5.0, 17.0)
    assert selection.curve(few) == pytest.approx([selection.curve((order,))[0] for order in few])
    assert epsilon_of(selection.curve(few), few, PLAN.delta) >= selection.epsilon * (1 - 1e-3)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("mean", [1.01, 2.5, 10.0, 500.0])
def test_the_chances_have_the_mean_and_add_up_to_one(distribution, mean):
    chances = list(itertools.islice(of(distribution, mean).chances(), 100_000))
    assert math.fsum(chance for _, chance in chances) == pytest.approx(1, abs=1e-9)
    assert math.fsum(number * chance for number, chance in chances) == pytest.approx(mean, rel=1e-6)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_the_number_of_runs_has_its_law(distribution):
    selection = of(distribution, 6.0)
    drawn = np.array([selection.draw(Randomness(number.to_bytes(32, "little"))) for number in range(DRAWS)])
    least = {"geometric": stats.geom(1 / 6.0), "poisson": stats.poisson(6.0), "logarithmic": stats.logser(selection._ratio)}
    edges = np.arange(1, 25)
    below = least[distribution].cdf(edges)
    wanted = np.diff([0.0, *below, 1.0]) * DRAWS
    counted = np.histogram(drawn, [-0.5, *(edges + 0.5), np.inf])[0]
    keep = wanted > 5
    assert stats.chisquare(counted[keep], wanted[keep] * counted[keep].sum() / wanted[keep].sum()).pvalue > 1e-4


def test_settings_are_uniform_and_independent_of_each_other_and_of_the_number():
    selection, secrets = of("geometric", 6.0), [Randomness(number.to_bytes(32, "big")) for number in range(6_000)]
    drawn = np.array([[drawn_setting(secret, run, 3) for run in (0, 1)] for secret in secrets])
    many = np.array([selection.draw(secret) > 3 for secret in secrets])
    assert stats.chisquare(np.bincount(drawn[:, 0] * 3 + drawn[:, 1], minlength=9)).pvalue > 1e-4
    table = np.stack([np.bincount(drawn[many == side, 0], minlength=3) for side in (False, True)])
    assert stats.chi2_contingency(table).pvalue > 1e-4


def test_number_and_settings_are_functions_of_the_secret():
    selection, secret = of("geometric", 40.0), Randomness.fresh()
    again = Randomness(secret.master)
    assert selection.draw(secret) == selection.draw(again)
    assert [drawn_setting(secret, run, 7) for run in range(50)] == [drawn_setting(again, run, 7) for run in range(50)]
    assert len({selection.draw(Randomness.fresh()) for _ in range(40)}) > 5  # neither fixed nor a function of the plan


@pytest.mark.parametrize("mean", [0, 1, -3, math.nan, math.inf, 501, True, "ten"])
def test_an_impossible_mean_is_refused(mean):
    with pytest.raises(UserError, match="the mean number of runs must be"):
        of("geometric", mean)


def test_plans_that_one_bound_cannot_cover_are_refused():
    with pytest.raises(UserError, match=r"privacy.delta must be the same in all of them, got 1e-06, 1e-05"):
        of("geometric", 5.0, PLAN, dataclasses.replace(PLAN, delta=1e-6))
    with pytest.raises(UserError, match="the number of records must be the same"):
        of("geometric", 5.0, PLAN, dataclasses.replace(PLAN, records=2_001))
    with pytest.raises(UserError, match="promises nothing that holds"):
        of("geometric", 5.0, dataclasses.replace(PLAN, method_name="none", noise_multiplier=0.0))
    with pytest.raises(UserError, match="did you mean 'geometric'"):
        of("geometrical", 5.0)
    with pytest.raises(UserError, match="there is none"):
        Selection("geometric", 5.0, ())


def test_a_ledger_keeps_the_selection_and_says_nothing_of_interruptions(tmp_path):
    selection = of("logarithmic", 10.0, PLAN, NOISY)
    ledger = Ledger.create(tmp_path / "ledger", PLAN, selection=selection)
    assert ledger.epsilon == 0
    plain = Ledger.create(tmp_path / "plain", PLAN)
    for one in (ledger, plain):
        one.charge(Release(0, "a"))
        one.note_resumed(1)
        one.note_replay(Release(0, "a"))
        one.charge(Release(1, "b"))
    found = Ledger.open(tmp_path / "ledger")
    assert found.selection == selection and found.epsilon == selection.epsilon > found.plan.epsilon()
    assert (found.accountant, found.epsilon_planned) == ("rdp", selection.epsilon)
    assert len((tmp_path / "ledger").read_text().splitlines()) == 3 < len((tmp_path / "plain").read_text().splitlines())
