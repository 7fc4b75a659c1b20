"""Poisson sampling with independent groups: one record touches one group, and chunking a shuffled batch does not."""

import numpy as np
import pytest
import scipy.stats

from dpfed.data.sampling import StepDraw, dealt, draw_step
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.randomness import Randomness

RNG = np.random.default_rng(0)


def plan(records=400, batch=120, group_size=4, cap=None):
    return PrivacyPlan.of(records, batch, group_size, 1.0, 10, 1.0, 1e-5, max_group_size=cap)


def keys(count, seed=0):
    return np.random.default_rng(seed).integers(0, 2**64, size=count, dtype=np.uint64)


def groups_of(draw: StepDraw, key: np.ndarray) -> list[frozenset]:
    return [frozenset(key[draw.members(g)].tolist()) for g in range(len(draw))]


def changed_groups(before, after):
    """Groups, as sets of record keys, that are in one list and not in the other; a group that changed counts once."""
    return max(len(set(before) - set(after)), len(set(after) - set(before)))


@pytest.mark.parametrize("cap", [None, 2, 5])
@pytest.mark.parametrize("trial", range(40))
def test_taking_a_record_out_changes_at_most_one_group(trial, cap):
    p, key, randomness = plan(cap=cap), keys(400, trial), Randomness.from_seed(trial)
    indices = np.arange(400)
    with_all = draw_step(p, randomness, 3, indices, key, p.groups)
    # a record that was drawn if the trial is even, any record otherwise
    rest = np.delete(indices, int(with_all.indices[trial % len(with_all.indices)]) if trial % 2 == 0 else trial)
    without = draw_step(p, randomness, 3, rest, key[rest], p.groups)
    before, after = groups_of(with_all, key), groups_of(without, key)
    assert changed_groups(before, after) <= 1
    if trial % 2 == 0:
        assert before != after


def test_chunks_of_a_shuffled_batch_break_2c():
    """The grouping of the paper's Algorithm 1 moves the sum by 4C, however the two data sets' shuffles are coupled."""
    before = [frozenset("abcx"), frozenset("yz")]  # six records in chunks of four; x, in the full chunk, leaves
    rest = frozenset("abcyz")
    couplings = [[rest - {single}, frozenset(single)] for single in rest]  # every way to cut the other five into chunks
    assert all(changed_groups(before, after) == 2 for after in couplings)

    def clipped_sum(groups):  # a worst case for any coupling: gradients of norm C = 1 that point one way before, back after
        return sum(1.0 if group in before else -1.0 for group in groups)

    assert all(abs(clipped_sum(before) - clipped_sum(after)) == 4 for after in couplings)
    # Independent draws leave every other record where it was: the same gradients move the sum by 2C.
    assert abs(clipped_sum(before) - clipped_sum([frozenset("abc"), frozenset("yz")])) == 2


def test_every_record_is_drawn_with_probability_q_independently():
    p, key, randomness = plan(), keys(400), Randomness.from_seed(0)
    steps = 600
    drawn = np.zeros((steps, 400), dtype=bool)
    for step in range(steps):
        drawn[step, draw_step(p, randomness, step, np.arange(400), key, p.groups).indices] = True
    counts = drawn.sum(0)
    expected = scipy.stats.binom(steps, p.sampling.rate)
    assert scipy.stats.kstest(expected.cdf(counts) - expected.pmf(counts) * RNG.random(400), "uniform").pvalue > 1e-4
    sizes = drawn.sum(1)  # Poisson sampling: binomial, so its variance is N q (1 - q); a fixed-size sampler has none
    assert sizes.var() == pytest.approx(400 * 0.3 * 0.7, rel=0.2)


@pytest.mark.parametrize("owned", [20, 7, 1])
def test_an_owners_groups_are_chosen_uniformly_and_independently(owned):
    p, key = plan(records=20_000, batch=10_000, group_size=500), keys(20_000)
    draw = draw_step(p, Randomness.from_seed(1), 0, np.arange(20_000), key, owned)
    sizes = np.diff(draw.offsets)
    assert p.groups == 20 and len(sizes) == owned
    assert owned == 1 or scipy.stats.chisquare(sizes).pvalue > 1e-4
    again = draw_step(p, Randomness.from_seed(1), 1, np.arange(20_000), key, owned)
    assert not np.array_equal(draw.indices, again.indices)


def test_the_groups_are_all_drawn_records_each_once():
    p, key = plan(), keys(400)
    draw = draw_step(p, Randomness.from_seed(2), 0, np.arange(400), key, p.groups)
    assert len(set(draw.indices.tolist())) == len(draw.indices) == sum(len(draw.members(g)) for g in range(len(draw)))
    assert all(len(draw.members(g)) > 0 for g in range(len(draw)))


@pytest.mark.parametrize("cap", [2, 3, 6])
def test_the_cap_holds_and_touches_only_groups_beyond_it(cap):
    key, randomness = keys(400), Randomness.from_seed(3)
    free = draw_step(plan(group_size=8), randomness, 0, np.arange(400), key, 15)
    capped = draw_step(plan(group_size=8, cap=cap), randomness, 0, np.arange(400), key, 15)
    for before, after in zip(groups_of(free, key), groups_of(capped, key), strict=True):
        assert len(after) == min(len(before), cap) and after <= before


def test_an_empty_step_and_an_owner_without_groups_are_steps():
    p, key = PrivacyPlan.of(1000, 1, 1, 1.0, 10, 1.0, 1e-5), keys(5)
    sizes = [len(draw_step(p, Randomness.from_seed(0), step, np.arange(5), key, 1).indices) for step in range(50)]
    assert 0 in sizes
    for owned in (p, PrivacyPlan.of(5, 5, 1, 1.0, 10, 1.0, 1e-5)):  # the second draws every record
        idle = draw_step(owned, Randomness.from_seed(0), 0, np.arange(5), key, 0)
        assert len(idle) == len(idle.indices) == 0
    assert len(draw_step(p, Randomness.from_seed(0), 0, np.arange(0), key[:0], 1)) == 0


