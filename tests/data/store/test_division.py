"""Stores divided among sites: each record's site is its own affair, nothing is lost or changed, and skew means what it says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from dpfed.data.store import division
from dpfed.data.store.division import divide_store, site_of_records
from dpfed.data.store.record import RecordInput
from dpfed.data.store.records import RecordStore
from dpfed.data.store.writing import StoreWriter
from dpfed.errors import UserError

RECORDS = 4000  # more than three batches
SITES = 3
COLORS = ("red", "green", "blue", "pink", "cyan", "gray", "black", "white")
LABELS = {"digit": [str(digit) for digit in range(10)], "ward": ["north", "south", "east"]}
BY = ["digit", "caption"]


def record(row: int, labels: Sequence[str], units: bool) -> RecordInput:
    """A ninth of the records has no digit. People share a ward, nothing else; every seventh record is of nobody."""
    person = int((2 * row) ** 0.5)
    classes = {"digit": row % 10 if row % 9 else -1, "ward": person % 3}
    split = "train" if row % 50 < 40 else ("validation", "test")[row // 50 % 2]
    unit = f"p{person}" if units and row % 7 else None
    image = np.random.default_rng(row).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    texts = (f"A {COLORS[row % 8]} thing, number {row}", "the same")
    return RecordInput(f"r{row}", image, texts, {name: classes[name] for name in labels}, split, unit)


def write(path: Path, indices: list[int], by: str = "digit", units: bool = False) -> RecordStore:
    """A store that is divided by `by`: its first label, or the captions, when it has no label."""
    names = {} if by == "caption" else {by: LABELS[by]} | LABELS
    unit = "person" if units else None
    with StoreWriter(path, name="x", kind="image-text", size=4, label_names=names, unit_name=unit, public=units) as writer:
        for row in indices:
            writer.add(record(row, list(names), units))
    return RecordStore.open(path)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> RecordStore:
    return write(tmp_path_factory.mktemp("plain") / "s", list(range(RECORDS)))


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> RecordStore:
    return write(tmp_path_factory.mktemp("people") / "s", list(range(RECORDS)), "ward", units=True)


def contents(store: RecordStore) -> dict[str, tuple]:
    """Everything that a store says of its records, by their ids."""
    indices = np.arange(len(store))
    index = store.index.table.to_pylist()  # key, split, unit and labels
    values = zip(map(tuple, map(dict.items, index)), store.captions(indices), store.encoded(indices), strict=True)
    return dict(zip(store.ids(indices), values, strict=True))


def sites_by_id(store: RecordStore, *options: object) -> dict[str, int]:
    return dict(zip(store.ids(np.arange(len(store))), site_of_records(store, *options).tolist(), strict=True))


@pytest.mark.long
@pytest.mark.parametrize("skew", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("by", BY)
def test_a_site_is_a_function_of_the_record_alone(tmp_path: Path, by: str, skew: float) -> None:
    """Records are removed, others are added, and all change their places: none of the others moves."""
    indices = [row for row in range(RECORDS + 50) if row % 5]
    other = sites_by_id(write(tmp_path / "other", indices[::-1], by), SITES, skew)
    before = sites_by_id(write(tmp_path / "before", list(range(RECORDS)), by), SITES, skew)
    common = before.keys() & other.keys()
    assert len(common) == RECORDS * 4 // 5
    assert {id: before[id] for id in common} == {id: other[id] for id in common}


def test_sites_are_the_same_on_every_machine_and_version(tmp_path: Path) -> None:
    digits, captions = (write(tmp_path / by, list(range(24)), by) for by in BY)
    assert "".join(map(str, site_of_records(digits, SITES, 0.5))) == "022011011001201201220121"
    assert "".join(map(str, site_of_records(captions, SITES, 1.0))) == "202200102022001020220010"


@pytest.mark.long
@pytest.mark.parametrize("units", [False, True])
def test_the_parts_are_the_whole_and_no_record_is_there_twice(plain, people, tmp_path, units):
    source = people if units else plain
    stores = divide_store(source.path, tmp_path / "d", SITES, 0.8)
    assert [store.path.relative_to(tmp_path / "d").name for store in stores] == ["site-0", "site-1", "site-2", "evaluation"]
    parts, whole = list(map(contents, stores)), contents(source)
    assert sum(map(len, parts)) == len(whole) == RECORDS
    assert {id: value for part in parts for id, value in part.items()} == whole
    facts = ("name", "kind", "public", "size", "label_names", "unit_name", "skipped")
    assert all(getattr(store, fact) == getattr(source, fact) for store in stores for fact in facts)
    *sites, evaluation = stores
    assert all(len(site.split("train")) == len(site) > 0 for site in sites)
    assert len(evaluation.split("train")) == 0
    assert [len(evaluation.split(split)) for split in ("validation", "test")] == [400, 400]
    for site, store in enumerate(sites):  # the simulation in one process sees the same sites
        indices = source.split("train")[site_of_records(source, SITES, 0.8)[source.split("train")] == site]
        assert np.array_equal(store.keys, source.keys[indices])  # and in the source's order


@pytest.mark.parametrize("skew", [0.0, 0.8, 1.0])
def test_units_stay_together(people: RecordStore, tmp_path: Path, skew: float) -> None:
    *sites, _ = divide_store(people.path, tmp_path / "d", SITES, skew)
    units = np.concatenate([np.unique(site.units) for site in sites])
    assert len(units) == len(np.unique(units)) == people.training_units


@pytest.mark.parametrize("skew", [0.3, 0.8])
def test_skew_is_the_probability_to_go_home(plain: RecordStore, skew: float) -> None:
    digits = plain.labels["digit"]
    sites = site_of_records(plain, SITES, skew)
    at_home = (sites == digits % SITES)[digits >= 0]
    expected = skew + (1 - skew) / SITES
    assert abs(at_home.mean() - expected) < 4 * (expected * (1 - expected) / len(at_home)) ** 0.5
    away = np.bincount(sites[(digits == 0) & (sites != 0)], minlength=SITES)[1:]
    assert abs(away[0] - away[1]) < 4 * away.sum() ** 0.5  # those who leave home do not prefer a site


def test_a_site_is_unrelated_to_the_workers_of_its_records(plain: RecordStore) -> None:
    """A site may share its store out among workers, by key: those would otherwise get nothing."""
    sites = site_of_records(plain, SITES, 0.0)
    for site in range(SITES):
        counts = np.bincount((plain.keys[sites == site] % np.uint64(6)).astype(int), minlength=6)
        assert counts.min() > 0.7 * counts.mean()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ((1, 0.8), "from 2 to 4,096, got 1\\..*data-number"),
        ((3, 1.5), "got 1.5.*store-skew-range"),
        ((3, -0.1), "got -0.1.*store-skew-range"),
        ((3, float("nan")), "got nan.*store-skew-range"),
        ((11, 1.0), "site 3 of 11 .*store-empty-site"),
    ],
)
def test_impossible_divisions_are_refused(people: RecordStore, tmp_path: Path, options: tuple, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        divide_store(people.path, tmp_path / "new" / "d", *options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("by", BY)
def test_units_are_not_torn_apart(tmp_path: Path, by: str) -> None:
    people = write(tmp_path / "s", list(range(400)), by, units=True)
    with pytest.raises(UserError, match=f"one person .*{by}.*unit-divided"):
        divide_store(people.path, tmp_path / "d", SITES, 0.1)
    assert list(tmp_path.iterdir()) == [people.path]
    divide_store(people.path, tmp_path / "d", SITES, 0.0)


def test_stores_without_held_out_or_existing_places_are_refused(plain: RecordStore, tmp_path: Path) -> None:
    write(tmp_path / "s", list(range(40)))
    with pytest.raises(UserError, match="store-held-out"):
        divide_store(tmp_path / "s", tmp_path / "d", 2, 0.0)
    with pytest.raises(UserError, match="file-exists"):
        divide_store(plain.path, tmp_path / "s", 2, 0.0)
    assert [path.name for path in tmp_path.iterdir()] == ["s"] and len(RecordStore.open(tmp_path / "s")) == 40


def test_a_failed_division_leaves_nothing(plain: RecordStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(division, "_write_header", full)
    with pytest.raises(UserError, match="No space left.*store-unwritable"):
        divide_store(plain.path, tmp_path / "d", SITES, 0.8)
    assert list(tmp_path.iterdir()) == []
