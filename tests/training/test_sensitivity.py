"""The bound of the whole data owner: sampling, grouping, views, models and clipping, on neighbouring record sets."""

import numpy as np
import pytest
import torch

from dpfed.bounding.engines import LoopEngine
from dpfed.config import parse_config
from dpfed.data.sampling import StepDraw
from dpfed.data.store.record import RecordInput, record_key
from dpfed.data.store.writing import StoreWriter
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.randomness import Randomness
from dpfed.runs.build import build
from dpfed.training import worker as worker_room
from dpfed.training.worker import Worker, indices_of_rank
from tests.training.records_of_worker import keep_only


def sum_of(parts, kept, step: int = 0) -> torch.Tensor:
    """The sum of some training records."""
    one = parts.learner.worker(Randomness.from_seed(5))
    keep_only(one, kept, parts.store.keys)
    return one.bounded_sum(step).numbers()


def drawn_of(parts, randomness: Randomness) -> np.ndarray:
    """The records of the first step, wherever they are."""
    indices, keys = parts.store.split("train"), parts.store.keys
    return worker_room.draw_step(parts.plan, randomness, 0, indices, keys[indices], parts.plan.groups).indices


def sums(parts, gone: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums with all records and without one."""
    indices = parts.store.split("train")
    return sum_of(parts, indices, step), sum_of(parts, np.delete(indices, gone), step)


def stored(shapes, indices, path):
    """A configuration's path of a store that holds some of the training records, in their order."""
    with StoreWriter(path, name="some", kind="image-text", size=shapes.size) as writer:
        images = shapes.images(indices, shapes.size).permute(0, 2, 3, 1).contiguous().numpy()
        for id_, image, captions in zip(shapes.ids(indices), images, shapes.captions(indices), strict=True):
            writer.add(RecordInput(id_, image, tuple(captions)))
    return str(path)


@pytest.mark.parametrize("kind", ["tiny", "tiny_public"])
def test_stores_one_record_apart_give_sums_within_the_bound(kind, request, shapes, tmp_path):
    """All of it, from the files on: no draw, view or companion of another record may follow from its place in the store."""
    config, randomness, indices = request.getfixturevalue(kind), Randomness.from_seed(5), shapes.split("train")[:200]
    config["privacy"] = {"noise_multiplier": 1.0, "accountant": "rdp", "batch": 60, "steps": 6}
    config["bounding"] |= {"clip_norm": 0.01}
    config["evaluation"] = {"split": "none"}

    def parts_of(kept):
        config["data"]["path"] = stored(shapes, kept, tmp_path / str(len(kept)))
        return build(parse_config(config), randomness)

    whole = parts_of(indices)
    gone = drawn_of(whole, randomness).min()  # an early one: all others move up
    fewer = parts_of(np.delete(indices, gone)).with_learner(plan=whole.plan, model=whole.model)
    sums = [parts.learner.worker(randomness).bounded_sum(0).numbers() for parts in (whole, fewer)]
    assert 0 < (sums[0] - sums[1]).norm() <= whole.plan.sensitivity * (1 + 1e-6)


def parts_with(tiny, **bounding):
    tiny["bounding"] |= bounding
    return build(parse_config(tiny), Randomness.from_seed(5))


SETTINGS = ({}, {"max_group_size": 3}, {"group_size": 20}, {"clip_norm": 0.01}, {"microbatch": 7})


@pytest.mark.parametrize(
    ("engine", "bounding"), [*(("layerwise", one) for one in SETTINGS), ("loop", {}), ("loop", {"microbatch": 7})]
)
def test_random_neighbours_stay_within_2c(tiny, engine, bounding):
    parts = parts_with(tiny, engine=engine, **bounding)
    indices = parts.store.split("train")
    drawn = drawn_of(parts, Randomness.from_seed(5))
    whole = sum_of(parts, indices)
    moved = [(whole - sum_of(parts, indices[indices != gone])).norm().item() for gone in drawn[:4]]
    assert max(moved) <= parts.plan.sensitivity * (1 + 1e-6)
    assert max(moved) > 0


def test_a_record_that_was_not_drawn_changes_nothing(tiny):
    parts = parts_with(tiny)
    indices, keys = parts.store.split("train"), parts.store.keys
    drawn = set(
        worker_room.draw_step(parts.plan, Randomness.from_seed(5), 0, indices, keys[indices], parts.plan.groups).indices
    )
    with_all, without = sums(parts, next(i for i, row in enumerate(indices) if row not in drawn), 0)
    assert torch.equal(with_all, without)


class Adversary(torch.nn.Module):
    """A model whose group gradient has a huge norm and turns round when one of some particular records is in the group."""

    def __init__(self, marked: torch.Tensor) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(2))
        self.register_buffer("marked", marked)
        self.register_buffer("temperature", torch.tensor(1.0))

    def forward(self, views):
        images = views["image"]
        sign = torch.where(torch.cdist(images[:, 0].flatten(1), self.marked, p=1).min() < 1e-3, -1.0, 1.0)
        index = torch.arange(len(images), device=images.device) % 2 == 0
        first = torch.where(index[:, None], torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]))
        steep = 1e4 * sign * self.weight[0]
        return {"image": torch.stack([first, first + steep * first], 1), "text": torch.stack([first + steep * first], 1)}


