"""What names a record: nothing about the others. One record less moves no other one."""

from __future__ import annotations

import io
import struct
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpfed.data.importers import import_records
from dpfed.data.store.record import SPLITS
from dpfed.data.store.records import RecordStore
from dpfed.errors import UserError

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
COUNT = 60
HELD_OUT = {"validation": 12, "test": 6}
Rows = Sequence[int]
Write = Callable[[Path, Rows, Sequence[bytes | np.ndarray]], Path]


def parquet(rows: Rows, files: Sequence[bytes], paths: Callable[[int], str | None] | None, **columns: list) -> pa.Table:
    if paths is None:
        images = pa.array([files[row] for row in rows], pa.binary())
    else:
        images = pa.array([{"bytes": files[row], "path": paths(row)} for row in rows], IMAGE)
    return pa.table({"image": images, **columns})


def with_paths(path: Path, rows: Rows, files: Sequence[bytes]) -> Path:
    pq.write_table(parquet(rows, files, lambda row: f"{row}.png"), path / "x.parquet", row_group_size=7)
    return path / "x.parquet"


def with_one_path_for_all(path: Path, rows: Rows, files: Sequence[bytes]) -> Path:
    pq.write_table(parquet(rows, files, lambda row: "image.png" if row % 3 else None), path / "x.parquet")
    return path / "x.parquet"


def without_names(path: Path, rows: Rows, files: Sequence[bytes]) -> Path:
    """Captions, and labels whose class numbers depend on which classes there are: class "a" has one record."""
    labels = ["a" if row == 3 else "bcd"[row % 3] for row in rows]
    table = parquet(rows, files, None, label=labels, text=[f"caption {row}" for row in rows])
    pq.write_table(table, path / "x.parquet")
    return path / "x.parquet"


def with_ids(path: Path, rows: Rows, files: Sequence[bytes]) -> Path:
    pq.write_table(parquet(rows, files, None, ID=[1000 + row for row in rows]), path / "x.parquet")
    return path / "x.parquet"


def shards(path: Path, rows: Rows, files: Sequence[bytes]) -> Path:
    """Files of 20 rows: a row less moves others from file to file."""
    (path / "in").mkdir()
    for number, start in enumerate(range(0, len(rows), 20)):
        table = parquet(rows[start : start + 20], files, lambda row: f"{row}.png")
        pq.write_table(table, path / "in" / f"train-{number}.parquet")
    return path / "in"


def webdataset(path: Path, rows: Rows, files: Sequence[bytes]) -> Path:
    with tarfile.open(path / "x.tar", "w") as archive:
        for row in rows:
            member = tarfile.TarInfo(f"{row:03}.png")
            member.size = len(files[row])
            archive.addfile(member, io.BytesIO(files[row]))
    return path / "x.tar"


def fashion_mnist(path: Path, rows: Rows, arrays: Sequence[np.ndarray]) -> Path:
    raw = path / "in" / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    for name, part in (("train", rows), ("t10k", range(3))):
        pixels = b"".join(arrays[row].tobytes() for row in part)
        (raw / f"{name}-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 0x803, len(part), 28, 28) + pixels)
        labels = bytes(row % 10 for row in part)
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, len(part)) + labels)
    return path / "in"


SOURCES = [with_paths, with_one_path_for_all, without_names, with_ids, shards, webdataset, fashion_mnist]


def described(store: RecordStore) -> dict[str, tuple[int, str, bytes]]:
    """id -> key, split and image."""
    rows = np.arange(len(store))
    split = {row: name for name in SPLITS for row in store.split(name).tolist()}
    records = zip(store.ids(rows), store.keys.tolist(), store.encoded(rows), strict=True)
    return {id: (key, split[row], image) for row, (id, key, image) in enumerate(records)}


@pytest.fixture
def files(pictures, request: pytest.FixtureRequest) -> list[bytes | np.ndarray]:
    if request.node.callspec.params.get("write") is fashion_mnist:
        return [pictures.array(28, 28, 1) for _ in range(COUNT)]
    return [pictures.png() for _ in range(COUNT)]


def imported(write: Write, folder: Path, rows: Rows, files: Sequence, **options: object) -> RecordStore:
    folder.mkdir()
    held_out = {split: count for split, count in HELD_OUT.items() if write is not fashion_mnist or split != "test"}
    return RecordStore.open(import_records(write(folder, rows, files), folder / "s", **(held_out | options)).path)


