"""Private moments: what a record adds to both sums, against an oracle in numpy, against neighbours, and broken on purpose."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.stats import norm

from dpfed.bounding import pair_moments
from dpfed.bounding.clipping import Clip
from dpfed.bounding.engines import GroupBatch
from dpfed.bounding.pair_moments import MomentsEngine
from dpfed.models.basis import Basis, principal_basis, random_bases
from dpfed.models.moment_heads import MomentNoise
from dpfed.models.moment_layout import MomentLayout, Moments, dimensions_for
from dpfed.models.moments import MomentHeads
from dpfed.privacy.mechanism import Mechanism
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.samplers import PoissonSampler
from dpfed.runs.closed_form import layout_of

RECORDS = 40
IMAGE = 12
TEXT = 9
K = 6
SIGMA = 1.3
OPTIONS = {"dimensions": K, "views": 0, "mean_share": 0.05, "cross_share": 0.8}
WIDTHS = {2: (IMAGE, TEXT), 1: (IMAGE,)}


def plan_of(records=RECORDS, **changes):
    rest = {"records": records, "batch": records, "group_size": 1, "clip_norm": 1.0, "steps": 2, "delta": 1e-3}
    return PrivacyPlan.of(**{**rest, "noise_multiplier": SIGMA, "method_name": "moments", "options": OPTIONS, **changes})


def engine_of(towers, plan=None, aligned=False, views=2, bases=None):
    """An engine whose model is nothing but heads: its views are features anyway."""
    plan = plan or plan_of(options=OPTIONS | {"views": views})
    heads = MomentHeads(
        layout_of(plan, K, towers), MomentNoise(RECORDS, SIGMA), bases or random_bases(WIDTHS[towers], K, aligned), aligned
    )
    with torch.no_grad():  # a centre as a first step may release it
        heads.released[: towers * K] = torch.randn(towers * K, generator=torch.Generator().manual_seed(4))
    model = torch.nn.Module()
    model.moments = heads
    sides = ("image", "text")[:towers]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pair_moments, "bridges", lambda model: dict.fromkeys(sides, torch.nn.Identity()))
        return MomentsEngine(model, plan)


def public_bases(towers, seed=7):
    """As public features give them: a centre that is most of their length, and rows that are orthonormal up to rounding."""
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for side, width in zip(("image", "text"), WIDTHS[towers], strict=False):
        public = torch.randn(200, width, generator=generator) * torch.linspace(1, 0.1, width) + 1.5
        made[side] = principal_basis(public, K)
    return made


BASES = {"random": lambda towers: None, "public": public_bases}


def features(towers, records, seed=0, views=1):
    generator = torch.Generator().manual_seed(seed)
    views = max(views, 3 - towers)
    sides = {"image": torch.randn(records, views, IMAGE, generator=generator)}
    return sides | ({"text": torch.randn(records, 1, TEXT, generator=generator)} if towers == 2 else {})


def sum_of(engine, views, step, offsets=None, microbatch=None):
    """What a worker sums up, in steps, times the length of a step."""
    layout = engine._layout
    return whole_sum_of(engine, views, step, offsets, microbatch).double() * (layout.length / layout.radius)


def whole_sum_of(engine, views, step, offsets=None, microbatch=None):
    total, count = engine.zeros().long(), len(views["image"])
    offsets = list(range(count + 1)) if offsets is None else offsets
    for first in range(0, len(offsets) - 1, microbatch or count):
        starts = offsets[first : first + (microbatch or count) + 1]
        some = {name: view[starts[0] : starts[-1]] for name, view in views.items()}
        engine.add_clipped(GroupBatch(some, [start - starts[0] for start in starts], step), Clip(engine._layout.radius), total)
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
@pytest.mark.parametrize(
    ("kind", "basis"), [(kind, name) for kind in HOSTILE for name in BASES] + [(0.0, "public"), (1e-5, "public")]
)
def test_a_record_moves_the_sum_by_its_step_sensitivity_at_most(towers, step, kind, basis):
    bases = BASES[basis](towers)
    engine, plan = engine_of(towers, bases=bases), plan_of()
    views = features(towers, RECORDS)
    last = {name: view[-1:] for name, view in views.items()}
    if kind in HOSTILE:
        last = {name: HOSTILE[kind](view) for name, view in last.items()}
    else:  # so far from the centre of the basis
        last = {name: bases[name].centre * 3 + kind * view for name, view in last.items()}
    views = {name: torch.cat([view[:-1], last[name]]) for name, view in views.items()}
    rest = {name: view[:-1] for name, view in views.items()}
    for microbatch in (1, 7, RECORDS):
        moved = sum_of(engine, views, step, microbatch=microbatch) - sum_of(engine, rest, step, microbatch=5)
        assert moved.isfinite().all()
        assert moved.norm().item() <= plan.sensitivity_of(step)
        if kind == "ordinary":  # tight, so that noise for less is too little; views that differ are shorter on average
            assert towers == 1 or moved.norm().item() == pytest.approx(plan.sensitivity_of(step), rel=1e-2)


def test_the_bound_is_reached_by_equal_views_of_an_image():
    engine, plan = engine_of(1, views=4), plan_of()
    views = {"image": features(1, 1)["image"][:, :1].expand(1, 4, IMAGE)}
    for step in (0, 1):
        moved = sum_of(engine, views, step).norm().item()
        assert 0.98 * plan.sensitivity_of(step) <= moved <= plan.sensitivity_of(step)


@pytest.mark.parametrize("kind", ["gaussian", "discrete"])
@pytest.mark.parametrize("clip_norm", [0.1, 1.0, 7.0])
@pytest.mark.parametrize("towers", [1, 2])
def test_the_length_of_parts_enters_once(towers, clip_norm, kind):
    plan = plan_of(clip_norm=clip_norm, noise_kind=kind, options=OPTIONS | {"views": 3})
    engine = engine_of(towers, plan)
    equal = {name: view[:, :1].expand(-1, 3, -1) for name, view in features(towers, RECORDS).items()}
    for step in (0, 1):
        moved = sum_of(engine, equal, step) - sum_of(engine, {name: view[:-1] for name, view in equal.items()}, step)
        assert 0.9 * plan.sensitivity_of(step) <= moved.norm().item() <= plan.sensitivity_of(step)
    assert plan.noise_std / plan.sensitivity >= SIGMA * (1 - 1e-12)


@pytest.mark.parametrize("basis", BASES)
@pytest.mark.parametrize("towers", [1, 2])
def test_a_record_adds_the_same_bits_whoever_stands_beside_it(towers, basis):
    """Sums are exact, so what a record adds is what the sum loses without it: in any batch, at any place, in any order."""
    engine, views = engine_of(towers, views=3, bases=BASES[basis](towers)), features(towers, RECORDS, views=3)
    for step in (0, 1):
        alone = [whole_sum_of(engine, {name: view[n : n + 1] for name, view in views.items()}, step) for n in range(RECORDS)]
        for microbatch in (1, 3, 7, RECORDS):
            assert torch.equal(whole_sum_of(engine, views, step, microbatch=microbatch), sum(alone))
        order = torch.randperm(RECORDS)
        assert torch.equal(whole_sum_of(engine, {name: view[order] for name, view in views.items()}, step), sum(alone))


@pytest.mark.long
def test_a_sum_that_float64_would_round_is_exact():
    engine, views, many = engine_of(1, views=3), features(1, 1, views=3), 1 << 18
    for step in (0, 1):
        total = whole_sum_of(engine, {name: view.expand(many, -1, -1) for name, view in views.items()}, step)
        assert torch.equal(total, many * whole_sum_of(engine, views, step)) and (step == 0 or total.abs().max() > 2**53)


def test_a_record_close_to_the_centre_adds_a_short_vector():
    """Where its vector points is then up to rounding, so it is not brought to unit length; at the centre it adds nothing."""
    engine, plan = engine_of(2), plan_of()
    for distance, part in ((0.0, 0.0), (1e-5, 0.1), (1e-3, 1.0)):
        centres = {side: engine._heads.centre(side) for side in ("image", "text")}
        away = torch.eye(K, dtype=torch.float64)[0] * distance
        near = {side: (centre + away)[None, None] for side, centre in centres.items()}
        lengths = [engine._centred(side, unit).norm().item() for side, unit in near.items()]
        assert lengths == pytest.approx([part, part], rel=0.05, abs=1e-9), (distance, plan)


def test_a_feature_near_the_centre_of_the_basis_is_short():
    """Where its vector points is then up to rounding, so it is not brought to unit length; at the centre it is next to 0."""
    for side, basis in public_bases(2).items():
        across = basis.rows[0].double()
        centre = basis.centre.double() - basis.centre.double() @ across * across
        shifted = Basis(basis.rows, (centre / centre.norm()).float())  # as long as features are
        engine = engine_of(2, bases=public_bases(2) | {side: shifted})
        for distance, part in ((0.0, 0.0), (1e-5, 0.1), (1e-3, 1.0)):
            feature = (shifted.centre.double() + distance * across) * 7.0
            length = engine._unit(engine._maps[side], feature[None, None]).norm().item()
            assert length <= 1 and length == pytest.approx(part, rel=0.05, abs=2e-3), (side, distance)


def test_an_engine_refuses_heads_of_another_plan():
    engine, plan = engine_of(2), plan_of(options=OPTIONS | {"mean_share": 0.1})
    with pytest.raises(ValueError, match="fractions"):
        MomentsEngine.__init__(engine, torch.nn.ModuleDict({"moments": engine._heads}), plan)
    with pytest.raises(ValueError, match="grid"):
        engine.add_clipped(GroupBatch(features(2, 1), [0, 1]), Clip(2.0**24), engine.zeros().long())


@pytest.mark.parametrize("world_size", [1, 64])
def test_parts_keep_their_length_among_ten_million(world_size):
    """Exact for any N and any number of owners: no number of the plan but the grid depends on them."""
    plan = plan_of(records=10**7)
    engine, layout = engine_of(2, plan), layout_of(plan, K, 2)
    assert layout.radius * 10**7 < 2.0**61
    views = {name: view.expand(64, -1, -1) for name, view in features(2, 1).items()}
    for step in (0, 1):
        each = whole_sum_of(engine, views, step)
        others = [each * (10**7 // 64 // world_size)] * world_size  # so long is the sum of all others that point one way
        with_, without = sum(others) + each // 64, sum(others)
        moved = (with_ - without).double().norm().item() * plan.grid_of().unit
        assert 0.98 * plan.sensitivity_of(step) <= moved <= plan.sensitivity_of(step)


@pytest.mark.slow
def test_ten_million_records_of_64_owners_have_one_exact_sum():
    """All of them, in two orders and divisions: the sums have the same bits, and a record moves them by its own part alone."""
    records, world_size = 10**7, 64
    plan = plan_of(records=records)
    engine = engine_of(2, plan)
    each = records // world_size
    for step in (0, 1):
        of_owners, in_pieces, parts = [], torch.zeros(engine._layout.numel, dtype=torch.int64), []
        for rank in range(world_size):
            views = features(2, each, seed=rank)
            of_owners.append(whole_sum_of(engine, views, step))
            for first in range(0, each, 40_000):  # as one owner with microbatches, backwards
                some = {name: view[first : first + 40_000].flip(0) for name, view in views.items()}
                in_pieces += whole_sum_of(engine, some, step)
            parts.append(whole_sum_of(engine, {name: view[:1] for name, view in views.items()}, step))
        total = sum(of_owners)
        assert torch.equal(total, in_pieces)
        without = {name: view[1:] for name, view in features(2, each, seed=5).items()}
        moved = total - (total - of_owners[5] + whole_sum_of(engine, without, step))
        assert torch.equal(moved, parts[5])
        assert moved.double().norm().item() * plan.grid_of().unit <= plan.sensitivity_of(step)


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


def oracle(views, centre, bases):
    """The moments of records, written down record by record."""

    def unit(vectors):
        return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)

    sides = []
    for side, basis in bases.items():
        origin = 0 if basis.centre is None else basis.centre.double().numpy()
        sides.append(unit((unit(views[side].double().numpy()) - origin) @ basis.rows.double().numpy().T))
    means = [np.mean([vectors.mean(0) for vectors in side], 0) for side in sides]
    moved = [unit(side - c.double().numpy()) for side, c in zip(sides, centre, strict=True)]
    autos = [np.mean([np.mean([np.outer(u, u) for u in vectors], 0) for vectors in side], 0) for side in moved]
    if len(moved) == 2:
        products = [[np.outer(u, v) for u in a for v in b] for a, b in zip(*moved, strict=True)]
    else:
        products = [[np.outer(u, v) for i, u in enumerate(a) for j, v in enumerate(a) if i != j] for a in moved[0]]
    return np.array(means), np.mean([np.mean(pairs, 0) for pairs in products], 0), np.array(autos)


@pytest.mark.parametrize("basis", BASES)
@pytest.mark.parametrize(("towers", "views"), [(1, 2), (1, 5), (2, 1), (2, 3)])
def test_the_sums_are_the_records_moments(towers, views, basis):
    engine = engine_of(towers, views=max(2, views), bases=BASES[basis](towers))
    records, heads = features(towers, RECORDS, views=views), engine._heads
    bases = {side: heads.basis(side) for side in records}
    centre = [heads.centre(side) for side in records]
    total = (sum_of(engine, records, 0) + sum_of(engine, records, 1)) / RECORDS
    moments, expected = engine._layout.decoded(total), oracle(records, centre, bases)
    for name, value in zip(("means", "cross", "autos"), expected, strict=True):
        np.testing.assert_allclose(getattr(moments, name).numpy(), value, rtol=1e-4, atol=1e-5)


def test_a_units_records_count_as_one():
    engine = engine_of(2)
    records = features(2, 3)
    for step in (0, 1):
        three = 3 * sum_of(engine, records, step, offsets=[0, 3])
        torch.testing.assert_close(three, sum_of(engine, records, step), rtol=1e-4, atol=1e-5)


def test_triangles_keep_lengths_and_come_back():
    layout = MomentLayout(K, 1, 0.05, 0.8, 2.0**46)
    matrix = torch.randn(K, K, dtype=torch.float64)
    matrix = matrix + matrix.T
    flat = layout.encoded(1, Moments(torch.zeros(0), matrix, matrix[None]))
    cross, auto = flat.chunk(2)
    for part, share in ((cross, 0.8), (auto, 0.15)):
        assert 0.98 < part.norm().item() / (math.sqrt(share) * matrix.norm().item()) <= 1
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


def longer(engine, monkeypatch):
    """Parts of the vectors as they are, without unit length."""
    monkeypatch.setattr(
        pair_moments, "_of_length_one", lambda whole, least: whole / whole.square().sum(-1, keepdim=True).sqrt() * 2
    )


def uncentred(engine, monkeypatch):
    moved = MomentsEngine._centred
    monkeypatch.setattr(MomentsEngine, "_centred", lambda self, side, unit: 1.5 * moved(self, side, unit))


def without_shares(engine, monkeypatch):
    weights = tuple(torch.full_like(one, int(max(w.max() for w in engine._layout.weights))) for one in engine._layout.weights)
    monkeypatch.setitem(engine._layout.__dict__, "weights", weights)


def autos_twice(engine, monkeypatch):
    auto = pair_moments._Vectors.auto
    monkeypatch.setattr(pair_moments._Vectors, "auto", lambda self: 2 * auto(self))


def length_twice(engine, monkeypatch):
    """C enters a second time."""
    monkeypatch.setattr(pair_moments, "_SHORTENED", 2.0)


@pytest.mark.parametrize("basis", BASES)
@pytest.mark.parametrize("broken", [longer, uncentred, without_shares, autos_twice, length_twice])
def test_neighbours_show_a_broken_bound(broken, basis, monkeypatch):
    engine, plan = engine_of(2, bases=BASES[basis](2)), plan_of()
    broken(engine, monkeypatch)
    views = features(2, 1)
    assert any(sum_of(engine, views, step).norm() > plan.sensitivity_of(step) * 1.01 for step in (0, 1))


def test_the_number_of_dimensions_follows_from_public_numbers():
    assert dimensions_for(3000, 3.4, (1280, 384)) == 240
    assert dimensions_for(100, 30.0, (1280, 384)) == 100
    assert dimensions_for(300, 30.0, (1280, 384)) == 128
    assert dimensions_for(10**6, 0.5, (1280, 384)) == 384
    assert dimensions_for(10**6, 0.0, (1280, 64)) == 64


def test_a_public_basis_needs_fewer_dimensions():
    numbers = [
        dimensions_for(records, sigma, (256, 256), public=True) for records, sigma in ((300, 3.4), (600, 1.3), (3000, 3.4))
    ]
    assert numbers == [32, 96, 192] and dimensions_for(10**6, 0.5, (256, 256), public=True) == 256
    assert dimensions_for(3000, 3.4, (99, 256), public=True) == 99  # a basis of a hundred public records


def test_dataclasses_of_plans_survive_a_file():
    plan = plan_of()
    assert PrivacyPlan.from_dict(plan.as_dict()) == plan
    assert plan.replace(noise_multiplier=2.0).fingerprint != plan.fingerprint


def test_features_that_are_all_zero_are_zero_in_engine_and_heads():
    bases = public_bases(2)
    engine = engine_of(2, bases=bases)
    for side, basis in bases.items():
        drawn = torch.randn(1, 3, basis.rows.shape[1], generator=torch.Generator().manual_seed(0))
        drawn[:, 1] = 0
        expected = engine._unit(engine._maps[side], drawn)
        assert basis.centre.any() and not expected[:, 1].any() and expected[:, 0].any()
        assert torch.allclose(basis.project(drawn).double(), expected, atol=1e-5)
