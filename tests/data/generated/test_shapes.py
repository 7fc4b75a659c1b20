from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from dpfed.data.generated.shapes import BACKGROUNDS, COLORS, RELATIONS, SHAPES, SIZES, shapes_store, write_shapes
from dpfed.data.store.records import RecordStore

CAPTION = re.compile(
    rf"a ({'|'.join(SIZES)}) ({'|'.join(COLORS)}) ({'|'.join(SHAPES)}) ({'|'.join(RELATIONS)}) "
    rf"a ({'|'.join(SIZES)}) ({'|'.join(COLORS)}) ({'|'.join(SHAPES)}) on a ({'|'.join(BACKGROUNDS)}) background"
)
MIRRORED = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> RecordStore:
    return shapes_store(1500, tmp_path_factory.mktemp("stores"), validation=600, test=3000)


def parsed(store: RecordStore, rows: np.ndarray) -> list[tuple[str, ...]]:
    matches = [CAPTION.fullmatch(caption) for [caption] in store.captions(rows)]
    return [match.groups() for match in matches]


@pytest.mark.long
def test_generated_once_and_reused(store: RecordStore) -> None:
    stamp = (store.path / "store.json").stat().st_mtime_ns
    again = shapes_store(1500, store.path.parent, validation=600, test=3000)
    assert (again.path / "store.json").stat().st_mtime_ns == stamp
    assert store.public and store.kind == "image-text" and store.name == "shapes"
    assert [len(store.split(split)) for split in ("train", "validation", "test")] == [1500, 600, 3000]


@pytest.mark.long
def test_a_seed_gives_the_same_bytes_for_any_number_of_records(tmp_path: Path, store: RecordStore) -> None:
    write_shapes(tmp_path / "same", 700, 20, 600)
    write_shapes(tmp_path / "twin", 700, 20, 600)
    write_shapes(tmp_path / "other", 700, 20, 600, seed=1)
    for name in ("records.arrow", "index.arrow", "store.json"):
        assert (tmp_path / "same" / name).read_bytes() == (tmp_path / "twin" / name).read_bytes()
    smaller, other = RecordStore.open(tmp_path / "same"), RecordStore.open(tmp_path / "other")
    for split in ("train", "validation", "test"):
        rows = smaller.split(split)
        full = store.split(split)[: len(rows)]
        assert smaller.ids(rows) == store.ids(full) and smaller.captions(rows) == store.captions(full)
        assert torch.equal(smaller.images(rows, 32), store.images(full, 32))
        assert smaller.captions(rows) != other.captions(rows)


def test_the_bytes_never_change(store: RecordStore) -> None:
    # Published figures rest on these records: a change of the generator needs a new version number in the folder's name.
    [caption] = store.captions([0])
    assert caption == ["a small red square left of a small orange circle on a gray background"]
    assert int(store.images(np.arange(100), 32).long().sum()) == 34_688_390


@pytest.mark.parametrize("split", ["validation", "test"])
def test_held_out_scenes_are_unique(store: RecordStore, split: str) -> None:
    scenes = parsed(store, store.split(split))
    assert len(set(scenes)) == len(scenes)
    mirrored = {(*scene[4:7], MIRRORED[scene[3]], *scene[:3], scene[7]) for scene in scenes}
    assert not mirrored & set(scenes)  # "A left of B" would be true of the picture of "B right of A"


def test_pictures_show_what_the_captions_say(store: RecordStore) -> None:
    rows = np.arange(600)
    images = store.images(rows, 32).permute(0, 2, 3, 1).numpy().astype(float)
    axis = np.arange(32) + 0.5
    for image, (_, first, _, relation, _, second, _, background) in zip(images, parsed(store, rows), strict=True):
        edge = np.median(np.concatenate([image[0], image[-1]]), axis=0)
        grounds = np.array(list(BACKGROUNDS.values()))
        assert list(BACKGROUNDS)[np.abs(grounds - edge).sum(axis=1).argmin()] == background
        if first == second:
            continue
        palette = np.array([COLORS[first], COLORS[second], edge])
        nearest = np.linalg.norm(image[:, :, None] - palette, axis=-1).argmin(axis=-1)
        centers = [((nearest == i) * axis).sum() / (nearest == i).sum() for i in (0, 1)]
        heights = [((nearest == i) * axis[:, None]).sum() / (nearest == i).sum() for i in (0, 1)]
        along = centers if relation.endswith("of") else heights
        assert (along[0] < along[1]) == (relation in ("left of", "above"))


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RecordStore]:
    folder = tmp_path_factory.mktemp("halves")
    return {half: shapes_store(800, folder, test=900, half=half) for half in ("all", "first", "second")}


@pytest.mark.long
def test_halves_use_the_first_and_the_last_four_colors(halves: dict[str, RecordStore]) -> None:
    assert {store.name for store in halves.values()} == {"shapes", "shapes-first", "shapes-second"}
    assert len({store.path for store in halves.values()}) == 3
    for half, colors in (("first", list(COLORS)[:4]), ("second", list(COLORS)[4:]), ("all", list(COLORS))):
        store = halves[half]
        scenes = parsed(store, np.arange(len(store)))
        assert {scene[1] for scene in scenes} == {scene[5] for scene in scenes} == set(colors)
        assert [list(COLORS)[number] for number in store.labels["color"]] == [scene[1] for scene in scenes]
        counts = np.bincount([colors.index(scene[1]) for scene in scenes])
        assert counts.min() > 0.7 * counts.mean()
