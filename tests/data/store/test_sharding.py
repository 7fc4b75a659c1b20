"""Sharded stores: the same records, each with one owner, and a plan that no owner's part can change."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from dpfed.config import BoundingConfig, Config, PrivacyConfig, parse_config
from dpfed.data.sampling import owner_keys, protected_count
from dpfed.data.store import sharding
from dpfed.data.store.record import RecordInput, record_key
from dpfed.data.store.records import RecordStore
from dpfed.data.store.sharding import shard_store
from dpfed.data.store.writing import StoreWriter
from dpfed.errors import UserError
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.randomness import Randomness
from dpfed.runs.assembly import assemble
from dpfed.runs.resolution import resolve
from dpfed.training.worker import indices_of_owner

SHARDS = 8
OWNERS = range(1, 8)
RECORDS = 2600  # more than two batches


@pytest.fixture(scope="module", params=["record", "unit"])
def by(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory, by: str) -> tuple[Path, Path]:
    """A store and its sharded copy; where there are units, of one to five records."""
    folder, random = tmp_path_factory.mktemp("stores"), np.random.default_rng(0)
    unit_name = "person" if by == "unit" else None
    names = {"digit": [str(digit) for digit in range(10)]}
    with StoreWriter(
        folder / "whole", name="x", kind="image-text", size=16, public=True, label_names=names, unit_name=unit_name
    ) as writer:
        for row in range(RECORDS):
            person = int((2 * row) ** 0.5) if row % 7 else None
            split = "train" if row % 10 < 8 else ("validation", "test")[row % 2]
            image = random.integers(0, 256, (16, 16, 3), dtype=np.uint8)
            unit = f"p{person}" if by == "unit" and person is not None else None
            writer.add(RecordInput(f"r{row}", image, (f"picture {row}",), {"digit": row % 10}, split, unit))
    shard_store(folder / "whole", folder / "sharded", SHARDS)
    return folder / "whole", folder / "sharded"


def contents(store: RecordStore, indices: np.ndarray | None = None) -> dict[str, tuple]:
    """Everything that a store says of its records, by their ids."""
    indices = np.arange(len(store)) if indices is None else indices
    splits = np.empty(len(store), object)
    for split in ("train", "validation", "test"):
        splits[store.split(split)] = split
    units = [None] * len(indices) if store.units is None else store.units[indices].tolist()
    digests = [image.numpy().tobytes() for image in store.images(indices, 16)]
    values = zip(
        store.keys[indices].tolist(),
        units,
        splits[indices],
        store.labels["digit"][indices].tolist(),
        store.captions(indices),
        digests,
        strict=True,
    )
    return dict(zip(store.ids(indices), values, strict=True))


def test_a_sharded_copy_holds_the_same_records(stores: tuple[Path, Path]) -> None:
    whole, sharded = map(RecordStore.open, stores)
    assert contents(sharded) == contents(whole) and len(contents(whole)) == RECORDS
    facts = ("name", "kind", "public", "size", "label_names", "skipped", "unit_name", "training_records", "training_units")
    assert all(getattr(sharded, fact) == getattr(whole, fact) for fact in facts)
    assert (whole.shards, sharded.shards) == (None, SHARDS)
    assert sharded.share_units("train", "test") == whole.share_units("train", "test")


@pytest.mark.parametrize("owners", OWNERS)
def test_owners_open_every_training_record_once_and_all_held_out_ones(stores: tuple[Path, Path], owners: int) -> None:
    whole = RecordStore.open(stores[0])
    parts = [RecordStore.open(stores[1], owner, owners) for owner in range(owners)]
    opened = [contents(part, part.split("train")) for part in parts]
    assert sum(map(len, opened)) == len(whole.split("train"))
    assert {id: value for part in opened for id, value in part.items()} == contents(whole, whole.split("train"))
    for split in ("validation", "test"):
        assert all(contents(part, part.split(split)) == contents(whole, whole.split(split)) for part in parts)


@pytest.mark.parametrize("unit", ["record", "user"])
@pytest.mark.parametrize("owners", OWNERS)
def test_rows_of_owner_are_what_the_owner_opens(stores: tuple[Path, Path], by: str, owners: int, unit: str) -> None:
    """Whether the store is opened whole or in part; and the rule is a function of the record's name, or its unit's, alone."""
    if unit == "user" and by == "record":
        pytest.skip("names no units")
    privacy = PrivacyConfig(epsilon=1.0, unit=unit)
    sharded = RecordStore.open(stores[1])
    for owner in range(owners):
        part = RecordStore.open(stores[1], owner, owners)
        own = indices_of_owner(part.split("train"), owner_keys(part, privacy), owner, owners)
        assert np.array_equal(own, part.split("train"))
        indices = indices_of_owner(sharded.split("train"), owner_keys(sharded, privacy), owner, owners)
        assert sorted(sharded.keys[indices].tolist()) == sorted(part.keys[own].tolist())
        if by == "record":
            assert all(record_key(id) % SHARDS % owners == owner for id in part.ids(own))
        else:
            assert (part.units[own] % np.uint64(SHARDS) % np.uint64(owners) == owner).all()


def test_a_unit_has_one_owner(stores: tuple[Path, Path], by: str) -> None:
    if by == "record":
        pytest.skip("names no units")
    for owners in OWNERS:
        parts = [RecordStore.open(stores[1], owner, owners) for owner in range(owners)]
        units = np.concatenate([np.unique(part.units[part.split("train")]) for part in parts])
        assert len(units) == len(np.unique(units))


@pytest.mark.parametrize("unit", ["record", "user"])
def test_every_owner_has_the_same_plan(stores: tuple[Path, Path], by: str, unit: str) -> None:
    if unit == "user" and by == "record":
        pytest.skip("names no units")
    privacy = PrivacyConfig(epsilon=4.0, batch=64, steps=10, unit=unit)

    def plan(store: RecordStore) -> PrivacyPlan:
        return PrivacyPlan.from_config(
            protected_count(store, privacy), Config(privacy=privacy, bounding=BoundingConfig(group_size=4))
        )

    whole = RecordStore.open(stores[0])
    indices = whole.split("train")
    expected = plan(whole)
    assert expected.records == (len(indices) if unit == "record" else len(set(whole.units[indices].tolist())))
    for owners in (1, 3, 8):
        plans = [plan(RecordStore.open(stores[1], owner, owners)) for owner in range(owners)]
        assert all(other == expected for other in plans)  # N, q, sigma, K and all the rest


def test_a_step_is_the_same_from_the_sharded_copy(stores: tuple[Path, Path], tiny: dict) -> None:
    """Draws, groups and views follow the records' keys, so where the records lie changes nothing, to the bit."""
    sums = []
    for path in stores:
        tiny["data"]["path"] = str(path)
        worker = assemble(resolve(parse_config(tiny)), Randomness.from_seed(1)).worker(Randomness.from_seed(2))
        sums.append(worker.bounded_sum(3).values.clone())
    assert sums[0].abs().max() > 0 and torch.equal(*sums)


