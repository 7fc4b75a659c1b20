"""Imports by several processes: the same store, however many there are."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import signal
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from dpfed.data.importers import import_records, pieces, webdataset
from dpfed.data.processes import Processes
from dpfed.data.store.fingerprint import contents_of, splits_of
from dpfed.data.store.records import RecordStore
from dpfed.errors import UserError

SHARDS, EACH = 5, 12


@pytest.fixture(autouse=True)
def small_volumes(monkeypatch):
    """Every piece is a volume."""
    monkeypatch.setattr(pieces, "_SMALLEST", 1)
    monkeypatch.setattr(webdataset, "_WORTH_A_PROCESS", 1)


def jpeg(number: int) -> bytes:
    buffer = io.BytesIO()
    pixels = np.random.default_rng(number).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def archive(path: Path, numbers: range, **files: bytes) -> Path:
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for number in numbers:
            members = {"png": jpeg(number), "txt": f"picture {number}".encode(), "cls": str(number % 3).encode(), **files}
            members["json"] = json.dumps({"person_id": number // 4}).encode()
            for kind, content in members.items():
                entry = tarfile.TarInfo(f"{number:05}.{kind}")
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
    return path


@pytest.fixture
def archives(tmp_path: Path) -> Path:
    for shard in range(SHARDS):
        archive(tmp_path / "in" / f"{shard:05}.tar", range(EACH * shard, EACH * (shard + 1)))
    return tmp_path / "in"


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """Parquet without names: records 7, 8 and 9 are in every file, some of them twice."""
    (tmp_path / "in").mkdir()
    for number in range(4):
        rows = [7, 100 * number, 8, 100 * number + 1, 7, 9][: 5 + number % 2]
        table = pa.table({"image": [jpeg(row) for row in rows], "text": [f"picture {row}" for row in rows]})
        pq.write_table(table, tmp_path / "in" / f"{number}.parquet", row_group_size=2)
    return tmp_path / "in"


def everything(path: Path) -> dict[str, str]:
    """All files of a store, by name."""
    files = (file for file in sorted(path.rglob("*")) if file.is_file())
    return {str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def imported(source: Path, dest: Path, **options) -> RecordStore:
    import_records(source, dest, public=True, **options)
    assert not list(dest.parent.glob(f".{dest.name}*"))
    store = RecordStore.open(dest)
    assert store.contents == contents_of(store, None).fingerprint(splits_of(store))
    return store


def test_a_store_does_not_depend_on_the_number_of_workers(archives: Path, tmp_path: Path) -> None:
    alone = imported(archives, tmp_path / "alone", validation=7)
    assert everything(imported(archives, tmp_path / "two", validation=7, workers=2).path) == everything(alone.path)
    assert len(list(alone.path.glob("records-*.arrow"))) == SHARDS


@pytest.mark.parametrize("kind", ["archives", "tables"])
def test_it_holds_what_an_import_in_one_volume_holds(request, tmp_path: Path, monkeypatch, kind: str) -> None:
    source = request.getfixturevalue(kind)
    many = imported(source, tmp_path / "many", validation=7)
    monkeypatch.setattr(pieces, "_SMALLEST", 1 << 30)
    one = imported(source, tmp_path / "one", validation=7)
    assert [file.name for file in one.path.glob("records*")] == ["records.arrow"] and many.contents == one.contents
    rows = np.arange(len(one))
    assert many.ids(rows) == one.ids(rows) and many.encoded(rows) == one.encoded(rows)
    assert np.array_equal(many.keys, one.keys) and np.array_equal(many.split("validation"), one.split("validation"))
    assert all(np.array_equal(many.labels[name], one.labels[name]) for name in one.labels)


def test_equal_records_are_named_apart_across_volumes(tables: Path, tmp_path: Path) -> None:
    store = imported(tables, tmp_path / "s")
    ids = store.ids(np.arange(len(store)))
    texts = [texts[0] for texts in store.captions(np.arange(len(store)))]
    of = {text: sorted(id.partition("+")[2] for id, own in zip(ids, texts, strict=True) if own == text) for text in set(texts)}
    assert of["picture 7"] == ["", "2", "3", "4", "5", "6", "7", "8"] and of["picture 9"] == ["", "2"]


def test_a_name_in_two_archives_is_refused(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        archive(tmp_path / "in" / "x.tar", range(3))
        (tmp_path / "in" / folder).mkdir()
        shutil.move(tmp_path / "in" / "x.tar", tmp_path / "in" / folder / "x.tar")
    with pytest.raises(UserError, match="several data sets|occurs twice"):
        import_records(tmp_path / "in", tmp_path / "s", workers=2)


def test_a_process_that_dies_ends_the_import_in_words_and_nothing_is_lost(archives: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="ended by SIGKILL"):
        list(Processes(2).each(_die_at_two, range(4)))
    with pytest.raises(OSError, match="disk"):
        list(Processes(2).each(_fail, range(4)))


def _die_at_two(number: int, tell: object) -> int:
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def _fail(number: int, tell: object) -> int:
    raise OSError(28, "disk full")


def test_a_damaged_archive_in_the_middle_is_refused_and_nothing_is_left(archives: Path, tmp_path: Path) -> None:
    whole = (archives / "00002.tar").read_bytes()
    (archives / "00002.tar").write_bytes(whole[:9000])
    with pytest.raises(UserError, match=r"1 of \d+ records cannot be read: archive .*00002"):
        import_records(archives, tmp_path / "s", public=True, workers=2)
    assert [file.name for file in tmp_path.iterdir()] == ["in"]
