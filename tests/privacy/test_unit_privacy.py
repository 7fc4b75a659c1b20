"""Units: all records of a person come and go together, join one group, and count once."""

import numpy as np
import pytest
import scipy.stats

from dpfed.building.plan import plan_of
from dpfed.config import BoundingConfig, Config, PrivacyConfig
from dpfed.data.sampling import draw_step, partition_keys, protected_count, unit_keys
from dpfed.data.store.record import RecordInput, record_key
from dpfed.data.store.records import RecordStore
from dpfed.data.store.writing import StoreWriter
from dpfed.errors import UserError
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.promise import protected_by
from dpfed.privacy.randomness import Randomness
from dpfed.training.worker import indices_of_rank

UNITS, RECORDS = 300, 1200
RNG = np.random.default_rng(0)
KEYS = np.array([record_key(f"record {row}") for row in range(RECORDS)], np.uint64)
# The first unit has as many records as a whole step; most have one to six.
SIZES = np.concatenate([[60], RNG.multinomial(RECORDS - 60 - (UNITS - 1), np.ones(UNITS - 1) / (UNITS - 1)) + 1])
UNIT = np.array([record_key(f"person {k}") for k in np.repeat(np.arange(UNITS), SIZES)], np.uint64)[RNG.permutation(RECORDS)]


def plan(per_unit=1, cap=None, batch=90):
    return PrivacyPlan.of(UNITS, batch, 6, 1.0, 10, 1.0, 1e-5, max_group_size=cap, unit="user", per_unit=per_unit)


def draw(p, seed, step, indices=None):
    indices = np.arange(RECORDS) if indices is None else indices
    return draw_step(p, Randomness.from_seed(seed), step, indices, KEYS[indices], p.groups, units=UNIT[indices])


def groups_of(draw):
    return [frozenset(draw.members(g).tolist()) for g in range(len(draw))]


def split_units(draw):
    """How many units have records in several groups."""
    seen = np.concatenate([np.unique(UNIT[draw.members(g)]) for g in range(len(draw))])
    return len(seen) - len(np.unique(seen))


@pytest.mark.parametrize("per_unit", [1, 2, 100])
@pytest.mark.parametrize("cap", [None, 4])
@pytest.mark.parametrize("trial", range(20))
def test_a_unit_left_out_changes_one_group_and_no_others_part(per_unit, cap, trial):
    p = plan(per_unit, cap)
    with_all = draw(p, trial, 0)
    gone = UNIT[with_all.indices[trial]] if trial % 2 else np.unique(UNIT)[trial]
    without = draw(p, trial, 0, np.flatnonzero(UNIT != gone))
    before, after = set(groups_of(with_all)), set(groups_of(without))
    assert len(before - after) <= 1 and len(after - before) <= 1
    if cap is None:  # nothing but the unit itself is missing
        assert set(without.indices) == {row for row in with_all.indices if UNIT[row] != gone}
    if trial % 2:
        assert before != after


@pytest.mark.parametrize("per_unit", [1, 2, 5, 100])
def test_a_drawn_units_allowed_records_are_in_one_group(per_unit):
    for step in range(10):
        one = draw(plan(per_unit), 1, step)
        units, counts = np.unique(UNIT[one.indices], return_counts=True)
        assert np.array_equal(counts, np.minimum(np.array([(UNIT == unit).sum() for unit in units]), per_unit))
        assert split_units(one) == 0


def test_units_of_any_size_are_drawn_with_probability_q():
    p, steps = plan(), 600
    units = np.unique(UNIT)
    drawn = np.zeros((steps, UNITS), dtype=bool)
    for step in range(steps):
        drawn[step] = np.isin(units, UNIT[draw(p, 2, step).indices])
    counts, expected = drawn.sum(0), scipy.stats.binom(steps, p.sampling.rate)
    assert scipy.stats.kstest(expected.cdf(counts) - expected.pmf(counts) * RNG.random(UNITS), "uniform").pvalue > 1e-4
    largest = units[np.argmax([(UNIT == unit).sum() for unit in units])]
    assert 1e-4 < expected.cdf(drawn[:, units == largest].sum()) < 1 - 1e-4
    assert drawn.sum(1).var() == pytest.approx(UNITS * 0.3 * 0.7, rel=0.25)


