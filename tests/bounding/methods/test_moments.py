"""Private moments: what a record adds to both sums, against an oracle in numpy, against neighbours, and broken on purpose."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.stats import norm

from dpfed.bounding import pair_moments
from dpfed.bounding.clipping import clip_norm_in_float32
from dpfed.bounding.engines import GroupBatch
from dpfed.bounding.pair_moments import MomentsEngine
from dpfed.models.moment_heads import MomentNoise
from dpfed.models.moment_layout import MomentLayout, Moments, dimensions_for
from dpfed.models.moments import MomentHeads
from dpfed.privacy.mechanism import Mechanism
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.samplers import PoissonSampler

RECORDS, IMAGE, TEXT, K, SIGMA = 40, 12, 9, 6, 1.3
OPTIONS = {"dimensions": K, "views": 0, "mean_share": 0.05, "cross_share": 0.8}
WIDTHS = {2: (IMAGE, TEXT), 1: (IMAGE,)}


def plan_of(records=RECORDS, **changes):
    rest = {"records": records, "batch": records, "group_size": 1, "clip_norm": 1.0, "steps": 2, "delta": 1e-3}
    return PrivacyPlan.of(**{**rest, "noise_multiplier": SIGMA, "method_name": "moments", "options": OPTIONS, **changes})


def engine_of(towers, plan=None, aligned=False):
    """An engine whose model is nothing but heads: its views are features anyway."""
    heads = MomentHeads(MomentLayout(K, towers, 0.05, 0.8), MomentNoise(RECORDS, SIGMA), WIDTHS[towers], aligned)
    with torch.no_grad():  # a centre as a first step may release it
        heads.released[: towers * K] = torch.randn(towers * K, generator=torch.Generator().manual_seed(4))
    model = torch.nn.Module()
    model.moments = heads
    sides = ("image", "text")[:towers]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pair_moments, "bridges", lambda model: dict.fromkeys(sides, torch.nn.Identity()))
        return MomentsEngine(model, plan or plan_of())


def features(towers, records, seed=0, views=1):
    generator = torch.Generator().manual_seed(seed)
    views = max(views, 3 - towers)
    found = {"image": torch.randn(records, views, IMAGE, generator=generator)}
    return found | ({"text": torch.randn(records, 1, TEXT, generator=generator)} if towers == 2 else {})


def sum_of(engine, views, step, starts=None, microbatch=None):
    total, count = engine.zeros(), len(views["image"])
    starts = list(range(count + 1)) if starts is None else starts
    for first in range(0, len(starts) - 1, microbatch or count):
        own = starts[first : first + (microbatch or count) + 1]
        some = {name: view[own[0] : own[-1]] for name, view in views.items()}
        engine.add_clipped(GroupBatch(some, [start - own[0] for start in own], step), 1.0, total)
    return total


HOSTILE = {
    "ordinary": lambda view: view,
    "huge": lambda view: view * 3e38,
    "tiny": lambda view: view * 1e-42,
    "zero": lambda view: view * 0,
    "not finite": lambda view: torch.full_like(view, math.nan),
    "infinite": lambda view: torch.full_like(view, math.inf),
    "one-hot": lambda view: (torch.arange(view.shape[-1]) == 0).float().expand_as(view) * 1e30,
}


@pytest.mark.parametrize("step", [0, 1])
@pytest.mark.parametrize("towers", [1, 2])
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_record_moves_the_sum_by_its_step_sensitivity_at_most(towers, step, kind):
    engine, plan = engine_of(towers), plan_of()
    views = features(towers, RECORDS)
    views = {name: torch.cat([view[:-1], HOSTILE[kind](view[-1:])]) for name, view in views.items()}
    rest = {name: view[:-1] for name, view in views.items()}
    for microbatch in (1, 7, RECORDS):
        moved = sum_of(engine, views, step, microbatch=microbatch) - sum_of(engine, rest, step, microbatch=5)
        assert moved.isfinite().all()
        assert moved.float().norm().item() <= plan.sensitivity_of(step) * (1 + 1e-6)
        if kind == "ordinary":  # tight, so that noise for less is too little; views that differ are shorter on average
            assert towers == 1 or moved.norm().item() == pytest.approx(plan.sensitivity_of(step), rel=1e-4)


def test_the_bound_is_reached_by_equal_views_of_an_image():
    engine, plan = engine_of(1), plan_of()
    views = {"image": features(1, 1)["image"][:, :1].expand(1, 4, IMAGE)}
    for step in (0, 1):
        assert sum_of(engine, views, step).norm().item() == pytest.approx(plan.sensitivity_of(step), rel=1e-6)


@pytest.mark.parametrize("towers", [1, 2])
def test_nothing_is_added_outside_of_a_step_own_place(towers):
    engine = engine_of(towers)
    layout = engine._layout
    for step in (0, 1):
        total = sum_of(engine, features(towers, RECORDS), step)
        total[layout.place(step)] = 0
        assert not total.any()


def test_the_steps_are_one_mechanism_of_the_plans_sensitivity():
    plan = plan_of()
    assert plan.sensitivity_of(0) ** 2 + plan.sensitivity_of(1) ** 2 == pytest.approx(plan.sensitivity**2)
    discrete = plan_of(noise_kind="discrete")
    room = discrete.rounded_sensitivity - discrete.sensitivity
    rounded = [(discrete.sensitivity_of(step) + room) ** 2 for step in (0, 1)]
    assert sum(rounded) <= discrete.rounded_sensitivity**2 * (1 + 1e-12)


def oracle(views, centre, projections):
    """The moments of records, written down record by record."""

    def unit(vectors):
        return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)

    sides = [unit(views[side].double().numpy() @ p.double().numpy().T) for side, p in projections.items()]
    means = [np.mean([own.mean(0) for own in side], 0) for side in sides]
    moved = [unit(side - c.double().numpy()) for side, c in zip(sides, centre, strict=True)]
    autos = [np.mean([np.mean([np.outer(u, u) for u in own], 0) for own in side], 0) for side in moved]
    if len(moved) == 2:
        products = [[np.outer(u, v) for u in a for v in b] for a, b in zip(*moved, strict=True)]
    else:
        products = [[np.outer(u, v) for i, u in enumerate(a) for j, v in enumerate(a) if i != j] for a in moved[0]]
    return np.array(means), np.mean([np.mean(own, 0) for own in products], 0), np.array(autos)


@pytest.mark.parametrize(("towers", "views"), [(1, 2), (1, 5), (2, 1), (2, 3)])
def test_the_sums_are_the_records_moments(towers, views):
    engine, records = engine_of(towers), features(towers, RECORDS, views=views)
    heads = engine._heads
    projections = {side: heads.projection(side) for side in records}
    centre = [heads.centre(side) for side in records]
    total = (sum_of(engine, records, 0) + sum_of(engine, records, 1)) / RECORDS
    found, expected = engine._layout.decoded(total), oracle(records, centre, projections)
    for name, value in zip(("means", "cross", "autos"), expected, strict=True):
        np.testing.assert_allclose(getattr(found, name).numpy(), value, rtol=1e-6, atol=1e-8)


def test_a_units_records_count_as_one():
    engine = engine_of(2)
    records = features(2, 3)
    for step in (0, 1):
        torch.testing.assert_close(3 * sum_of(engine, records, step, starts=[0, 3]), sum_of(engine, records, step))


def test_triangles_keep_lengths_and_come_back():
    layout = MomentLayout(K, 1, 0.05, 0.8)
    matrix = torch.randn(K, K, dtype=torch.float64)
    matrix = matrix + matrix.T
    flat = layout.encoded(1, Moments(torch.zeros(0), matrix, matrix[None]))
    cross, auto = flat.chunk(2)
    assert cross.norm().item() == pytest.approx(math.sqrt(0.8) * matrix.norm().item())
    assert auto.norm().item() == pytest.approx(math.sqrt(0.15) * matrix.norm().item())
    whole = layout.decoded(torch.cat([flat.new_zeros(K), flat]))
    torch.testing.assert_close(whole.cross, matrix)
    torch.testing.assert_close(whole.autos[0], matrix)


def gaussian_delta(epsilon, ratio):
    """Balle and Wang (2018), theorem 8: of one Gaussian release, with sensitivity over noise `ratio`."""
    return norm.cdf(ratio / 2 - epsilon / ratio) - math.exp(epsilon) * norm.cdf(-ratio / 2 - epsilon / ratio)


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
@pytest.mark.parametrize("sigma", [0.57, 3.4, 27.0])
def test_epsilon_is_that_of_the_analytic_formula_and_never_below(sigma, accountant):
    plan = plan_of(records=3000, noise_multiplier=sigma, delta=4e-5, accountant=accountant)
    for steps, ratio in ((1, math.sqrt(0.95) / sigma), (2, 1 / sigma)):
        exact = brentq(lambda eps, ratio=ratio: gaussian_delta(eps, ratio) - plan.promise.delta, 0, 500)
        assert exact <= plan.epsilon(steps) <= exact * (1.002 if accountant == "pld" else 1.4)


def test_calibrated_noise_keeps_the_promise_of_both_steps():
    draft = {key: value for key, value in plan_of(records=3000).as_dict().items() if key != "noise_multiplier"}
    draft = {key: value for key, value in draft.items() if key not in ("target_epsilon", "delta")}
    plan = PrivacyPlan.calibrate(epsilon=3, delta=4e-5, **draft)
    assert gaussian_delta(3, 1 / plan.noise.multiplier) <= 4e-5 < gaussian_delta(3, 1 / (plan.noise.multiplier - 2e-3))


def test_a_step_by_itself_costs_what_the_dearer_one_does():
    mechanism = plan_of().mechanism
    assert mechanism.poisson_steps(1) == (pytest.approx(SIGMA / math.sqrt(0.95)), 1.0, 1)
    assert mechanism.poisson_steps(2) == (pytest.approx(SIGMA), 1.0, 1)
    assert mechanism.poisson_steps(3)[0] == pytest.approx(SIGMA / math.sqrt(1.95))
    with pytest.raises(ValueError, match="every record takes part"):
        Mechanism(PoissonSampler(0.5), 1.0, shares=(0.5, 0.5))


@pytest.mark.parametrize(
    "broken",
    [
        lambda patch: patch.setattr(MomentsEngine, "_unit", lambda self, side, f: f.double() @ self._maps[side][0].T),
        lambda patch: patch.setattr(MomentsEngine, "_centred", lambda self, side, unit: unit - self._heads.centre(side)),
        lambda patch: patch.setattr(MomentLayout, "scales", property(lambda self: (1.0, 1.0, 1.0))),
        lambda patch: patch.setattr(pair_moments._Vectors, "auto", lambda self, w: (f := self.all.flatten(0, 1)).T @ f * 2),
    ],
    ids=["no unit length", "centred and long", "no shares", "auto-moments twice"],
)
def test_neighbours_show_a_broken_bound(broken, monkeypatch):
    broken(monkeypatch)
    engine, plan = engine_of(2), plan_of()
    views = features(2, 1)
    assert any(sum_of(engine, views, step).norm() > plan.sensitivity_of(step) * 1.01 for step in (0, 1))


def test_the_number_of_dimensions_follows_from_public_numbers():
    assert dimensions_for(3000, 3.4, (1280, 384)) == 240
    assert dimensions_for(100, 30.0, (1280, 384)) == 100
    assert dimensions_for(300, 30.0, (1280, 384)) == 128
    assert dimensions_for(10**6, 0.5, (1280, 384)) == 384
    assert dimensions_for(10**6, 0.0, (1280, 64)) == 64


def test_no_rounding_of_the_float32_sum_reaches_the_room_that_is_left():
    plan = plan_of(records=400)
    engine, views = engine_of(2, plan), {name: view[:1].expand(400, -1, -1) for name, view in features(2, 1).items()}
    rest = {name: view[:-1] for name, view in views.items()}
    clip = clip_norm_in_float32(1.0, plan.spread, 1, 0.0)
    for step in (0, 1):
        sums = [(clip * sum_of(engine, some, step)).float().double() for some in (views, rest)]
        assert (sums[0] - sums[1]).norm().item() <= plan.sensitivity_of(step)


def test_discrete_noise_leaves_room_in_each_step():
    plan = plan_of(noise_kind="discrete")
    engine = engine_of(2, plan)
    for step in (0, 1):
        moved = sum_of(engine, features(2, 1), step).norm().item()
        assert plan.sensitivity_of(step) * (1 - 1e-4) <= moved <= plan.sensitivity_of(step)


def test_dataclasses_of_plans_survive_a_file():
    plan = plan_of()
    assert PrivacyPlan.from_dict(plan.as_dict()) == plan
    assert plan.replace(noise_multiplier=2.0).fingerprint != plan.fingerprint
