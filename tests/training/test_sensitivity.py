"""The bound of the whole data owner: sampling, grouping, views, models and clipping, on neighbouring record sets."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from dpfed.config import parse_config
from dpfed.data.sampling import StepDraw
from dpfed.randomness import Randomness
from dpfed.training import worker as worker_room
from dpfed.training.session import assemble
from dpfed.training.worker import Worker


def sums(parts, gone: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums with all records and without one."""
    rows = parts.store.split("train")
    results = []
    for kept in (rows, np.delete(rows, gone)):
        one = parts.worker(Randomness.from_seed(5))
        one._rows, one._keys = kept, parts.store.keys[kept]
        results.append(one.bounded_sum(step).values.double())
    return results[0], results[1]


def parts_with(tiny, **bounding):
    tiny["bounding"] |= bounding
    return assemble(parse_config(tiny), Randomness.from_seed(5))


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize("bounding", [{}, {"max_group_size": 3}, {"group_size": 20}, {"clip_norm": 0.01}, {"microbatch": 7}])
def test_random_neighbours_stay_within_2c(tiny, engine, bounding):
    parts = parts_with(tiny, engine=engine, **bounding)
    rows, keys = parts.store.split("train"), parts.store.keys
    drawn = worker_room.draw_step(parts.plan, Randomness.from_seed(5), 0, rows, keys[rows], parts.plan.groups).rows
    moved = []
    for gone in drawn[:6]:
        with_all, without = sums(parts, int(np.flatnonzero(rows == gone)[0]), 0)
        moved.append((with_all - without).norm().item())
    assert max(moved) <= parts.plan.sensitivity * (1 + 1e-6)
    assert max(moved) > 0


def test_a_record_that_was_not_drawn_changes_nothing(tiny):
    parts = parts_with(tiny)
    rows, keys = parts.store.split("train"), parts.store.keys
    drawn = set(worker_room.draw_step(parts.plan, Randomness.from_seed(5), 0, rows, keys[rows], parts.plan.groups).rows)
    idle = next(i for i, row in enumerate(rows) if row not in drawn)
    with_all, without = sums(parts, idle, 0)
    assert torch.equal(with_all, without)


class Adversary(torch.nn.Module):
    """A model whose group gradient has a huge norm and turns round when one particular record is in the group."""

    def __init__(self, marked: torch.Tensor) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(2))
        self.register_buffer("marked", marked)
        self.register_buffer("temperature", torch.tensor(1.0))

    def forward(self, views):
        images = views["image"]
        here = (images[:, 0].flatten(1) - self.marked).abs().sum(1).min() < 1e-3
        sign = torch.where(here, -1.0, 1.0)
        index = torch.arange(len(images), device=images.device) % 2 == 0
        first = torch.where(index[:, None], torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]))
        steep = 1e4 * sign * self.weight[0]
        return {"image": torch.stack([first, first + steep * first], 1), "text": torch.stack([first + steep * first], 1)}


def test_an_adversarial_neighbour_reaches_2c_and_no_more(tiny):
    tiny["views"] = {}  # the adversary knows its record by its pixels
    parts = parts_with(tiny, clip_norm=1.0)
    rows, keys = parts.store.split("train"), parts.store.keys[parts.store.split("train")]
    draw = worker_room.draw_step(parts.plan, Randomness.from_seed(5), 0, rows, keys, parts.plan.groups)
    target = next(draw.members(g) for g in range(len(draw)) if len(draw.members(g)) >= 3)[0]
    picture = parts.views.plain(parts.store.images(np.array([target]), parts.config.data.size)).flatten()
    hostile = dataclasses.replace(parts, model=Adversary(picture))
    with_all, without = sums(hostile, int(np.flatnonzero(rows == target)[0]), 0)
    moved = (with_all - without).norm().item()
    assert moved <= parts.plan.sensitivity * (1 + 1e-6)
    assert moved == pytest.approx(2 * parts.plan.clip_norm, rel=1e-3)  # the bound is tight: noise for C alone is too little


def test_views_and_captions_of_the_others_stay_as_they_are(tiny):
    parts = parts_with(tiny)
    maker, randomness = parts.worker(Randomness.from_seed(5))._views, Randomness.from_seed(5)
    rows = parts.store.split("train")[:20]
    every = maker(rows, randomness, 3, torch.device("cpu"))
    fewer = maker(np.delete(rows, 4), randomness, 3, torch.device("cpu"))
    for name, views in every.items():
        assert torch.equal(torch.cat([views[:4], views[5:]]), fewer[name])
    assert not torch.equal(every["image"], maker(rows, randomness, 4, torch.device("cpu"))["image"])


def test_empty_steps_give_zeros_of_the_right_size(tiny):
    parts = parts_with(tiny)
    one: Worker = parts.worker(Randomness.from_seed(0))
    one._rows, one._keys = one._rows[:0], one._keys[:0]
    result = one.bounded_sum(0)
    assert not result.values.any() and result.groups == parts.plan.groups and result.sensitivity == parts.plan.sensitivity


@pytest.mark.parametrize("owners", [2, 3])
def test_owners_share_records_and_groups_without_overlap(tiny, owners):
    parts = parts_with(tiny)
    workers = [parts.worker(Randomness.from_seed(5), owner=k, owners=owners) for k in range(owners)]
    rows = np.concatenate([one._rows for one in workers])
    assert sorted(rows) == sorted(parts.store.split("train"))
    total = workers[0].bounded_sum(0)
    for one in workers[1:]:
        total = total + one.bounded_sum(0)
    assert total.groups == parts.plan.groups and total.sensitivity == parts.plan.sensitivity
    assert math.isfinite(total.values.norm().item()) and total.values.norm() > 0


def test_the_microbatch_does_not_change_the_sum(tiny):
    results = []
    for microbatch in (1, 16, 4096):
        parts = parts_with(tiny, microbatch=microbatch)
        results.append(parts.worker(Randomness.from_seed(5)).bounded_sum(0).values)
    assert torch.allclose(results[0], results[1], atol=1e-6) and torch.allclose(results[0], results[2], atol=1e-6)


def test_shuffled_chunks_move_the_real_sum_beyond_2c(tiny, monkeypatch):
    """The mechanism broken on purpose: the same worker with the paper's grouping instead of independent draws."""

    def chunked(plan, randomness, step, rows, keys, groups):
        draw = worker_room_draw(plan, randomness, step, rows, keys, groups)
        drawn = np.sort(draw.rows)
        starts = np.arange(0, len(drawn) + plan.group_size, plan.group_size)
        return StepDraw(drawn, np.minimum(starts, len(drawn)))

    worker_room_draw = worker_room.draw_step
    monkeypatch.setattr(worker_room, "draw_step", chunked)
    parts = parts_with(tiny, clip_norm=1e-3)
    rows = parts.store.split("train")
    first = chunked(parts.plan, Randomness.from_seed(5), 0, rows, parts.store.keys[rows], parts.plan.groups).rows[0]
    with_all, without = sums(parts, int(np.flatnonzero(rows == first)[0]), 0)
    assert (with_all - without).norm().item() > parts.plan.sensitivity * 1.02
