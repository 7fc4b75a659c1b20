"""Sums of very many clipped pieces are exact: neighbours differ by what one record adds, whoever adds them up."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfed.baselines.noisy_statistics.record_gradients import StatisticsEngine
from dpfed.bounding import foreach
from dpfed.bounding.bounded_sum import BoundedSum
from dpfed.bounding.clipping import Clip, clip_factors
from dpfed.bounding.engines import ENGINES, GroupBatch, build_engine
from dpfed.building.plan import plan_of
from dpfed.config import parse_config
from dpfed.models.parameters import TrainableVector
from dpfed.privacy.method import METHODS, method_named
from dpfed.privacy.randomness import Randomness
from dpfed.runs.build import build
from tests.baselines.noisy_statistics.released_lab import in_slots

GROUPS, R = 1500, 2.0**24


class Aligned(torch.nn.Module):
    """Every group's gradient points the same way: the longest sums, which round most."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(64))
        self.register_buffer("temperature", torch.tensor(1.0))

    def forward(self, views):
        return {"image": torch.nn.functional.normalize(views["image"].flatten(2)[..., :2] + self.weight.sum(), dim=2)}


def aligned_loss(embeddings, present, temperature, bias):
    """Linear in the embeddings, so that clipping decides the lengths."""
    return 1e3 * (embeddings["image"].sum((1, 2)) * present).sum()


def views(count, generator):
    """Records whose gradients point one way, by lengths of their own."""
    return torch.rand(count, 2, 3, 1, 1, generator=generator) + 0.5


def by_name(name, model):
    if name == "released":
        engine = StatisticsEngine(model, "fp32", in_slots(slots=4))
        engine._statistics = PointedOneWay()
        return engine
    return build_engine(name, model, "fp32", aligned_loss, 2)


class PointedOneWay:
    def slopes(self, embeddings, temperature, step):
        from dpfed.baselines.noisy_statistics.record_gradients import Cotangents

        return Cotangents(1e3 * torch.ones_like(embeddings), torch.zeros(len(embeddings)))


@pytest.mark.long
@pytest.mark.parametrize("name", ["loop", "released"])
def test_one_piece_more_moves_a_long_sum_by_its_own_length(name):
    generator, model, clip_norm = torch.Generator().manual_seed(2), Aligned(), 0.37
    engine = by_name(name, model)
    each, count = (1, 3000) if name == "released" else (2, GROUPS)
    images = views(each * (count + 1), generator)
    sums = []
    for present in (count + 1, count):
        offsets = [0, present] if name == "released" else list(range(0, each * present + 1, each))
        into = engine.zeros().long()
        norms = engine.add_clipped(GroupBatch({"image": images[: each * present]}, offsets), Clip(R, R / clip_norm), into)
        assert (norms > clip_norm).all()
        sums.append(into.double() * (clip_norm / R))
    assert sums[0].norm() > 0.99 * clip_norm * count  # all aligned
    assert 0.99 * clip_norm < (sums[0] - sums[1]).norm() <= clip_norm


@pytest.mark.parametrize("world_size", [1, 3, 64])
@pytest.mark.parametrize("groups", [128, 16_384])
def test_neighbours_exact_sums_differ_within_the_sensitivity(groups, world_size):
    """The worst that a record can do: it turns its group's gradient round in a sum of all others, which are aligned."""
    generator, dimensions = torch.Generator().manual_seed(3), 50_000
    one = torch.randn(dimensions, generator=generator)
    factor = clip_factors(one.norm(dtype=torch.float64)[None], Clip(R, R)).item()
    totals = []
    for gradient in (one, -one):
        shares = [torch.zeros(dimensions, dtype=torch.int64) for _ in range(world_size)]
        for number in range(groups - 1 if groups < 1000 else 0):
            foreach.add_([shares[number % world_size]], [one], factor)
        if groups > 1000:  # the same, at once
            foreach.add_([shares[-1]], [one], factor)
            shares[-1] *= groups - 1
        foreach.add_([shares[0]], [gradient], factor)
        first, *rest = (BoundedSum(share, 2.0, 1, unit=1 / R) for share in shares)
        for other in rest:
            first = first + other
        totals.append(first.numbers())
    assert 2 * 0.99 < (totals[0] - totals[1]).norm().item() <= 2.0


@settings(max_examples=200, deadline=None)
@given(
    values=st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=30),
    factor=st.floats(1e-3, 1e4),
    start=st.integers(-(2**40), 2**40),
)
def test_whole_numbers_are_truncated_and_never_longer(values, factor, start):
    term, factor = torch.tensor(values), torch.tensor(factor, dtype=torch.float32).item()
    total = torch.full((len(values),), start)
    foreach.add_([total], [term], factor)
    added = (total - start).double()
    assert torch.equal(added, (term * factor).trunc().double())
    assert added.norm() <= (term * factor).double().norm()