@pytest.mark.parametrize("records", [1, 7, 50, 10_000])
def test_microbatches_cover_all_groups_in_order_and_divide_none(records):
    draw = draw_step(plan(), Randomness.from_seed(4), 0, np.arange(400), keys(400), 30)
    cuts = draw.microbatches(records)
    assert [g for first, end in cuts for g in range(first, end)] == list(range(len(draw)))
    for first, end in cuts:
        assert end - first == 1 or draw.offsets[end] - draw.offsets[first] <= records
    assert StepDraw(np.zeros(0, np.int64), np.zeros(1, np.int64)).microbatches(records) == []


@pytest.mark.parametrize("method", ["batch", "sample", "logit"])
def test_a_whole_batchs_cap_holds_and_a_record_changes_one_place(method):
    """At the cap, whoever comes pushes one other out; the sensitivities of these methods are for that."""
    options = {"logit": {"temperature": 0.5, "candidates": 1, "directions": 2, "spread_out": 0.0}}.get(method, {})
    p = PrivacyPlan.of(400, 120, 1, 1.0, 10, 1.0, 1e-5, method_name=method, max_batch=121, options=options)
    key, randomness, sizes = keys(400), Randomness.from_seed(6), []
    for step in range(20):
        draw = draw_step(p, randomness, step, np.arange(400), key, p.groups)
        sizes.append(len(draw.indices))
        before = set(draw.indices.tolist())
        for gone in draw.indices[:3]:
            rest = np.delete(np.arange(400), gone)
            after = set(draw_step(p, randomness, step, rest, key[rest], p.groups).indices.tolist())
            assert len(before - after) == 1 and len(after - before) <= 1
    assert max(sizes) == 121 and sizes.count(121) > 3 and min(sizes) < 121


@pytest.mark.parametrize("cap", [2, 4])
def test_who_stays_at_a_cap_does_not_depend_on_other_groups(cap):
    """Every group keeps of its own members those that it would keep if it were alone."""
    key, randomness = keys(400), Randomness.from_seed(7)
    p = plan(group_size=8, cap=cap)
    free = draw_step(plan(group_size=8), randomness, 2, np.arange(400), key, 15)
    capped = draw_step(p, randomness, 2, np.arange(400), key, 15)
    for group in range(len(free)):
        members = free.members(group)
        alone = draw_step(p, randomness, 2, members, key[members], 15)
        assert len(alone) == 1 and set(alone.indices) == set(capped.members(group))


def test_every_record_gets_its_turn_where_groups_are_capped():
    p, key, randomness = plan(records=20, batch=20, group_size=10, cap=4), keys(20), Randomness.from_seed(2)
    stayed = np.zeros(20)
    for step in range(200):
        stayed[draw_step(p, randomness, step, np.arange(20), key, p.groups).indices] += 1
    assert stayed.sum() > 200 * 7 and stayed.min() > 200 * 0.25  # about 0.4 each: none is always pushed out


def test_groups_and_samples_are_new_and_independent_in_each_step():
    """Who is drawn, and who is grouped with whom, in one step says nothing about another."""
    p, key, randomness = plan(records=400, batch=400, group_size=20), keys(400), Randomness.from_seed(8)
    by_step = []
    for step in range(2):  # q = 1: all are drawn
        draw = draw_step(p, randomness, step, np.arange(400), key, p.groups)
        numbers = np.zeros(400, int)
        for group in range(len(draw)):
            numbers[draw.members(group)] = group
        by_step.append(numbers)
    together = [numbers[:, None] == numbers for numbers in by_step]
    pairs = np.triu_indices(400, 1)
    both = (together[0] & together[1])[pairs].mean()
    assert both == pytest.approx(together[0][pairs].mean() * together[1][pairs].mean(), rel=0.35)
    half = plan(records=400, batch=200)
    drawn = [np.isin(np.arange(400), draw_step(half, randomness, step, np.arange(400), key, 1).indices) for step in range(40)]
    assert np.abs(np.corrcoef(drawn) - np.eye(40)).max() < 0.25


@pytest.mark.parametrize(("groups", "workers"), [(64, 64), (100, 7), (4096, 64), (5, 1)])
def test_groups_dealt_by_size_leave_workers_about_equally_many_records(groups, workers):
    sizes = np.random.default_rng(3).poisson(16, groups)
    ranks = dealt(sizes, workers)
    each, records = np.bincount(ranks, minlength=workers), np.bincount(ranks, weights=sizes, minlength=workers)
    assert np.array_equal(each, np.bincount(np.arange(groups) % workers, minlength=workers))
    largest = max(sizes.max(), 1.01 * sizes.sum() / workers) if groups == workers or groups > 1000 else sizes.sum()
    assert records.sum() == sizes.sum() and records.max() <= largest
    assert records.max() <= np.bincount(np.arange(groups) % workers, weights=sizes).max()


def test_workers_divide_a_steps_groups_without_overlap():
    many, secret = keys(400), Randomness.from_seed(1)
    draws = [draw_step(plan(), secret, 2, None, many, 30, rank=rank, world_size=3) for rank in range(3)]
    alone = groups_of(draw_step(plan(), secret, 2, None, many, 30), many)
    divided = [group for draw in draws for group in groups_of(draw, many)]
    assert sorted(map(sorted, divided)) == sorted(map(sorted, alone))
