from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dpfed.data.generated.shapes import write_shapes
from dpfed.data.store.record import RecordInput, record_key
from dpfed.data.store.records import RecordStore
from dpfed.data.store.writing import StoreWriter
from dpfed.errors import UserError

COUNT = 2500  # more than two batches


@pytest.fixture(scope="module")
def arrays() -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (COUNT, 8, 8, 3), dtype=np.uint8)


def record(row: int, image: object, **more: object) -> RecordInput:
    split = ("train", "validation", "test")[row % 3]
    return RecordInput(f"r{row}", image, (f"picture {row}", "again")[: 1 + row % 2], {"digit": row % 10}, split, **more)


@pytest.fixture(scope="module", params=[8, None], ids=["raw", "encoded"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, arrays: np.ndarray) -> RecordStore:
    path = tmp_path_factory.mktemp("stores") / "store"
    names = {"digit": [str(digit) for digit in range(10)]}
    with StoreWriter(path, name="demo", kind="image-text", size=request.param, label_names=names) as writer:
        for row, image in enumerate(arrays):
            writer.add(record(row, image))
    return RecordStore.open(path)


def test_round_trip(store: RecordStore, arrays: np.ndarray) -> None:
    indices = np.arange(COUNT)
    assert len(store) == COUNT and store.name == "demo" and store.kind == "image-text" and not store.public
    assert store.ids(indices) == [f"r{row}" for row in indices]
    assert store.captions(indices[:2]) == [["picture 0"], ["picture 1", "again"]]
    assert torch.equal(store.images(indices, 8), torch.from_numpy(arrays).permute(0, 3, 1, 2))
    assert np.array_equal(store.labels["digit"], indices % 10)
    assert [len(store.split(split)) for split in ("train", "validation", "test")] == [834, 833, 833]
    assert np.array_equal(store.split("test"), indices[indices % 3 == 2])
    assert store.keys.dtype == np.uint64 and len(set(store.keys.tolist())) == COUNT


@pytest.mark.parametrize("size", [8, 5])
def test_random_access_equals_sequential(store: RecordStore, size: int) -> None:
    indices = np.random.default_rng(0).integers(0, COUNT, 700)
    assert torch.equal(store.images(indices, size), store.images(np.arange(COUNT), size)[torch.from_numpy(indices)])
    captions, ids = store.captions(np.arange(COUNT)), store.ids(np.arange(COUNT))
    assert store.captions(indices) == [captions[row] for row in indices]
    assert store.ids(indices) == [ids[row] for row in indices]


def test_ids_and_keys_do_not_depend_on_other_records(tmp_path: Path, arrays: np.ndarray) -> None:
    stores = []
    for name, left_out in (("all", ()), ("fewer", (0, 5, 17))):
        with StoreWriter(tmp_path / name, name="x", kind="image", size=8) as writer:
            for row in set(range(50)).difference(left_out):
                writer.add(RecordInput(f"r{row}", arrays[row]))
        stores.append(RecordStore.open(tmp_path / name))
    keys = [dict(zip(part.ids(np.arange(len(part))), part.keys.tolist(), strict=True)) for part in stores]
    assert len(keys[1]) == 47 and keys[1].items() <= keys[0].items()
    assert keys[0]["r3"] == record_key("r3")


def scene(width: int, height: int) -> Image.Image:
    """Smooth colours with an edge on each axis, so that a shift of a pixel shows."""
    x, y = np.meshgrid(np.linspace(0, 1, width), np.linspace(0, 1, height))
    channels = [128 + 100 * np.sin(9 * x + 5 * y), 255 * (x > 0.4), 255 * (y > 0.7)]
    return Image.fromarray(np.stack(channels, axis=2).astype(np.uint8))


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize(("resize", "mode"), [("crop", "shortest"), ("squash", "squash"), ("pad", "longest")])
def test_images_become_square_as_in_open_clip(tmp_path: Path, pictures, resize: str, mode: str, interpolation: str) -> None:
    transform = pytest.importorskip("open_clip.transform").image_transform
    sides = [(640, 427), (75, 201), (40, 40), (31, 20), (333, 12), (64, 64)]
    files = [pictures.encoded(np.asarray(scene(*side)), format) for side in sides for format in ("PNG", "JPEG")]
    with StoreWriter(tmp_path / "s", name="x", kind="image") as writer:
        for row, file in enumerate(files):
            writer.add(RecordInput(str(row), file))
    ours = RecordStore.open(tmp_path / "s").images(np.arange(len(files)), 64, resize, interpolation).float()
    oracle = transform(64, is_train=False, mean=(0, 0, 0), std=(1, 1, 1), resize_mode=mode, interpolation=interpolation)
    theirs = torch.stack([255 * oracle(Image.open(io.BytesIO(file))) for file in files])
    assert (ours - theirs).abs().mean(dim=(1, 2, 3)).max() < 2
    assert (ours - theirs)[::2].abs().max() <= 1  # without the reduced decoding of JPEGs, to the pixel


@pytest.mark.long
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_one_row_of_a_big_store_does_not_read_the_rest(tmp_path: Path) -> None:
    image = np.random.default_rng(0).integers(0, 256, (128, 128, 3), dtype=np.uint8)
    with StoreWriter(tmp_path / "big", name="x", kind="image", size=128) as writer:
        for row in range(2000):
            writer.add(RecordInput(str(row), image))
    megabytes = (tmp_path / "big" / "records.arrow").stat().st_size / 2**20
    assert megabytes > 90

    def resident() -> float:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

    before = resident()
    store = RecordStore.open(tmp_path / "big")
    store.images([1234], 128)
    assert resident() - before < megabytes / 4
    for start in range(0, 2000, 100):  # the control: reading everything does show
        store.images(np.arange(start, start + 100), 128)
    assert resident() - before > megabytes / 2


def damaged(store: Path, how: str) -> None:
    records, index, header = store / "records.arrow", store / "index.arrow", store / "store.json"
    if how == "truncated records":
        os.truncate(records, records.stat().st_size // 2)
    elif how == "missing index":
        index.unlink()
    elif how == "overwritten records":
        records.write_bytes(bytes(records.stat().st_size))
    elif how == "overwritten index":
        index.write_bytes(b"\xff" * index.stat().st_size)
    elif how == "truncated header":
        os.truncate(header, 30)
    elif how == "foreign header":
        header.write_text("[1, 2]")
    elif how == "nonsense header":
        header.write_text(json.dumps(json.loads(header.read_text()) | {"files": 3}))
    elif how == "no fingerprint":
        fields = json.loads(header.read_text())
        del fields["contents"]
        header.write_text(json.dumps(fields))
    elif how == "wrong count":
        header.write_text(json.dumps(json.loads(header.read_text()) | {"records": 7}))
    elif how == "not a store":
        header.unlink()


TABLES = ["truncated records", "missing index", "overwritten records", "overwritten index"]
HEADERS = ["truncated header", "foreign header", "nonsense header", "no fingerprint", "wrong count", "not a store"]


@pytest.mark.parametrize("how", TABLES + HEADERS)
def test_damaged_stores_are_refused(tmp_path: Path, pictures, how: str) -> None:
    path = tmp_path / "s"
    with StoreWriter(path, name="x", kind="image", size=8) as writer:
        writer.add(RecordInput("a", pictures.array()))
    RecordStore.open(path)
    damaged(path, how)
    with pytest.raises(UserError, match=f"{path} .*store-(damaged|not-one)"):
        RecordStore.open(path)


@pytest.mark.parametrize("version", [2, 3, 4, 99])
def test_a_store_of_another_format_is_refused_in_a_sentence(tmp_path: Path, pictures, version: int) -> None:
    with StoreWriter(tmp_path / "s", name="x", kind="image", size=8) as writer:
        writer.add(RecordInput("a", pictures.array()))
    header = tmp_path / "s" / "store.json"
    header.write_text(json.dumps(json.loads(header.read_text()) | {"dpfed_store": version}))
    with pytest.raises(UserError, match=f"format {version}, .* format 5.*store-format"):
        RecordStore.open(tmp_path / "s")


@pytest.mark.parametrize(
    "counts", [{"train": 2, "validation": 0, "test": 0}, {"train": 1}, {"train": 0, "validation": 1, "other": 0}]
)
def test_splits_that_cannot_be_are_damage(tmp_path: Path, pictures, counts: dict[str, int]) -> None:
    with StoreWriter(tmp_path / "s", name="x", kind="image", size=8) as writer:
        writer.add(RecordInput("a", pictures.array()))
    header = tmp_path / "s" / "store.json"
    header.write_text(json.dumps(json.loads(header.read_text()) | {"splits": counts}))
    with pytest.raises(UserError, match="store-damaged"):
        RecordStore.open(tmp_path / "s")


def test_a_file_that_rotted_is_named(tmp_path: Path, pictures) -> None:
    file = pictures.jpeg(40, 40)
    with StoreWriter(tmp_path / "s", name="x", kind="image") as writer:
        writer.add(RecordInput("fine.jpg", pictures.jpeg()))
        writer.add(RecordInput("rotten.jpg", file))
    records = tmp_path / "s" / "records.arrow"
    records.write_bytes(records.read_bytes().replace(file, bytes(len(file))))
    store = RecordStore.open(tmp_path / "s")
    store.images([0], 8)
    with pytest.raises(UserError, match="rotten.jpg.*store-image"):
        store.images([0, 1], 8)


@pytest.mark.parametrize("size", [0, -1, 4097, 26_755, 2**31, 2**70, True, 8.0, "8"])
def test_a_header_with_an_impossible_size_is_refused(tmp_path, size):
    write_shapes(tmp_path / "store", train=16, validation=0, test=0)
    place = tmp_path / "store" / "store.json"
    header = json.loads(place.read_text())
    header["images"]["size"] = size
    place.write_text(json.dumps(header))
    with pytest.raises(UserError, match="images.size.*store-damaged"):
        RecordStore.open(tmp_path / "store")