@pytest.mark.long
def test_every_record_of_a_unit_gets_its_turn():
    sizes = {unit: (UNIT == unit).sum() for unit in np.unique(UNIT)}
    largest = max(sizes, key=sizes.get)
    indices = np.concatenate([draw(plan(batch=300), 3, step).indices for step in range(1200)])
    counts = np.bincount(indices, minlength=RECORDS)[largest == UNIT]
    assert counts.sum() == 1200 and scipy.stats.chisquare(counts).pvalue > 1e-4


def test_units_of_one_record_each_are_records():
    p = plan().replace(records=RECORDS)
    indices, randomness = np.arange(RECORDS), Randomness.from_seed(4)
    alone = draw_step(p, randomness, 7, indices, KEYS, p.groups)
    assert groups_of(alone) == groups_of(draw_step(p, randomness, 7, indices, KEYS, p.groups, units=KEYS))


def test_draws_by_record_keys_would_tear_units_apart():
    """The mechanism broken on purpose, so that the tests above have something to find."""
    indices = np.arange(RECORDS)
    assert split_units(draw_step(plan(100), Randomness.from_seed(1), 0, indices, KEYS, plan().groups)) > 0


def test_the_plan_counts_units(tmp_path):
    store = people(tmp_path / "people", ["ann", "ann", "bo", None, "cy", "ann", None, None])
    privacy = PrivacyConfig(unit="user", per_unit=2, noise_multiplier=1.0, batch=2, steps=5)
    assert protected_count(store, privacy.unit) == 6  # three people and three records without one
    assert protected_count(store, "record") == 8
    made = plan_of(protected_count(store, privacy.unit), Config(privacy=privacy, bounding=BoundingConfig(group_size=1)))
    assert (made.sampling.records, made.promise.unit, made.sampling.per_unit, made.sampling.rate) == (6, "user", 2, 2 / 6)
    assert (made.promise.protected, protected_by("user"), protected_by("record")) == ("unit", "unit", "record")
    assert np.array_equal(unit_keys(store, privacy.unit), store.units) and unit_keys(store, "record") is None


def test_only_units_of_the_training_split_count(tmp_path):
    store = people(tmp_path / "people", ["ann", "bo", "ann", "cy"], ["train", "train", "train", "test"])
    assert protected_count(store, "user") == 2


def test_units_that_nobody_named_cannot_be_protected(tmp_path):
    store = people(tmp_path / "people", [None, None], unit_name=None)
    with pytest.raises(UserError, match="name no units"):
        unit_keys(store, "user")


def people(path, units, splits=None, unit_name="person") -> RecordStore:
    with StoreWriter(path, name="people", kind="image", size=8, unit_name=unit_name) as writer:
        for number, unit in enumerate(units):
            picture = np.full((8, 8, 3), number, np.uint8)
            split = splits[number] if splits else "train"
            writer.add(RecordInput(f"{number}.png", picture, split=split, unit=unit))
    return RecordStore.open(path)


@pytest.mark.parametrize("world_size", [2, 3])
def test_owners_hold_whole_units_only_where_protected(tmp_path, world_size):
    store = people(tmp_path / "store", [f"person {number % 12}" for number in range(60)])
    indices = store.split("train")
    for unit, at_several in (("user", 0), ("record", 12)):
        keys = partition_keys(store, unit)
        shares = [indices_of_rank(indices, keys, rank, world_size) for rank in range(world_size)]
        assert np.array_equal(np.sort(np.concatenate(shares)), indices)
        held = np.concatenate([np.unique(store.units[share]) for share in shares])
        assert (np.unique(held, return_counts=True)[1] > 1).sum() in range(at_several // 2, at_several + 1)
