"""Folders that name a column and its value, as Spark, Hive and pandas' ``partition_cols`` write them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpfed.data.importers import import_records
from dpfed.data.store.records import RecordStore
from dpfed.errors import UserError
from tests.data.importers.test_classes import names_of


def table(pictures, **columns: list) -> pa.Table:
    rows = len(next(iter(columns.values())))
    return pa.table({"image": [pictures.png() for _ in range(rows)]} | columns)


def imported(source: Path, dest: Path, **options) -> RecordStore:
    return RecordStore.open(import_records(source, dest, **options).path)


def test_what_pyarrow_partitions_comes_back(tmp_path: Path, pictures) -> None:
    columns = {"label": ["cat", "dog", "a/b c", None, "cat"], "id": list("vwxyz"), "patient_id": ["1", "2", "1", "3", "2"]}
    whole = table(pictures, **columns)
    pq.write_table(whole, tmp_path / "whole.parquet")
    flat = imported(tmp_path / "whole.parquet", tmp_path / "flat")
    for number, by in enumerate((["label"], ["patient_id"], ["label", "patient_id"])):
        pq.write_to_dataset(whole, tmp_path / f"{number}", partition_cols=by)
        store = imported(tmp_path / f"{number}", tmp_path / f"s{number}")
        assert store.label_names == flat.label_names and store.training_units == flat.training_units == 3
        of = dict(zip(store.ids(range(5)), zip(names_of(store), store.units.tolist(), strict=True), strict=True))
        assert of == dict(zip(flat.ids(range(5)), zip(names_of(flat), flat.units.tolist(), strict=True), strict=True))


def test_a_class_that_is_called_like_a_split_is_a_class(tmp_path: Path, pictures) -> None:
    columns = {"label": ["train", "test", "bus"], "id": list("abc")}
    pq.write_to_dataset(table(pictures, **columns), tmp_path / "in", partition_cols=["label"])
    store = imported(tmp_path / "in", tmp_path / "s")
    assert store.count("train") == 3 and sorted(names_of(store)) == ["bus", "test", "train"]


@pytest.mark.parametrize("above", ["split={}", "{}"])
def test_splits_are_told_by_folders_above_or_by_the_same_kind(tmp_path: Path, pictures, above: str) -> None:
    for split in ("train", "test"):
        columns = {"label": ["cat", "dog"], "id": [f"{split}0", f"{split}1"]}
        root = tmp_path / "in" / above.format(split)
        pq.write_to_dataset(table(pictures, **columns), root, partition_cols=["label"])
    store = imported(tmp_path / "in", tmp_path / "s")
    assert sorted(store.ids(store.split("test"))) == ["test/test0", "test/test1"] and sorted(names_of(store)) == sorted(
        ["cat", "dog"] * 2
    )


def test_a_split_that_nobody_knows_is_refused(tmp_path: Path, pictures) -> None:
    pq.write_to_dataset(table(pictures, split=["holdout", "extra"]), tmp_path / "in", partition_cols=["split"])
    with pytest.raises(UserError, match="parquet-split-unknown"):
        imported(tmp_path / "in", tmp_path / "s")


def test_a_name_in_a_folder_names_no_record(tmp_path: Path, pictures) -> None:
    pq.write_to_dataset(table(pictures, id=["a", "a", "b"], label=[0, 1, 0]), tmp_path / "in", partition_cols=["id"])
    store = imported(tmp_path / "in", tmp_path / "s")
    assert len(set(store.ids(range(3)))) == 3


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ("pid", " has no column 'pid', only image, label, score, id"),
        ("id", ": the column 'id' cannot name records, because it comes from the names of folders"),
        ("score", ": the column 'score' cannot name records, because it holds neither texts nor whole numbers"),
    ],
)
def test_a_column_that_cannot_name_records_is_refused_with_its_own_reason(tmp_path: Path, pictures, column, said) -> None:
    rows = table(pictures, id=["a", "b"], label=[0, 1], score=[0.5, 1.5])
    pq.write_to_dataset(rows, tmp_path / "in", partition_cols=["id"])
    with pytest.raises(UserError, match=rf"\.parquet{said}; correct --id.*parquet-id"):
        import_records(tmp_path / "in", tmp_path / "s", id=column)


def test_a_column_that_occurs_twice_names_no_records(tmp_path: Path, pictures) -> None:
    rows = table(pictures, id=["a", "b"], label=[0, 1])
    pq.write_table(rows.append_column("id", pa.array(["c", "d"])), tmp_path / "x.parquet")
    with pytest.raises(UserError, match="the column 'id' cannot name records, because it occurs twice; correct --id"):
        import_records(tmp_path / "x.parquet", tmp_path / "s", id="id")


def test_a_column_of_the_file_counts_before_a_folder(tmp_path: Path, pictures) -> None:
    file = tmp_path / "in" / "label=cat" / "part-0.parquet"
    file.parent.mkdir(parents=True)
    pq.write_table(table(pictures, label=["dog"]), file)
    assert names_of(imported(tmp_path / "in", tmp_path / "s")) == ["dog"]