def pictures(parts, indices) -> torch.Tensor:
    return parts.views.images.plain(parts.views.read(parts.store, np.array(indices))).flatten(1)


def test_an_adversarial_neighbour_reaches_2c_and_no_more(tiny):
    tiny["views"] = {}  # the adversary knows its record by its pixels
    parts = parts_with(tiny, clip_norm=1.0)
    indices, keys = parts.store.split("train"), parts.store.keys[parts.store.split("train")]
    draw = worker_room.draw_step(parts.plan, Randomness.from_seed(5), 0, indices, keys, parts.plan.groups)
    target = next(draw.members(g) for g in range(len(draw)) if len(draw.members(g)) >= 3)[0]
    hostile = parts.with_learner(model=Adversary(pictures(parts, [target])))
    with_all, without = sums(hostile, int(np.flatnonzero(indices == target)[0]), 0)
    moved = (with_all - without).norm().item()
    assert moved <= parts.plan.sensitivity * (1 + 1e-6)
    bound = 2 * parts.plan.bounding.clip_norm  # it is tight: noise for C alone is too little
    assert moved == pytest.approx(bound, rel=1e-3)


def test_views_and_captions_of_the_others_stay_as_they_are(tiny):
    parts = parts_with(tiny)
    maker, randomness = parts.learner.worker(Randomness.from_seed(5)).views, Randomness.from_seed(5)
    indices = parts.store.split("train")[:20]
    every = maker(indices, randomness, 3, torch.device("cpu"))
    fewer = maker(np.delete(indices, 4), randomness, 3, torch.device("cpu"))
    for name, views in every.items():
        assert torch.equal(torch.cat([views[:4], views[5:]]), fewer[name])
    assert not torch.equal(every["image"], maker(indices, randomness, 4, torch.device("cpu"))["image"])


def test_empty_steps_give_zeros_of_the_right_size(tiny):
    parts = parts_with(tiny)
    one: Worker = parts.learner.worker(Randomness.from_seed(0))
    keep_only(one, np.zeros(0, int), parts.store.keys)
    result = one.bounded_sum(0)
    assert not result.values.any() and result.groups == parts.plan.groups and result.sensitivity == parts.plan.sensitivity


@pytest.mark.parametrize("world_size", [2, 3])
def test_owners_share_records_and_groups_without_overlap(tiny, world_size):
    parts = parts_with(tiny)
    everybody = [parts.with_learner(rank=k, world_size=world_size) for k in range(world_size)]
    workers = [one.learner.worker(Randomness.from_seed(5)) for one in everybody]
    assert all(np.array_equal(np.asarray(one.learner.partition.indices), parts.store.split("train")) for one in everybody)
    total = workers[0].bounded_sum(0)
    for one in workers[1:]:
        total = total + one.bounded_sum(0)
    assert total.groups == parts.plan.groups and total.sensitivity == parts.plan.sensitivity
    drawn = [one.draw(0).indices for one in workers]
    alone = parts.learner.worker(Randomness.from_seed(5))
    assert sorted(np.concatenate(drawn)) == sorted(drawn_of(parts, Randomness.from_seed(5)))
    assert total.values.any() and torch.equal(total.values, alone.bounded_sum(0).values)


def test_neighbours_stay_within_2c_though_groups_move_to_other_workers(tiny):
    parts, secret, moved_groups = parts_with(tiny, group_size=4), Randomness.from_seed(5), 0
    indices, keys = parts.store.split("train"), parts.store.keys

    def shares(kept):
        draws, total = [], None
        for rank in range(3):
            worker = parts.with_learner(rank=rank, world_size=3).learner.worker(secret)
            keep_only(worker, kept, keys)
            part = worker.bounded_sum(0)
            total = part if total is None else total + part
            draws.append({frozenset(draw.members(g).tolist()) for draw in [worker.draw(0)] for g in range(len(draw))})
        return total.numbers(), draws

    whole, before = shares(indices)
    for gone in drawn_of(parts, secret)[:4]:
        fewer, after = shares(indices[indices != gone])
        moved_groups += sum(len(one - set().union(*before[:rank], *before[rank + 1 :]) ^ one) for rank, one in enumerate(after))
        assert 0 < (whole - fewer).norm() <= parts.plan.sensitivity * (1 + 1e-6)
    assert moved_groups  # or it would be the same test as with one worker


def test_several_workers_refuse_an_engine_that_rounds_their_sums(tiny, monkeypatch):
    """With another record, groups move to other workers, so several roundings would change."""
    parts = parts_with(tiny)
    monkeypatch.setattr(LoopEngine, "adds_whole_parts", False)
    parts.learner.worker(Randomness.from_seed(5))
    with pytest.raises(ValueError, match="LoopEngine rounds a worker's sum"):
        parts.with_learner(rank=1, world_size=3).learner.worker(Randomness.from_seed(5))


