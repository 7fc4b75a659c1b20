"""Neighbours for every method and several C, with plans of the public API: a record moves no sum by more than the plan says.

C enters once. So with C ten times as large and gradients that are longer still, sums and sensitivity are ten times as large.
"""

import pytest

from dpfed.privacy.method import METHODS, method_named
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.randomness import Randomness
from dpfed.runs.build import build
from dpfed.runs.closed_form import layout_of
from tests.bounding.methods.test_methods import config_for, towers  # noqa: F401
from tests.training.records_of_worker import keep_only

# Of `released`, the bound is for a given release of statistics, which neighbours have in common only by chance:
# `tests/baselines/noisy_statistics/test_released.py` fixes it.
SOUND = [name for name in METHODS if method_named(name).private and method_named(name).sound and name != "released"]
RANDOMNESS = Randomness.from_seed(5)


@pytest.fixture(scope="module")
def parts_of(towers):  # noqa: F811
    made = {}

    def make(name):
        if name not in made:
            made[name] = build(config_for(name), RANDOMNESS)
        return made[name]

    return make


def calibrated(parts, clip_norm, noise="gaussian"):
    """The same plan from the library's own door, at another C."""
    numbers = parts.plan.as_dict()
    drop = ("target_epsilon", "noise_multiplier", "clip_norm", "noise_kind")
    rest = {name: value for name, value in numbers.items() if name not in drop and value is not None}
    return PrivacyPlan.calibrate(noise_multiplier=1.3, clip_norm=clip_norm, noise_kind=noise, **rest)


def with_plan(parts, plan):
    parts = parts.with_learner(plan=plan)
    if plan.bounding.method.closed_form:  # its heads are laid out for the plan's grid
        heads = parts.model.moments
        heads.layout = layout_of(plan, heads.layout.dimensions, heads.layout.towers)
    return parts


def moved(parts, step, count=2):
    """How far each of some records moves the sum of a step, and the sum's own length."""
    indices, keys = parts.store.split("train"), parts.store.keys

    def total(kept):
        worker = parts.learner.worker(RANDOMNESS)
        keep_only(worker, kept, keys)
        return worker.bounded_sum(step).numbers()

    drawn = parts.learner.worker(RANDOMNESS).draw(step).indices
    whole = total(indices)
    return [(whole - total(indices[indices != gone])).norm().item() for gone in drawn[:count]], whole.norm().item()


@pytest.mark.parametrize("clip_norms", [(0.1, 7.0), pytest.param((0.01, 1.0, 30.0), marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize("name", SOUND)
def test_a_record_moves_the_sum_within_sensitivity_for_any_c(parts_of, name, clip_norms):
    lengths = {}
    for clip_norm in clip_norms:
        parts = with_plan(parts_of(name), calibrated(parts_of(name), clip_norm))
        # The two steps of a closed form differ; all others draw another sample, and each C has its own.
        for step in range(2) if parts.plan.bounding.method.closed_form else [clip_norms.index(clip_norm) % 2]:
            distances, length = moved(parts, step, len(clip_norms))
            assert max(distances) <= parts.plan.sensitivity_of(step)
            assert max(distances) > 0
            lengths[clip_norm, step] = length / clip_norm
        assert parts.plan.sensitivity == pytest.approx(clip_norm * parts_of(name).plan.replace(clip_norm=1.0).sensitivity)
    if method_named(name).closed_form:  # every part has the same length at any C
        for step in range(2):
            assert lengths[clip_norms[0], step] == pytest.approx(lengths[clip_norms[-1], step], rel=1e-6)


@pytest.mark.parametrize("name", [name for name in SOUND if method_named(name).proven_in_floats])
def test_the_same_on_the_grid_of_discrete_noise(parts_of, name):
    for clip_norm in (0.1, 7.0):
        parts = with_plan(parts_of(name), calibrated(parts_of(name), clip_norm, "discrete"))
        for step in range(parts.plan.steps):
            distances, _ = moved(parts, step)
            assert 0 < max(distances) <= parts.plan.sensitivity_of(step)


def test_neighbours_show_a_c_that_enters_twice(parts_of, monkeypatch):
    """Sabotage: what private moments did until November 2026."""
    parts = with_plan(parts_of("moments"), calibrated(parts_of("moments"), 7.0))
    layout = parts.model.moments.layout
    monkeypatch.setitem(layout.__dict__, "weights", tuple(7 * weights for weights in layout.weights))
    assert max(moved(parts, 1)[0]) > 3 * parts.plan.sensitivity_of(1)
