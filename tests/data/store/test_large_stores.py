"""What holds for stores of any size: opening reads nothing of the records."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dpfed.data.sampling import PartitionRows, draw_step, participants_of, partition_keys
from dpfed.data.store import index as index_room
from dpfed.data.store.layout import HEADER
from dpfed.data.store.records import RecordStore
from dpfed.errors import UserError
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.randomness import Randomness
from dpfed.training.worker import indices_of_rank
from tests.synthetic_store import write_synthetic

RECORDS, HELD_OUT = 5000, 700


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every store is a large one."""
    monkeypatch.setattr(index_room, "BLOCK", 512)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_synthetic(tmp_path / "s", RECORDS, HELD_OUT)
    return tmp_path / "s"


def change(path: Path, **header: object) -> None:
    place = path / HEADER
    place.write_text(json.dumps(json.loads(place.read_text()) | header))


@pytest.mark.long
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_opening_reads_no_keys_and_no_records(path: Path, tmp_path: Path) -> None:
    """An index of 18 MB, of which the splits take 2. The control reads the keys."""
    write_synthetic(tmp_path / "big", 2_000_000)
    program = """
import sys
from dpfed.data.store.records import RecordStore
RecordStore.open(sys.argv[2])
def resident(): return int(open("/proc/self/statm").read().split()[1]) * 4096 / 1e6
before = resident()
store = RecordStore.open(sys.argv[1])
opened = resident() - before
before = resident()
store.keys[:].max()
print(opened, resident() - before, store.count("train"), "torch" in sys.modules)
"""
    command = [sys.executable, "-c", program, str(tmp_path / "big"), str(path)]
    opened, read, count, torch = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert float(opened) < 8 < 12 < float(read) and int(count) == 1_999_000 and torch == "False"


def test_an_index_that_hides_where_batches_begin_is_damaged(path: Path) -> None:
    source = path / "index.arrow"
    with pa.memory_map(str(source)) as mapped:
        table = pa.ipc.open_file(mapped).read_all()
    with pa.ipc.new_file(str(path / "old"), table.schema.remove_metadata()) as writer:
        writer.write_table(table.replace_schema_metadata(None))
    os.replace(path / "old", source)
    change(path, files=json.loads((path / HEADER).read_text())["files"] | {"index.arrow": source.stat().st_size})
    with pytest.raises(UserError, match="where the batches of records begin.*store-damaged"):
        RecordStore.open(path)


@pytest.mark.parametrize("world_size", [1, 3])
def test_own_rows_are_those_that_are_found_by_looking_at_all(path: Path, world_size: int) -> None:
    store = RecordStore.open(path)
    keys = partition_keys(store, "record")
    for rank in range(world_size):
        expected = indices_of_rank(store.split("train"), np.asarray(keys), rank, world_size)
        assert np.array_equal(np.asarray(PartitionRows(store, keys, rank, world_size)), expected)


@pytest.mark.parametrize("world_size", [1, 3])
def test_a_step_draws_the_same_records_without_copying_keys(path: Path, world_size: int) -> None:
    store, randomness = RecordStore.open(path), Randomness.from_seed(1)
    plan = PrivacyPlan.of(RECORDS - HELD_OUT, 200, 4, 1.0, 10, 1.0, 1e-5)
    for rank in range(world_size):
        rows = indices_of_rank(store.split("train"), np.asarray(store.keys), rank, world_size)
        participants = participants_of(plan, randomness, store.keys, None, PartitionRows(store, store.keys, rank, world_size))
        for step in (0, 3):
            expected = draw_step(plan, randomness, step, rows, store.keys[rows], plan.groups)
            drawn = draw_step(plan, randomness, step, None, store.keys, plan.groups, participants=participants)
            assert np.array_equal(drawn.indices, expected.indices) and np.array_equal(drawn.offsets, expected.offsets)


@pytest.mark.parametrize("wrong", ["splits", "split"])
def test_what_the_header_promises_is_checked_at_opening(path: Path, wrong: str) -> None:
    """Accounting follows from the number of training records; the plan would promise too much."""
    if wrong == "splits":
        change(path, splits={"train": RECORDS - 600, "validation": 600, "test": 0})
    else:
        with pa.memory_map(str(path / "index.arrow")) as mapped:
            table = pa.ipc.open_file(mapped).read_all()
        schema, split = table.schema, table["split"].to_numpy().copy()
        split[3000] = 7
        with pa.ipc.new_file(str(path / "new"), schema) as writer:
            writer.write_table(pa.table({"key": table["key"], "split": split}).cast(schema))
        os.replace(path / "new", path / "index.arrow")
    with pytest.raises(UserError, match="store-damaged"):
        RecordStore.open(path)