@pytest.mark.parametrize("write", SOURCES, ids=lambda write: write.__name__)
def test_one_record_less_renames_and_moves_no_other(tmp_path: Path, files: list, write: Write) -> None:
    """Removed are training records and held-out ones, and with one of them the only record of a class."""
    everyone = list(range(COUNT))
    whole = described(imported(write, tmp_path / "whole", everyone, files))
    assert len(whole) >= COUNT
    by_split = {split: [id for id, (_, of, _) in whole.items() if of == split] for split in SPLITS}
    for number, removed in enumerate((0, 3, 31, COUNT - 1)):
        less = described(imported(write, tmp_path / f"less{number}", [r for r in everyone if r != removed], files))
        [gone] = whole.keys() - less.keys()
        assert less.keys() <= whole.keys()
        for id, (key, _, image) in less.items():
            assert (key, image) == (whole[id][0], whole[id][2])
            assert [key % workers for workers in range(1, 9)] == [whole[id][0] % workers for workers in range(1, 9)]
        moved = [id for id, (_, split, _) in less.items() if split != whole[id][1]]
        if gone in by_split["train"]:
            assert moved == []  # the held-out records are those of before
        training = {id for id, (_, split, _) in less.items() if split == "train"}
        assert training < set(by_split["train"]) and len(by_split["train"]) - len(training) == 1


def test_packing_anew_renames_no_record_that_is_named_by_content(tmp_path: Path, pictures) -> None:
    files = [pictures.png() for _ in range(9)]
    ids = []
    for number, size in enumerate((2, 5)):
        folder = tmp_path / str(number)
        folder.mkdir()
        for start in range(0, len(files), size):
            (folder / str(start)).mkdir()
            webdataset(folder / str(start), range(start, min(start + size, 9)), files).rename(folder / f"{start:03}.tar")
            (folder / str(start)).rmdir()
        store = RecordStore.open(import_records(folder, tmp_path / f"s{number}", id="content").path)
        ids.append(set(store.ids(np.arange(9))))
    assert ids[0] == ids[1]


@pytest.mark.parametrize("write", [with_one_path_for_all, without_names], ids=lambda write: write.__name__)
def test_equal_records_are_counted_and_one_less_is_one_less(tmp_path: Path, pictures, write: Write) -> None:
    if write is without_names:  # equal in all that is stored

        def write(path: Path, rows: Rows, files: Sequence[bytes]) -> Path:
            pq.write_table(parquet(rows, files, None, text=[f"{row % 5}" for row in rows]), path / "x.parquet")
            return path / "x.parquet"

    pictures = [pictures.png() for _ in range(5)]
    files = [pictures[row % 5] for row in range(20)]
    paths = {"validation": 0, "test": 0}
    whole = described(imported(write, tmp_path / "a", range(20), files, **paths))
    less = described(imported(write, tmp_path / "b", [*range(2), *range(3, 20)], files, **paths))
    assert len(whole) == 20 and less.items() < whole.items() and len(less) == 19


def test_all_that_is_stored_of_a_record_is_in_its_name(tmp_path: Path, pictures) -> None:
    file, other = pictures.png(), pictures.png()
    rows = {
        "image": [file, other, file, file, file, file],
        "text": ["a", "a", "b", "a", "a", "a"],
        "label": ["x", "x", "x", "y", "x", "x"],
        "pid": ["p", "p", "p", "p", "q", "p"],
        "fetched": ["Monday"] * 5 + ["Friday"],  # not stored
    }
    pq.write_table(pa.table(rows), tmp_path / "x.parquet")
    ids = RecordStore.open(import_records(tmp_path / "x.parquet", tmp_path / "s").path).ids(np.arange(6))
    assert len(set(ids[:5])) == 5 and ids[5] == f"{ids[0]}+2"


@pytest.mark.parametrize("column", ["id", "Image ID", "file_name", "image_path", "uuid"])
def test_a_column_of_names_is_taken_and_refused_when_it_repeats(tmp_path: Path, pictures, column: str) -> None:
    files = [pictures.png() for _ in range(4)]
    pq.write_table(parquet(range(4), files, lambda row: "p", **{column: ["a", "b", "c", "d"]}), tmp_path / "x.parquet")
    report = import_records(tmp_path / "x.parquet", tmp_path / "s")
    assert RecordStore.open(report.path).ids(np.arange(4)) == [f"train/{name}" for name in "abcd"] and not report.unused
    pq.write_table(parquet(range(4), files, None, **{column: ["a", "b", "c", "b"]}), tmp_path / "y.parquet")
    with pytest.raises(UserError, match="'train/b'.*record-id-twice"):
        import_records(tmp_path / "y.parquet", tmp_path / "t")
    store = RecordStore.open(import_records(tmp_path / "y.parquet", tmp_path / "t", id="content").path)
    assert len(set(store.ids(np.arange(4)))) == 4 and all(id.startswith("train/") for id in store.ids(np.arange(4)))
