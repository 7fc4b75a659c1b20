"""Pictures: of public records only, found again on disk as they were, and the right ones."""

import io
import json

import numpy as np
import pytest
import torch
from PIL import Image

from dpfed.errors import UserError
from dpfed.evaluation.features import Embedder
from dpfed.report.gallery import Gallery
from dpfed.report.pictures import build_gallery


def tokenizer(texts):
    return torch.zeros(len(texts), 1, dtype=torch.int64)


def embedder(model, read):
    return Embedder(model, read, torch.Tensor.float, tokenizer, "cpu")


@pytest.fixture
def gallery(model, make_store, config):
    store = make_store()
    return build_gallery(embedder(model, store.read), store, store.read, config)


def test_a_private_store_gives_no_picture_and_is_not_read(model, make_store, config):
    store = make_store(public=False)
    assert build_gallery(embedder(model, store.read), store, store.read, config) is None


def test_no_more_records_are_read_than_are_evaluated(model, make_store, config):
    store, read = make_store(), []
    few = config.model_copy(update={"evaluation": config.evaluation.model_copy(update={"records": 7})})

    def counted(rows):
        read.append(len(rows))
        return store.read(rows)

    build_gallery(embedder(model, counted), store, counted, few)
    assert max(read) == 7


def test_neighbours_are_the_nearest_by_cosine(gallery, make_store):
    strips = next(part for part in gallery.sections if part.title == "Nearest neighbours").strips
    pictures = make_store().images(np.arange(10, 30), 8)
    x = pictures.flatten(1).double()
    x = x / x.norm(dim=1, keepdim=True)
    for query, strip in enumerate(strips):
        expected = [i for i in (x @ x[query]).argsort(descending=True).tolist() if i != query][:6]
        for index, tile in zip([query, *expected], strip.tiles, strict=True):
            drawn = np.asarray(Image.open(io.BytesIO(tile.png)))
            np.testing.assert_array_equal(drawn, pictures[index].permute(1, 2, 0).numpy())


@pytest.mark.parametrize("damage", ["gallery.json", "000.png"])
def test_damage_is_the_users_to_mend(gallery, tmp_path, damage):
    gallery.write(tmp_path)
    (tmp_path / damage).unlink()
    with pytest.raises(UserError, match="report-gallery-damaged"):
        Gallery.read(tmp_path)


@pytest.mark.parametrize("text", ['{"maps": [], "confusions": [[]]}', "[" * 100_000, "INFINITE"])
def test_charts_that_nobody_could_write_are_damage(tmp_path, text):
    Gallery(()).write(tmp_path)
    charts = {"label": "shape", "names": ["a"], "after": [[1e999]], "before": []}
    (tmp_path / "charts.json").write_text(json.dumps({"maps": [], "confusions": [charts]}) if text == "INFINITE" else text)
    with pytest.raises(UserError, match="report-gallery-damaged"):
        Gallery.read(tmp_path)


def test_an_index_cannot_lead_out_of_its_folder(gallery, tmp_path):
    (tmp_path / "secret.png").write_bytes(b"secret")
    gallery.write(tmp_path / "gallery")
    index = tmp_path / "gallery" / "gallery.json"
    index.write_text(index.read_text().replace("000.png", "../secret.png"))
    with pytest.raises(UserError, match="report-gallery-damaged"):
        Gallery.read(tmp_path / "gallery")
