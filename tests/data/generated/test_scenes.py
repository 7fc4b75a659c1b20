from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from dpfed.config import DataConfig
from dpfed.data.generated.scenes import scenes_store
from dpfed.data.store.record import RecordInput
from dpfed.data.store.records import RecordStore
from dpfed.data.store.writing import StoreWriter

CLASSES = ["airplane", "fire_truck", "cat", "owl", "dog", "horse"]
COUNTS = {"train": 403, "validation": 30, "test": 12_000}
SIDE = 4


def color(row: int) -> tuple[int, int, int]:
    """Tells every image of the labelled store from the others."""
    return row % 251, row // 251, 7


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> RecordStore:
    path = tmp_path_factory.mktemp("labelled") / "things"
    splits = [split for split, count in COUNTS.items() for _ in range(count)]
    rng = np.random.default_rng(0)
    with StoreWriter(path, name="things", kind="image", size=SIDE, label_names={"class": CLASSES}) as writer:
        for row, split in enumerate(splits):
            label = -1 if row % 50 == 0 else int(rng.integers(len(CLASSES)))
            picture = np.full((SIDE, SIDE, 3), color(row), np.uint8)
            writer.add(RecordInput(f"{row}.png", picture, labels={"class": label}, split=split))
    return RecordStore.open(path)


@pytest.fixture(scope="module")
def scenes(labelled: RecordStore, tmp_path_factory: pytest.TempPathFactory) -> dict[str, RecordStore]:
    folder = tmp_path_factory.mktemp("stores")
    halves = ("all", "first", "second")
    return {half: scenes_store(DataConfig(source="scenes", stores=str(folder), half=half), lambda: labelled) for half in halves}


def cells(store: RecordStore, indices: np.ndarray) -> np.ndarray:
    """The labelled indices of the four images of each scene, read from the pixels: ``(n, 4)``."""
    pixels = store.images(indices, 2 * SIDE).numpy().reshape(len(indices), 3, 2, SIDE, 2, SIDE)
    assert (pixels == pixels[:, :, :, :1, :, :1]).all()  # every image is whole, and where it should be
    first = pixels[:, :, :, 0, :, 0].reshape(len(indices), 3, 4).astype(int)
    assert (first[:, 2] == 7).all()
    return first[:, 0] + 251 * first[:, 1]


def things(caption: str) -> list[str]:
    match = re.fullmatch(r"(an?) (.+) and (an?) (.+) above (an?) (.+) and (an?) (.+)", caption)
    return [f"{article} {noun}" for article, noun in zip(match.groups()[::2], match.groups()[1::2], strict=True)]


@pytest.mark.long
@pytest.mark.parametrize("half", ["all", "first", "second"])
def test_captions_name_the_images_classes_in_reading_order(labelled, scenes, half: str) -> None:
    indices = np.arange(len(scenes[half]))
    said = {"airplane": "an airplane", "fire_truck": "a fire truck", "owl": "an owl"}
    for images, [caption] in zip(cells(scenes[half], indices), scenes[half].captions(indices), strict=True):
        names = [CLASSES[labelled.labels["class"][row]] for row in images]
        assert things(caption) == [said.get(name, f"a {name}") for name in names]


@pytest.mark.parametrize("half", ["all", "first", "second"])
def test_no_image_is_in_two_scenes_and_none_leaves_its_split(labelled, scenes, half: str) -> None:
    store = scenes[half]
    images = cells(store, np.arange(len(store)))
    assert len(np.unique(images)) == images.size
    for split in COUNTS:
        assert np.isin(cells(store, store.split(split)), labelled.split(split)).all()


@pytest.mark.parametrize("half", ["all", "first", "second"])
def test_held_out_captions_differ_and_are_at_most_a_thousand(scenes, half: str) -> None:
    for split in ("validation", "test"):
        captions = [caption for [caption] in scenes[half].captions(scenes[half].split(split))]
        assert 0 < len(captions) == len(set(captions)) <= 1000
    # 12,000 images are about 2,940 scenes; of the 6^4 = 1,296 captions they meet all but exp(-2.27), more than a thousand.
    assert len(scenes["all"].split("test")) == 1000


def test_scenes_are_put_together_once_and_alike_everywhere(labelled, scenes, tmp_path: Path) -> None:
    store = scenes["all"]
    stamp = (store.path / "store.json").stat().st_mtime_ns
    again = scenes_store(DataConfig(source="scenes", stores=str(store.path.parent)), lambda: labelled)
    assert (again.path, (again.path / "store.json").stat().st_mtime_ns) == (store.path, stamp)
    other = scenes_store(DataConfig(source="scenes", stores=str(tmp_path)), lambda: labelled)
    for name in ("records.arrow", "index.arrow"):
        assert (other.path / name).read_bytes() == (store.path / name).read_bytes()
    ours, theirs = (json.loads((one.path / "store.json").read_text()) for one in (store, other))
    keyed = ours.pop("contents"), theirs.pop("contents")  # the fingerprint of private records has a random key
    assert ours == theirs and keyed[0] != keyed[1]
