from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dpfed.data.store.record import RecordInput
from dpfed.data.store.records import RecordStore, open_or_write
from dpfed.data.store.writing import StoreWriter
from dpfed.errors import UserError


def write(path: Path, records: list[RecordInput], **options: object) -> StoreWriter:
    with StoreWriter(path, **{"name": "x", "kind": "image", "size": 8} | options) as writer:
        for record in records:
            writer.add(record)
    return writer


def test_a_failing_writer_leaves_nothing(tmp_path: Path, pictures) -> None:
    with pytest.raises(RuntimeError), StoreWriter(tmp_path / "s", name="x", kind="image", size=8) as writer:
        for row in range(1500):
            writer.add(RecordInput(str(row), pictures.array(8, 8)))
        raise RuntimeError("the importer failed")
    assert list(tmp_path.iterdir()) == []


def test_an_existing_destination_is_never_overwritten(tmp_path: Path, pictures) -> None:
    (tmp_path / "s").mkdir()
    with pytest.raises(UserError, match="file-exists"):
        write(tmp_path / "s", [RecordInput("a", pictures.array())])
    assert list((tmp_path / "s").iterdir()) == [] and list(tmp_path.iterdir()) == [tmp_path / "s"]


def test_duplicate_ids_are_refused_by_name(tmp_path: Path, pictures) -> None:
    with pytest.raises(UserError, match="'twin'.*record-id-twice"):
        write(tmp_path / "s", [RecordInput(id, pictures.array()) for id in ("single", "twin", "other", "twin")])
    assert list(tmp_path.iterdir()) == []


def broken_records(pictures) -> list[RecordInput]:
    jpeg, png = pictures.jpeg(40, 40), pictures.png(40, 40)
    wrong = {
        "truncated.jpg": jpeg[: len(jpeg) // 2],
        "truncated.png": png[: len(png) // 2],
        "text.png": b"<html>not found</html>",
        "empty.jpg": b"",
        "float": np.zeros((4, 4, 3)),
        "flat": np.zeros((0, 4), np.uint8),
        "postscript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n",
    }
    right = [RecordInput(f"good{row}", pictures.array()) for row in range(20)]
    return right[:10] + [RecordInput(id, image) for id, image in wrong.items()] + right[10:]


@pytest.mark.parametrize("size", [8, None])
def test_broken_images_are_refused_with_their_count_and_names(tmp_path: Path, pictures, size: int | None) -> None:
    with pytest.raises(UserError, match=r"7 of 27 .*truncated\.jpg.*--skip-broken.*record-unreadable"):
        write(tmp_path / "s", broken_records(pictures), size=size)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("size", [8, None])
def test_broken_images_are_skipped_and_listed(tmp_path: Path, pictures, size: int | None) -> None:
    records = broken_records(pictures)
    writer = write(tmp_path / "s", records, size=size, skip_broken=True)
    names = [record.id for record in records[10:17]]
    store = RecordStore.open(tmp_path / "s")
    assert [id for id, _ in writer.broken] == names and store.skipped == writer.broken
    assert [entry["id"] for entry in json.loads((tmp_path / "s" / "store.json").read_text())["skipped"]] == names
    assert store.ids(np.arange(len(store))) == [f"good{row}" for row in range(20)]
    assert store.images(np.arange(20), 8).shape == (20, 3, 8, 8)


def test_records_without_a_caption_are_no_image_text_records(tmp_path: Path, pictures) -> None:
    records = [RecordInput("good", pictures.array(), (" a cat ", "")), RecordInput("bad", pictures.array(), (" ",))]
    with pytest.raises(UserError, match="bad.*record-unreadable"):
        write(tmp_path / "s", records, kind="image-text")
    write(tmp_path / "s", records, kind="image-text", skip_broken=True)
    assert RecordStore.open(tmp_path / "s").captions([0]) == [["a cat"]]


@pytest.mark.parametrize(
    "wrong", [{"labels": {"digit": 3}}, {"labels": {"colour": 0}}, {"split": "training"}, {"captions": ("a cat",)}]
)
def test_what_the_store_does_not_know_is_refused(tmp_path: Path, pictures, wrong: dict[str, object]) -> None:
    with pytest.raises((ValueError, UserError), match="'a'"):
        write(tmp_path / "s", [RecordInput("a", pictures.array(), **wrong)], label_names={"digit": ["0", "1", "2"]})


@pytest.mark.parametrize("captions", [None, 7, "a cat", (b"a cat",), iter(("a cat",))])
def test_captions_that_are_no_texts_are_refused(tmp_path: Path, pictures, captions) -> None:
    with pytest.raises(UserError, match="'a'.*record-captions"):
        write(tmp_path / "s", [RecordInput("a", pictures.array(), captions)], kind="image-text")


def held_out(path: Path, ids: list[str], count: int, pictures) -> set[str]:
    with StoreWriter(path, name="x", kind="image", size=8) as writer:
        for id in ids:
            writer.add(RecordInput(id, pictures.array(8, 8)))
        writer.add(RecordInput("tested", pictures.array(8, 8), split="test"))
        writer.hold_out(count, "validation")
    store = RecordStore.open(path)
    assert store.ids(store.split("test")) == ["tested"]
    assert len(store.split("train")) == len(ids) - count
    return set(store.ids(store.split("validation")))


def test_held_out_records_are_exact_in_number_in_any_order(tmp_path: Path, pictures) -> None:
    ids = [f"r{row}" for row in range(300)]
    chosen = held_out(tmp_path / "a", ids, 40, pictures)
    assert len(chosen) == 40
    assert held_out(tmp_path / "b", ids[::-1], 40, pictures) == chosen
    assert held_out(tmp_path / "c", ids, 20, pictures) < chosen
    spread = sorted(int(id[1:]) for id in chosen)
    assert spread[0] < 60 and spread[-1] > 240  # not the first ones


@pytest.mark.parametrize("split", ["train", "tests", None])
def test_records_are_held_out_for_a_held_out_split_only(tmp_path: Path, pictures, split) -> None:
    with pytest.raises(ValueError, match="'validation', 'test'"), StoreWriter(tmp_path / "s", name="x", kind="image") as writer:
        writer.add(RecordInput("a", pictures.array(8, 8)))
        writer.hold_out(1, split)
    assert not (tmp_path / "s").exists()


def test_open_or_write_writes_once(tmp_path: Path, pictures) -> None:
    calls = []

    def make(path: Path) -> None:
        calls.append(path)
        write(path, [RecordInput("a", pictures.array())])

    keys = [open_or_write(tmp_path / "s", make).keys.tolist() for _ in range(3)]
    assert len(calls) == 1 and keys[0] == keys[1] == keys[2]