def test_only_the_owners_shards_are_read(stores: tuple[Path, Path], tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(stores[1], copy)
    for shard in (1, 2, 4, 5, 7):
        shutil.rmtree(copy / f"shard-{shard:05}")
    RecordStore.open(copy, 0, 3)
    with pytest.raises(UserError, match="shard-00001"):
        RecordStore.open(copy, 1, 3)


@pytest.mark.parametrize(
    "how", ["exchanged shards", "wrong count", "wrong units", "truncated shard", "newer format", "no counts"]
)
def test_damaged_shards_are_refused(stores: tuple[Path, Path], by: str, tmp_path: Path, how: str) -> None:
    """N is what the header says it is: a header that miscounts what is opened is never believed."""
    path = tmp_path / "s"
    shutil.copytree(stores[1], path)
    header = json.loads((path / "store.json").read_text())
    counts = header["sharding"]
    if how == "exchanged shards":  # with a header that agrees on the sizes and counts
        for name in ("index.arrow", "records.arrow"):
            first, second = path / "shard-00000" / name, path / "shard-00003" / name
            first.rename(path / "x"), second.rename(first), (path / "x").rename(second)
            sizes = header["files"]
            one, other = f"shard-00000/{name}", f"shard-00003/{name}"
            sizes[one], sizes[other] = sizes[other], sizes[one]
        for each in filter(None, (counts["records"], counts["units"])):
            each[0], each[3] = each[3], each[0]
    elif how == "wrong count":
        counts["records"][0] += 5
        header["records"] += 5
    elif how == "wrong units":
        if by == "record":
            pytest.skip("names no units")
        counts["units"][0] += 5
    elif how == "truncated shard":
        os.truncate(path / "shard-00000" / "records.arrow", 100)
    elif how == "newer format":
        header["dpfed_store"] = 9
    else:
        del counts["records"]
    (path / "store.json").write_text(json.dumps(header))
    with pytest.raises(UserError, match=str(path)):
        RecordStore.open(path, 0, 4)


def test_a_failed_copy_leaves_nothing(stores: tuple[Path, Path], tmp_path: Path, monkeypatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sharding, "read_layout", full)
    with pytest.raises(UserError, match="No space left"):
        shard_store(stores[0], tmp_path / "t", 4)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    (tmp_path / "t").mkdir()
    with pytest.raises(UserError, match="exists already"):
        shard_store(stores[0], tmp_path / "t", 4)
    with pytest.raises(UserError, match="from 1 to 4,096, got 0"):
        shard_store(stores[0], tmp_path / "u", 0)


def test_the_command(stores: tuple[Path, Path], by: str, tmp_path: Path, dpfed: Callable[..., tuple[int, str, str]]) -> None:
    code, made, error = dpfed("data", "shard", stores[0], tmp_path / "t", "--shards", 4)
    assert code == 0, error
    assert f"2,080 training records in 4 shards by {'person' if by == 'unit' else 'record'}, 520 held out" in made
    facts = json.loads(dpfed("data", "inspect", tmp_path / "t", "--json")[1])
    assert facts["shards"] == 4 and facts["records"]["train"] == 2080
    code, _, error = dpfed("data", "shard", stores[0], tmp_path / "t")
    assert code == 2 and "exists already" in error