@pytest.mark.parametrize("length", [1, 1000, 20_000, 300_001])
def test_a_norm_errs_by_less_than_its_slack_and_sees_no_place(length):
    generator = torch.Generator().manual_seed(4)
    long = torch.randn(length + 16, generator=generator) * 1e3
    exact = torch.linalg.vector_norm(long[:length].double()).item()
    norms = [foreach.norms((long[:length].clone(),), torch.float64).item()]
    for offset in (1, 3, 16):
        moved = torch.cat([torch.zeros(offset), long[:length]])[offset:]
        norms.append(foreach.norms((moved,), torch.float64).item())
    assert len(set(norms)) == 1 and norms[0] == pytest.approx(exact, rel=3.1e-5)
    ordered = foreach.norms((torch.arange(1.0, length + 1).flip(0),), torch.float64).item()
    assert ordered == pytest.approx((length * (length + 1) * (2 * length + 1) / 6) ** 0.5, rel=3.1e-5)


def plan(name):
    tree = {
        "bounding": {"method": name, "max_batch": 600 if method_named(name).capped else None},
        "privacy": ({} if name == "moments" else {"batch": 512, "steps": 2})
        | ({} if name == "none" else {"noise_multiplier": 1.0}),
    }
    tree |= {"public": {"source": "shapes"}} if name == "public" else {}
    tree["bounding"] = {key: value for key, value in tree["bounding"].items() if value is not None}
    return plan_of(2000, parse_config(tree))


# The longest sum of each method: so many pieces of length C.
PIECES = {
    "group": lambda p: p.groups,
    "public": lambda p: 2 * p.sampling.batch,
    "batch": lambda p: 1,
    "sample": lambda p: p.bounding.max_batch,
    "logit": lambda p: p.bounding.max_batch * p.bounding.options["directions"] * 2 / p.bounding.options["temperature"],
    "released": lambda p: 2 * p.sampling.batch,
    "dpcl": lambda p: 2 * p.sampling.batch,
}


@pytest.mark.parametrize(
    "name", [name for name in METHODS if method_named(name).private and not method_named(name).closed_form]
)
def test_every_spread_is_the_longest_sum_over_sensitivity(name):
    one = plan(name)
    assert one.spread >= PIECES[name](one) * one.bounding.clip_norm / one.sensitivity * (1 - 1e-12)


def test_a_worker_sums_whole_numbers_whose_length_is_the_plans(tiny):
    parts = build(parse_config(tiny), Randomness.from_seed(5), world_size=2)
    worker, seen = parts.learner.worker(Randomness.from_seed(5)), []
    add = worker.engine.add_clipped

    def watched(batch, clip_norm, into):
        seen.append((clip_norm, into.dtype))
        return add(batch, clip_norm, into)

    worker.engine.add_clipped = watched
    total, grid = worker.bounded_sum(0), parts.plan.grid_of()
    assert set(seen) == {(Clip(R, R / parts.plan.bounding.clip_norm), torch.int64)}
    assert grid.radius * total.unit == pytest.approx(parts.plan.bounding.clip_norm, rel=1e-15)
    assert total.values.dtype == torch.int64 and total.unit == grid.unit


@pytest.mark.parametrize("name", list(ENGINES))
def test_an_engine_adds_up_in_float64(name):
    """A small gradient does not vanish beside a large sum."""
    model = Aligned()
    into = TrainableVector(model).zeros()
    assert into.dtype == torch.float64
    if name == "layerwise":
        return  # has no rule for this model
    into += 1e9
    build_engine(name, model, "fp32", aligned_loss, 2).add_clipped(GroupBatch({"image": views(2, None)}, [0, 2]), 1.0, into)
    assert (into - 1e9).norm() == pytest.approx(1.0, rel=1e-4)


@pytest.mark.long
def test_large_batches_statistics_move_by_their_sensitivity():
    """Embeddings that all point one way, and one more: the sums are long, and none of their digits is lost before the noise."""
    from dpfed.baselines.noisy_statistics.released_embeddings import ReleasedMoments
    from tests.baselines.noisy_statistics.released_lab import silent

    generator = torch.Generator().manual_seed(5)
    z = torch.nn.functional.normalize(torch.rand(5_001, 2, 16, generator=generator) + 0.2, dim=2)
    axis = torch.eye(16)[0].expand(1, 2, 16)  # the moments' worst case
    for kind, statistics in (("slots", in_slots(slots=2)), ("moments", ReleasedMoments(100, silent()))):
        noisy = []
        statistics._noise.add_ = lambda clean, step, noisy=noisy: noisy.append(clean.clone()) or clean
        for batch in (torch.cat([z, axis]), z):
            slot = torch.zeros(len(batch), dtype=torch.long)
            statistics.release(*((batch, slot, 0) if kind == "slots" else (batch, 0)))
        assert {one.dtype for one in noisy} == {torch.float64}
        assert 0.999 * statistics.SENSITIVITY < (noisy[0] - noisy[1]).norm().item() <= statistics.SENSITIVITY