def test_the_microbatch_does_not_change_the_sum(tiny):
    results = []
    for microbatch in (1, 16, 4096):
        parts = parts_with(tiny, microbatch=microbatch)
        results.append(parts.learner.worker(Randomness.from_seed(5)).bounded_sum(0).values)
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


def test_shuffled_chunks_move_the_real_sum_beyond_2c(tiny, monkeypatch):
    """The mechanism broken on purpose: the same worker with the paper's grouping instead of independent draws."""

    def chunked(plan, randomness, step, indices, keys, groups, *_):
        drawn = np.sort(worker_room_draw(plan, randomness, step, indices, keys, groups).indices)
        offsets = np.arange(0, len(drawn) + plan.bounding.group_size, plan.bounding.group_size)
        return StepDraw(drawn, np.minimum(offsets, len(drawn)))

    worker_room_draw = worker_room.draw_step
    monkeypatch.setattr(worker_room, "draw_step", chunked)
    parts = parts_with(tiny, clip_norm=1e-3)
    indices = parts.store.split("train")
    moved = []
    for step in range(4):
        draw = chunked(parts.plan, Randomness.from_seed(5), step, indices, parts.store.keys[indices], parts.plan.groups)
        # The first: all chunks behind it change.
        with_all, without = sums(parts, int(np.flatnonzero(indices == draw.indices[0])[0]), step)
        moved.append((with_all - without).norm().item())
    assert max(moved) > parts.plan.sensitivity * 1.02


def sums_of_units(parts, per_unit: int) -> tuple[torch.Tensor, torch.Tensor, PrivacyPlan]:
    """Sums of an adversarial model with all of 120 units of five records each, and without one unit that was drawn."""
    indices, units = parts.store.split("train"), record_units(parts)
    plan = parts.plan.replace(records=120, unit="user", per_unit=per_unit)
    draw = worker_room.draw_step(
        plan, Randomness.from_seed(5), 0, indices, parts.store.keys[indices], plan.groups, units=units[indices]
    )
    group = next(draw.members(g) for g in range(len(draw)) if len(np.unique(units[draw.members(g)])) >= 3)
    gone = units == units[group[0]]
    model = Adversary(pictures(parts, np.flatnonzero(gone)))
    template = parts.with_learner(model=model).learner.worker(Randomness.from_seed(5))
    results = []
    for kept in (indices, indices[~gone[indices]]):
        one = Worker(
            plan=plan,
            model=model,
            engine=template.engine,
            views=template.views,
            indices=kept,
            keys=parts.store.keys[kept],
            randomness=Randomness.from_seed(5),
            microbatch=64,
            units=units[kept],
        )
        results.append(one.bounded_sum(0).numbers())
    return *results, plan


def record_units(parts) -> np.ndarray:
    """Units of five records that lie far apart in the store."""
    return np.array([record_key(f"person {row % 120}") for row in range(len(parts.store))], np.uint64)


@pytest.mark.parametrize("per_unit", [1, 3, 5])
def test_an_adversarial_unit_of_many_reaches_2c_and_no_more(tiny, per_unit):
    tiny["views"] = {}
    with_all, without, plan = sums_of_units(parts_with(tiny, clip_norm=1.0), per_unit)
    moved = (with_all - without).norm().item()
    assert moved <= plan.sensitivity * (1 + 1e-6)
    assert moved == pytest.approx(2 * plan.bounding.clip_norm, rel=1e-3)


def test_units_drawn_by_record_keys_move_the_sum_beyond_2c(tiny, monkeypatch):
    """The mechanism broken on purpose: every record of a unit is drawn, and chooses its group, for itself."""
    by_record = worker_room.draw_step

    def draw_step(plan, randomness, step, indices, keys, groups, units=None, *_):
        return by_record(plan, randomness, step, indices, keys, groups)

    monkeypatch.setattr(worker_room, "draw_step", draw_step)
    tiny["views"] = {}
    with_all, without, plan = sums_of_units(parts_with(tiny, clip_norm=1.0), 5)
    assert (with_all - without).norm().item() > plan.sensitivity * 1.02


def test_a_worker_needs_units_just_where_the_plan_protects_them(tiny):
    parts = parts_with(tiny)
    one = parts.learner.worker(Randomness.from_seed(0))
    rest = dict(model=parts.model, engine=one.engine, views=one.views, indices=np.arange(2), keys=one._keys[:2], microbatch=8)
    with pytest.raises(ValueError, match="not given"):
        Worker(parts.plan.replace(unit="user"), randomness=Randomness.from_seed(0), **rest)
    with pytest.raises(ValueError, match="were given"):
        Worker(parts.plan, randomness=Randomness.from_seed(0), units=one._keys, **rest)


@pytest.mark.parametrize("world_size", [2, 3])
def test_a_unit_has_one_owner(tiny, world_size):
    parts = parts_with(tiny)
    indices, units = parts.store.split("train"), record_units(parts)
    partitions = [indices_of_rank(indices, units, rank, world_size) for rank in range(world_size)]
    assert sorted(np.concatenate(partitions)) == sorted(indices) and all(map(len, partitions))
    assert sum(len(np.unique(units[partition])) for partition in partitions) == 120
