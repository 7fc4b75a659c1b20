"""`dpfed embed` and `dpfed search` say what `dpfed.load` says, of stores and of files."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import dpfed as library
from dpfed.config import parse_config
from dpfed.data.store.record import RecordInput
from dpfed.data.store.writing import StoreWriter
from dpfed.runs.pretraining import pretrain
from tests.models.conftest import SMALL

WORDS = "a large red circle"
FEW = {
    "privacy": {"epsilon": 8.0, "accountant": "rdp", "batch": 16, "steps": 1},
    "evaluation": {"split": "none", "tasks": [], "every": 0},
}


@pytest.fixture
def run_of(tiny, tiny_moments, tmp_path):
    """A finished run of a kind of model."""

    def made(kind):
        tree = tiny_moments | {"evaluation": FEW["evaluation"]} if kind == "moments" else tiny | FEW
        if kind == "image":
            tree |= {"model": {"kind": "image", "width": 8}, "objective": {"name": "infonce"}}
        if kind == "open_clip":
            (tmp_path / "small.json").write_text(json.dumps(SMALL))
            tree |= {"model": {"kind": kind, "architecture": str(tmp_path / "small.json")}}
            tree["data"] = {name: value for name, value in tree["data"].items() if name != "size"}
        return pretrain(parse_config(tree), tmp_path / kind).path

    return made


@pytest.mark.long
@pytest.mark.parametrize("kind", ["image-text", "open_clip", "moments"])
def test_features_and_answers_are_those_of_the_loaded_model(run_of, kind, public_store, dpfed, tmp_path):
    run, out = run_of(kind), tmp_path / "features.parquet"
    encoder, rows = library.load(run), np.arange(len(public_store))
    how = encoder.preprocessing
    images = public_store.images(rows, encoder.size, how.resize, how.interpolation)
    for option, expected in ((), encoder.features(images)), (("--contrast",), encoder.embed_images(images)):
        code, shown, error = dpfed("embed", run, public_store.path, "--out", out, *option)
        assert code == 0 and "as private as they are" in shown, error
        table = pq.read_table(out)
        assert table.column_names == ["name", "features"] and table["name"].to_pylist() == public_store.ids(rows)
        features = torch.tensor(np.stack(table["features"].to_numpy()))
        assert features.dtype == torch.float32 and torch.allclose(features, expected.cpu(), atol=1e-5)
        assert out.stat().st_mode & 0o077 == 0
        out.unlink()
    code, shown, error = dpfed("search", run, WORDS, "--pictures", public_store.path, "--top", 3)
    assert code == 0, error
    best = (encoder.embed_images(images) @ encoder.embed_text(WORDS)[0]).cpu().topk(3)
    lines = [line.split() for line in shown.splitlines()[-3:]]
    assert [name for _, name in lines] == public_store.ids(best.indices.numpy())
    assert np.allclose([float(cosine) for cosine, _ in lines], best.values, atol=1e-3)


@pytest.fixture
def pictures(tmp_path):
    """A folder of two pictures and a text."""
    folder = tmp_path / "pictures"
    (folder / "deep").mkdir(parents=True)
    for place, colour in (("b.png", "red"), ("deep/a.png", "blue")):
        Image.new("RGB", (24, 20), colour).save(folder / place)
    (folder / "notes.txt").write_text("no picture")
    return folder


@pytest.mark.long
def test_files_and_folders_are_embedded_and_mistakes_refused(run_of, pictures, dpfed, tmp_path):
    run, out = run_of("image"), tmp_path / "features.parquet"
    code, shown, error = dpfed("embed", run, pictures / "b.png", pictures, "--out", out)
    assert code == 0 and "3 x " in shown, error
    places = [pictures / "b.png", pictures / "b.png", pictures / "deep" / "a.png"]
    table = pq.read_table(out)
    assert table["name"].to_pylist() == [str(place) for place in places]
    expected = library.load(run).features([Image.open(place) for place in places])
    assert np.allclose(np.stack(table["features"].to_numpy()), expected, atol=1e-5)
    (tmp_path / "broken.png").write_bytes(b"no picture")
    (tmp_path / "empty").mkdir()
    for words, sentence in (
        (("embed", run, pictures, "--out", out), "[file-exists]"),
        (("embed", run, tmp_path / "broken.png", "--out", tmp_path / "new"), "[image-unreadable]"),
        (("embed", run, tmp_path / "empty", "--out", tmp_path / "new"), "[image-nothing]"),
        (("embed", run, tmp_path / "gone", "--out", tmp_path / "new"), "[image-path-missing]"),
        (("search", run, WORDS, "--pictures", pictures), "model-folder-no-text"),
        (("embed", run, pictures, "--weights", "", "--out", tmp_path / "new"), "[embed-no-model]"),
        (("embed", "--model", "", pictures, "--out", tmp_path / "new"), "[tower-name]"),
        (("embed", "--model", "timm/resnet18", "--weights", "", pictures, "--out", tmp_path / "new"), "[tower-no-weights]"),
    ):
        code, _, error = dpfed(*words)
        assert code == 2 and sentence in error and len(error.splitlines()) == 1
    assert not (tmp_path / "new").exists()


def test_names_of_private_records_are_not_printed(run_of, dpfed, tmp_path):
    with StoreWriter(tmp_path / "private", name="private", kind="image", size=16, public=False) as writer:
        writer.add(RecordInput("patient-17", np.zeros((16, 16, 3), np.uint8), split="train"))
    code, shown, error = dpfed("search", run_of("image-text"), WORDS, "--pictures", tmp_path / "private")
    assert code == 2 and "search-store-private" in error and "patient" not in shown + error


@pytest.mark.parametrize("text", ["", " "])
def test_an_empty_text_is_not_searched_for(dpfed, text):
    code, _, error = dpfed("search", "run", text)
    assert code == 2 and "[search-no-text]" in error
