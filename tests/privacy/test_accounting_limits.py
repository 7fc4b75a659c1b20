"""Numbers that no accountant can bear: an answer that holds, or one sentence, and always within seconds."""

import math
import re
import time

import pytest

from dpfed.building.plan import plan_of, sketch_of
from dpfed.config import parse_config
from dpfed.errors import UserError
from dpfed.privacy import accounting
from dpfed.privacy.loss_grid import ROUNDING
from dpfed.privacy.mechanism import Mechanism
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.plan_checks import LEAST_EPSILON
from dpfed.privacy.samplers import PoissonSampler


def of_numbers(*numbers, **named) -> PrivacyPlan:
    return PrivacyPlan.calibrate(*numbers, **named, group_size=1, clip_norm=1.0)


NUMBERS = {"records": 60_000, "batch": 2048, "steps": 1200}


@pytest.mark.parametrize("name", ["epsilon", "noise_multiplier", "delta"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0, 0.0, True, "8", 10**400])
def test_what_is_no_number_is_refused(name, value):
    given = {"epsilon": 8.0} if name == "delta" else {}
    with pytest.raises(UserError, match=f"{name} must.*plan-impossible"):
        of_numbers(**NUMBERS, **{**given, name: value})


@pytest.mark.parametrize("name", ["records", "batch", "steps"])
@pytest.mark.parametrize("value", [-1, 0, True, 1.5, 10**13, 10**400])
def test_counts_that_cannot_be_are_refused(name, value):
    with pytest.raises(UserError, match="plan-impossible"):
        of_numbers(**{**NUMBERS, name: value}, epsilon=8.0)


@pytest.mark.parametrize(
    "numbers",
    [
        {"delta": 1e-300},
        {"delta": 5e-324},
        {"delta": 1e-13},
        {"records": 10**12},
        {"steps": 10**9},
        {"steps": 10**7, "delta": 1e-6},
        {"records": 3, "batch": 3, "steps": 10**6, "delta": 0.1},
    ],
)
def test_what_pld_cannot_resolve_is_said_and_rdp_resolves_it(numbers):
    started = time.process_time()
    with pytest.raises(accounting.Unresolved, match="privacy.accountant = 'rdp'"):
        of_numbers(**{**NUMBERS, "epsilon": 8.0, **numbers})
    by_rdp = of_numbers(**{**NUMBERS, "epsilon": 8.0, **numbers}, accountant="rdp")
    assert by_rdp.epsilon() <= 8 and time.process_time() - started < 10


@pytest.mark.long
def test_an_epsilon_just_below_that_of_the_least_noise_is_found():
    """The search then begins where it ends."""
    least = accounting.epsilon(Mechanism(PoissonSampler(1.0), accounting.LEAST_NOISE), 1, 0.5)
    found = accounting.calibrate(least - 0.1, Mechanism(PoissonSampler(1.0), 1.0), 1, 0.5)
    assert accounting.LEAST_NOISE <= found.noise_multiplier < 1.01 * accounting.LEAST_NOISE


@pytest.mark.parametrize(("steps", "accountant"), [(-1, "rdp"), (1.5, "pld"), ("2", "rdp"), (1, "PLD"), (1, ["pld"])])
def test_epsilon_of_no_number_of_steps_or_by_no_accountant_is_refused(steps, accountant):
    with pytest.raises(UserError, match="(steps|accountant) must .*plan-impossible"):
        accounting.epsilon(Mechanism(PoissonSampler(0.1), 1.0), steps, 1e-5, accountant)


def test_pld_is_refused_where_rounding_could_hide_delta():
    steps = 1000
    accounting.require_resolution(steps, ROUNDING * steps)
    with pytest.raises(accounting.Unresolved):
        accounting.require_resolution(steps, ROUNDING * steps * 0.99)
    assert ROUNDING >= 100 * 2.2e-16


@pytest.mark.parametrize("steps", [*range(1, 200), 1999, 123_457])
def test_the_delta_that_a_refusal_names_is_enough(steps):
    with pytest.raises(accounting.Unresolved) as refused:
        accounting.require_resolution(steps, 1e-30)
    accounting.require_resolution(steps, float(re.search(r"no delta below (\S+)", str(refused.value))[1]))


@pytest.mark.long
@pytest.mark.parametrize("epsilon", [5e-3, 0.02])
def test_small_promises_are_kept_and_no_worse_by_pld(epsilon):
    by = {name: of_numbers(**NUMBERS, epsilon=epsilon, accountant=name) for name in ("pld", "rdp")}
    assert all(plan.epsilon() <= epsilon for plan in by.values())
    assert by["pld"].noise.multiplier <= by["rdp"].noise.multiplier


def test_a_plan_is_sketched_before_its_records_are_counted():
    def config(**privacy):
        return parse_config({"privacy": {"batch": 100, "steps": 10, **privacy}})

    assert sketch_of(config(epsilon=8.0)).groups == 6
    for wrong in ({}, {"epsilon": -1.0}, {"epsilon": 8.0, "noise_multiplier": 1.0}, {"epsilon": 8.0, "delta": 1e-300}):
        with pytest.raises(UserError):
            sketch_of(config(**wrong))
    with pytest.raises(UserError, match="batch must lie in 2..99") as refused:
        sketch_of(config(epsilon=8.0), 99)
    assert refused.value.command == "Try --set privacy.batch=16."  # a tenth, and no less than a group
    assert sketch_of(config(epsilon=8.0, batch=10**9)).sampling.records > 10**9  # nobody knows yet that there are fewer


@pytest.mark.parametrize("epsilon", [LEAST_EPSILON * 0.99, 1e-300])
def test_an_epsilon_too_small_to_account_for_is_refused(epsilon):
    asked = parse_config({"privacy": {"batch": 100, "steps": 10, "epsilon": epsilon, "accountant": "rdp"}})
    for ask in (
        lambda: sketch_of(asked),
        lambda: plan_of(1000, asked),
        lambda: of_numbers(1000, 100, 10, epsilon, accountant="rdp"),
    ):
        with pytest.raises(UserError, match=r"epsilon must be finite and at least 0\.001 "):
            ask()
