"""A public tower by its name: features are those that a run computes once, bit by bit, whoever stands beside a record."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import dpfed as library
from dpfed.config import ModelConfig, parse_config
from dpfed.data.named_pictures import PictureFiles
from dpfed.errors import UserError
from dpfed.features.parquet import write_features
from dpfed.features.public_tower import public_text_tower, public_tower
from dpfed.privacy.randomness import Randomness
from dpfed.runs.build import build
from tests.frozen_towers import frozen, image_weights, text_folder


@pytest.fixture
def towers(tmp_path):
    return image_weights(tmp_path), text_folder(tmp_path)


@pytest.mark.long
def test_files_hold_what_a_run_on_the_store_reads(tiny_moments, towers, shapes, dpfed, tmp_path):
    kept = {name: tiny_moments[name] for name in ("name", "data", "training")}
    tree = frozen(kept, tmp_path) | {
        "evaluation": {"split": "none"},
        "bounding": {"method": "moments", "options": {"basis": "random"}},
    }
    del tree["adaptation"], tree["views"], tree["model"]["embedding"]
    tree["data"] = {name: value for name, value in tree["data"].items() if name != "size"}
    parts = build(parse_config(tree | {"privacy": {"epsilon": 8.0}}), Randomness.from_seed(3))
    rows = parts.store.split("train")
    maker = parts.learner.views.maker(parts.learner.model, parts.learner.records, rows)
    views = maker(rows, Randomness.from_seed(0), 0, torch.device("cpu"))
    images, texts = towers
    given = "--model", "timm/test_resnet", "--weights", images
    code, shown, error = dpfed("embed", *given, shapes.path, "--split", "train", "-o", tmp_path / "x.parquet")
    assert code == 0 and f"{len(rows)} x " in shown, error
    code, _, error = dpfed("embed", "--model", texts, shapes.path, "--split", "train", "-o", tmp_path / "y.npy")
    assert code == 0, error
    table, array = pq.read_table(tmp_path / "x.parquet"), np.load(tmp_path / "y.npy")
    assert table["name"].to_pylist() == parts.store.ids(rows)
    assert np.array_equal(np.stack(table["features"].to_numpy()), views["image"][:, 0].numpy())
    assert array.dtype == np.float32 and np.array_equal(array, views["text"][:, 0].numpy())
    assert (tmp_path / "y.npy").stat().st_mode & 0o077 == 0
    cca = library.PrivateCCA(epsilon=3).fit(tmp_path / "x.parquet", tmp_path / "y.npy")
    assert cca.n_features_in_ == views["image"].shape[-1] and cca.n_features_y_ == 16


@pytest.mark.long
def test_pictures_in_a_folder_need_no_store(towers, dpfed, tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for number, colour in enumerate(("red", "blue", "green")):
        Image.new("RGB", (50 + number, 40), colour).save(folder / f"{number}.png")
    given = "--model", "timm/test_resnet", "--weights", towers[0]
    code, _, error = dpfed("embed", *given, folder, "--out", tmp_path / "all.npy")
    assert code == 0, error
    code, _, error = dpfed("embed", *given, folder / "1.png", "--out", tmp_path / "one.npy")
    assert code == 0 and np.array_equal(np.load(tmp_path / "one.npy")[0], np.load(tmp_path / "all.npy")[1]), error
    for words, code_of in (
        ((*given, "--captions", folder), "[embed-captions]"),
        (("--model", towers[1], folder), "[embed-captions]"),
        ((*given, folder, "--split", "train"), "[image-split]"),
        ((*given, "--contrast", folder), "[embed-contrast]"),
        (("--model", "resnet18", folder), "[tower-name]"),
        (("--model", "nothing", folder), "[tower-name]"),
        (("--model", "timm/nothing", folder), "[automatic-no-weights]"),
        (("--model", towers[1], "--weights", "some", folder), "[tower-text-weights]"),
        ((*given, "x" * 300), "[path-too-long]"),
        ((folder,), "[embed-files]"),
        ((folder, "--captions", folder), "[embed-no-model]"),
    ):
        code, _, error = dpfed("embed", *words, "--out", tmp_path / "new.npy")
        assert code == 2 and code_of in error and len(error.splitlines()) == 1, words
    assert not (tmp_path / "new.npy").exists()


def test_captions_need_a_text_tower(towers):
    tower = public_tower(ModelConfig(image="timm/test_resnet", weights=towers[0]))
    assert tower.reads_images and not tower.reads_text
    with pytest.raises(UserError, match="tower-no-text"):
        tower.captions([["a"]])
    text = public_text_tower(towers[1])
    with pytest.raises(UserError, match="no image tower.*tower-no-images"):
        text.images(torch.zeros(1, 3, 32, 32, dtype=torch.uint8))
    both = text.captions([["a small red circle", "a blue square"], ["a blue square"]])
    alone = text.captions([["a small red circle"]])
    assert not text.reads_images and torch.equal(both[1], text.captions([["a blue square"]])[0])
    torch.testing.assert_close(both[0], (alone[0] + both[1]) / 2)


@pytest.mark.parametrize("name", ["x.npy", "x.parquet"])
def test_a_file_has_no_bytes_that_were_not_written(name, tmp_path):
    """A hole, as a memory map makes, is filled later: on a disk that is full by then, the process would end without a word."""
    pictures, vectors = PictureFiles([tmp_path / str(number) for number in range(200)]), torch.randn(200, 1000)

    def batches():
        for part in np.split(np.arange(200), 4):
            begun = [file for file in tmp_path.rglob(name) if file.is_file()]
            assert sum(file.stat().st_size for file in begun) <= part[0] * 8100
            yield part, vectors[part]

    assert write_features(tmp_path / name, pictures, batches()) == 1000
    file = tmp_path / name
    array = np.load(file) if name.endswith("npy") else np.stack(pq.read_table(file)["features"].to_numpy())
    assert array.dtype == np.float32 and np.array_equal(array, vectors.numpy())
