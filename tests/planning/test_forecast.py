"""What a forecast says follows from the plan and the measured gradient; its quick accounting agrees with the slow one."""

import math

import pytest

from dpfed.planning import forecast as forecasting
from dpfed.planning.forecast import forecast
from dpfed.planning.gradient_signal import Signal
from dpfed.planning.plan_grid import Row, same_promise
from dpfed.planning.proxy import Proxy, declared_plan
from dpfed.privacy.plan import PrivacyPlan
from dpfed.progress import Silent

SIGNAL = Signal(group_size=4, groups=64, numbers=10_000, length=0.5, error=0.1, response=0.01, seconds=1e-3)


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    monkeypatch.setattr(forecasting, "_BUDGET", 0.5)


def plan_of(records=20_000, batch=2_000, steps=100, sigma=1.0, size=4):
    return PrivacyPlan.of(records, batch, size, clip_norm=1.0, steps=steps, noise_multiplier=sigma, delta=1e-6)


def test_a_row_says_what_its_definition_says():
    row = Row.of("", plan_of(), SIGNAL)
    noise = 1.0 * 2.0 / 500  # sigma 2C / K
    assert row.noise_over_gradient == pytest.approx(noise * 100 / 0.5)
    assert row.reach == pytest.approx(100 * 0.01 / math.hypot(0.01, noise))
    assert row.seconds == pytest.approx(1e-3 * 2_000 * 100)


@pytest.mark.parametrize("batch, steps, factor", [(1_024, 100, 1.0), (20_000, 100, 1.0), (512, 400, 1.0), (512, 100, 0.5)])
def test_the_quick_sigma_is_about_that_of_the_accountant(batch, steps, factor):
    plan = PrivacyPlan.calibrate(20_000, 512, 100, 8.0, group_size=4, clip_norm=1.0, accountant="rdp")
    quick = same_promise(plan, batch, steps, factor)
    slow = PrivacyPlan.calibrate(20_000, batch, steps, 8.0 * factor, group_size=4, clip_norm=1.0, accountant="rdp")
    assert quick.noise.multiplier == pytest.approx(slow.noise.multiplier, rel=0.02)
    assert quick.promise.target_epsilon == 8.0 * factor and (quick.sampling.batch, quick.steps) == (batch, steps)


def test_more_steps_than_a_plan_can_have_are_left_out():
    assert same_promise(plan_of(steps=600_000_000), 2_000, 1_200_000_000) is None


@pytest.mark.long
def test_a_forecast_has_the_plan_its_neighbours_and_the_best(tiny_config, shapes):
    result = forecast(tiny_config, declared_plan(tiny_config, None, Silent()), Proxy("store", shapes.path, 600))
    names = [row.what for row in result.rows]
    assert names[:7] == ["as configured", "group size 2", "group size 8", "batch 30", "batch 120", "batch 240", "3 steps"]
    assert names[7:-1] == ["12 steps", "epsilon 4.00", "epsilon 16.00"] and names[-1].startswith("best: B ")
    assert result.rows[-1].seconds <= 2.1 * result.rows[0].seconds
    assert result.rows[-1].reach >= max(row.reach for row in result.rows[:1])
    facts = result.facts()
    assert facts["verdict"] == "will not work" and facts["records"] == 600  # six steps
    assert facts["memory"] and facts["memory"] < facts["memory_there"]
    assert result.signal.groups >= 16
