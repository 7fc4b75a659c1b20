"""What rounding adds to a record's influence on a sum of very many clipped pieces, against the room that is left for it."""

import numpy as np
import pytest
import torch

from dpfed.baselines.noisy_statistics.record_gradients import StatisticsEngine
from dpfed.bounding.bounded_sum import BoundedSum
from dpfed.bounding.clipping import add_weighted, clip_factors, clip_norm_in_float32
from dpfed.bounding.engines import ENGINES, GroupBatch, build_engine
from dpfed.building.plan import plan_of
from dpfed.config import parse_config
from dpfed.models.parameters import TrainableVector
from dpfed.privacy.method import METHODS, method_named
from dpfed.privacy.randomness import Randomness
from dpfed.runs.assembly import assemble
from dpfed.runs.resolution import resolve
from tests.baselines.noisy_statistics.released_lab import in_slots

GROUPS = 1500


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


@pytest.mark.parametrize("name", ["loop", "released"])
def test_one_piece_more_moves_a_long_sum_by_its_own_length(name):
    generator, model, clip_norm = torch.Generator().manual_seed(2), Aligned(), 0.37
    engine = by_name(name, model)
    each, count = (1, 3000) if name == "released" else (2, GROUPS)
    images = views(each * (count + 1), generator)
    sums = []
    for present in (count + 1, count):
        starts = [0, present] if name == "released" else list(range(0, each * present + 1, each))
        into = engine.zeros()
        norms = engine.add_clipped(GroupBatch({"image": images[: each * present]}, starts), clip_norm, into)
        assert (norms > clip_norm).all()
        sums.append(into.double())
    assert sums[0].norm() > 0.99 * clip_norm * count  # all aligned
    assert 0.99 * clip_norm < (sums[0] - sums[1]).norm() <= clip_norm


@pytest.mark.parametrize("owners", [1, 2, 16])
@pytest.mark.parametrize("groups", [128, 16_384])
def test_rounded_sums_of_neighbours_differ_by_the_sensitivity_at_most(groups, owners):
    """The worst that a record can do: it turns its group's gradient round in a sum of all others, which are aligned."""
    clip_norm = clip_norm_in_float32(1.0, groups / 2, owners)
    generator, dimensions = np.random.default_rng(3), 50_000
    worst = 0.0
    for _ in range(3):
        one = torch.from_numpy(generator.normal(size=dimensions))
        one *= clip_norm / one.norm()
        others = [one * (groups // owners) for _ in range(owners)]
        totals = []
        for own in (one, -one):
            shares = [others[0] - one + own, *others[1:]]
            first, *rest = (BoundedSum(share.float(), 2.0, 1) for share in shares)
            for other in rest:
                first = first + other
            totals.append(first.values.double())
        worst = max(worst, (totals[0] - totals[1]).norm().item())
    assert 2 * clip_norm * 0.99 < worst <= 2.0


def test_the_room_grows_with_groups_and_owners_and_is_small_where_they_are_few():
    def room(*numbers):
        return 1 - clip_norm_in_float32(1.0, *numbers)

    assert room(64, 1) < 2e-4 < 1e-3 < room(8192, 1) < 0.02
    assert room(64, 1) < room(64, 8) < room(128, 8)
    assert clip_norm_in_float32(float("inf"), 0.0, 3) == float("inf")
    # Each owner's sum is rounded once, and each addition of owners once more: 2 ulp of the longest sum, each.
    assert all(room(spread, owners) >= 0.99 * spread * owners * 2 * 2.0**-24 for spread in (64, 8192) for owners in (1, 8))


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
def test_the_spread_of_every_method_is_its_longest_sum_over_its_sensitivity(name):
    one = plan(name)
    assert one.spread >= PIECES[name](one) * one.bounding.clip_norm / one.sensitivity * (1 - 1e-12)


def test_a_worker_leaves_room_for_rounding(tiny):
    parts = assemble(resolve(parse_config(tiny)), Randomness.from_seed(5), owners=2)
    worker, seen = parts.worker(Randomness.from_seed(5)), []
    add = worker._engine.add_clipped

    def watched(batch, clip_norm, into):
        seen.append((clip_norm, into.dtype))
        return add(batch, clip_norm, into)

    worker._engine.add_clipped = watched
    total = worker.bounded_sum(0)
    expected = clip_norm_in_float32(parts.plan.bounding.clip_norm, parts.plan.groups / 2, 2)
    assert set(seen) == {(expected, torch.float64)} and expected < parts.plan.bounding.clip_norm
    assert total.values.dtype == torch.float32


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


def test_a_long_sum_of_clipped_gradients_is_that_of_real_numbers():
    """In one product in float32, thousands of pieces that point one way would lose some 1e-6 of the sum, whoever they are."""
    gradients = torch.rand(20_000, 64, generator=torch.Generator().manual_seed(4)) + 0.5
    factors = clip_factors(gradients.norm(dim=1, dtype=torch.float64), 1.0)
    into = torch.zeros(64, dtype=torch.float64)
    add_weighted(gradients, factors, into)
    exact = (factors[:, None] * gradients.double()).sum(0)
    assert (into - exact).norm() < 2.0**-26 * exact.norm()


def test_released_statistics_of_a_large_batch_move_by_their_sensitivity():
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


def test_pieces_of_factor_zero_need_not_be_finite():
    gradients = torch.tensor([[1.0, 2.0], [float("inf"), float("nan")], [3.0, 4.0]])
    into = torch.zeros(2, dtype=torch.float64)
    add_weighted(gradients, torch.tensor([0.5, 0.0, 1.0], dtype=torch.float64), into)
    assert into.tolist() == [3.5, 5.0]
