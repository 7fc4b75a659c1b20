"""Procedural images: a function of seed, split and number, with statistics near those of photographs and true captions."""

import re
import subprocess
import sys

import numpy as np
import pytest
import torch

from dpfed.config import DataConfig
from dpfed.data.generated.dead_leaves import COLORS, PLACES, SHAPES, TEXTURES, draw
from dpfed.data.generated.procedural import procedural_store
from dpfed.data.opening import open_records

THING = rf"a (large|small) ({'|'.join(TEXTURES)}) ({'|'.join(COLORS)}) ({'|'.join(SHAPES)})"
CAPTION = re.compile(rf"{THING} ({'|'.join(PLACES)}) {THING} on (many|some) ({'|'.join(COLORS)}) ({'|'.join(SHAPES)})s")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return procedural_store(300, tmp_path_factory.mktemp("stores"), 32, test=60)


def test_another_process_draws_the_same_pictures():
    code = (
        "from dpfed.data.generated.dead_leaves import draw; import hashlib\n"
        "for size in (16, 32, 64):\n"
        "    for n in (0, 7, 10**6): p = draw(3, 2, n, size); print(hashlib.sha256(p.pixels).hexdigest(), p[1:])"
    )
    one, two = (subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout for _ in range(2))
    assert one == two and len(set(one.splitlines())) == 9


@pytest.mark.long
def test_a_record_does_not_depend_on_how_many_there_are(store, tmp_path):
    smaller = procedural_store(40, tmp_path, 32, test=20)
    for split in ("train", "test"):
        rows = smaller.split(split)
        same = store.split(split)[: len(rows)]
        assert smaller.ids(rows) == store.ids(same) and smaller.captions(rows) == store.captions(same)
        assert torch.equal(smaller.images(rows, 32), store.images(same, 32))
    picture = draw(0, 0, 17, 32)
    row = store.split("train")[17:18]
    assert store.ids(row) == ["train/17"] and store.captions(row) == [[picture.caption]]
    assert np.array_equal(store.images(row, 32)[0].permute(1, 2, 0), picture.pixels)


def test_seeds_splits_and_numbers_have_pictures_of_their_own():
    drawn = [draw(*place, 32).pixels.astype(float) for place in ((0, 0, 0), (1, 0, 0), (0, 2, 0), (0, 0, 1))]
    assert all(np.abs(a - b).mean() > 5 for i, a in enumerate(drawn) for b in drawn[:i])


@pytest.mark.long
def test_generated_once_public_and_of_the_published_version(store):
    again = procedural_store(300, store.path.parent, 32, test=60)
    assert again.path == store.path and store.public and store.kind == "image-text" and store.name == "procedural"
    assert [len(store.split(split)) for split in ("train", "validation", "test")] == [300, 0, 60]
    # A change of the generator needs a new VERSION. Another processor may round a sine otherwise.
    [caption] = store.captions(np.array([0]))
    assert caption == ["a small shaded yellow polygon below a small plain green rectangle on some purple ellipses"]
    assert int(store.images(np.arange(100), 32).long().sum()) == pytest.approx(36_239_417, abs=2000)


def test_captions_say_what_is_in_front_and_held_out_ones_differ(store):
    said = [CAPTION.fullmatch(caption).groups() for [caption] in store.captions(np.arange(len(store)))]
    for number, words in enumerate(said):
        assert words[1] == TEXTURES[store.labels["texture"][number]] and words[3] == SHAPES[store.labels["shape"][number]]
        assert words[2] == list(COLORS)[store.labels["color"][number]]
    held_out = [said[row] for row in store.split("test")]
    assert len(set(held_out)) == len(held_out)
    for place, options in ((1, TEXTURES), (2, COLORS), (3, SHAPES), (4, PLACES)):
        assert {words[place] for words in said} == set(options)


def test_a_configuration_opens_them_in_the_size_of_its_model(tmp_path):
    opened = open_records(DataConfig(source="procedural", records=16, size=12, stores=str(tmp_path)))
    assert opened.size == 12 and [len(opened.split(split)) for split in ("train", "test")] == [16, 16]
    large = procedural_store(4, tmp_path, 300, test=0)
    assert large.size == 224 and large.images(np.arange(4), 300).shape == (4, 3, 300, 300)
