"""Maps and confusions: of public records only, the same figures as the evaluation's, and kept as they were."""

import json

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from dpfed.config import parse_config
from dpfed.data.store.records import RecordStore
from dpfed.errors import UserError
from dpfed.evaluation.features import Embedder
from dpfed.evaluation.zero_shot import confusions, zero_shot_right
from dpfed.report.gallery import CHARTS, Gallery
from dpfed.report.pictures import build_gallery
from dpfed.report.places import most_frequent, places_of
from dpfed.report.plots import map_plot
from dpfed.runs.pretraining import pretrain

NEVER_IN_PRIVATE = ("<img", "Nearest neighbours", "Where the model places records", "Zero-shot classes", "Search by text")


def tokenizer(texts):
    return torch.zeros(len(texts), 1, dtype=torch.int64)


def embedder(model, read):
    return Embedder(model, read, torch.Tensor.float, tokenizer, "cpu")


@pytest.fixture
def gallery(model, make_store, config):
    store = make_store()
    untrained = type(model)()
    untrained.features = lambda images: images.flatten(1)[:, :5]
    return build_gallery(embedder(model, store.read), store, store.read, config, embedder(untrained, store.read))


def run_of(tiny, shapes, folder, public):
    """A run on a copy of the records that says whether they are public."""
    store = folder / "store"
    store.mkdir()
    for file in shapes.path.iterdir():
        (store / file.name).write_bytes(file.read_bytes())
    header = json.loads((store / "store.json").read_text())
    (store / "store.json").write_text(json.dumps({**header, "public": public}))
    assert RecordStore.open(store).public == public
    tiny["data"] |= {"path": str(store)}
    tiny["evaluation"] = {"tasks": ["retrieval", "zero_shot"], "records": 60}
    return pretrain(parse_config(tiny), folder / "run")


@pytest.mark.long
def test_a_private_run_shows_no_record(tiny, shapes, tmp_path):
    run = run_of(tiny, shapes, tmp_path, public=False)
    page = run.report.read_text(encoding="utf-8")
    assert not any(text in page for text in NEVER_IN_PRIVATE)
    assert not run.gallery.exists()
    assert not [file for file in run.path.rglob("*") if file.suffix in (".png", ".jpg", ".npy") or file.name == CHARTS]


@pytest.mark.long
def test_a_public_run_shows_both_models(tiny, shapes, tmp_path):
    run = run_of(tiny, shapes, tmp_path, public=True)
    page, shown = run.report.read_text(encoding="utf-8"), Gallery.read(run.gallery)
    assert all(text in page for text in NEVER_IN_PRIVATE)
    assert "Nearest neighbours before and after training" in page
    assert [one.label for one in shown.confusions] == [one.label for one in shown.maps]
    lines = [line["evaluation"] for line in run.metric_lines() if "evaluation" in line]
    for one in shown.confusions:
        for which, counts in (("untrained", one.before), ("trained", one.after)):
            figures = [
                line["value"] for line in lines if line["model"] == which and line["name"] == f"zero_shot_accuracy[{one.label}]"
            ]
            assert figures == [pytest.approx(np.trace(counts) / np.sum(counts))]


def test_the_diagonal_is_the_accuracy_and_rows_the_classes():
    generator = torch.Generator().manual_seed(0)
    images, labels = torch.randn(200, 6, generator=generator), torch.randint(5, (200,), generator=generator)
    classes = normalize(torch.randn(5, 6, generator=generator), dim=1)
    counts = confusions(images, classes, labels)
    assert int(counts.trace()) == int(zero_shot_right(images, classes, labels)["zero_shot_accuracy"].sum())
    assert counts.sum(dim=1).tolist() == labels.bincount(minlength=5).tolist()
    chosen = (normalize(images, dim=1) @ classes.T).argmax(dim=1)
    expected = [[int(((labels == a) & (chosen == b)).sum()) for b in range(5)] for a in range(5)]
    assert counts.tolist() == expected


def test_a_tie_is_no_right_answer():
    counts = confusions(torch.ones(3, 2), normalize(torch.ones(2, 2), dim=1), torch.tensor([0, 1, 1]))
    assert counts.tolist() == [[0, 1], [2, 0]]


def test_charts_are_read_as_they_were_written(gallery, tmp_path):
    gallery.write(tmp_path)
    assert Gallery.read(tmp_path) == gallery
    assert gallery.maps[0].before != gallery.maps[0].after and len(gallery.maps[0].after) == 20
    (tmp_path / CHARTS).unlink()  # a run of an earlier dpfed
    assert Gallery.read(tmp_path).sections == gallery.sections


@pytest.mark.parametrize("damage", [{"maps": []}, {"maps": [{"label": "x"}], "confusions": []}, []])
def test_damaged_charts_are_the_users_to_mend(gallery, tmp_path, damage):
    gallery.write(tmp_path)
    (tmp_path / CHARTS).write_text(json.dumps(damage))
    with pytest.raises(UserError, match="report-gallery-damaged"):
        Gallery.read(tmp_path)


@pytest.mark.filterwarnings("ignore:Could not find the number of physical cores")
def test_a_map_puts_alike_records_together():
    near = torch.randn(40, 8, generator=torch.Generator().manual_seed(1)) * 0.01
    near[:20, 0] += 1
    near[20:, 1] += 1
    places = np.array(places_of(near))
    assert places_of(near) == tuple(map(tuple, places.tolist()))  # the same picture again
    of_first = np.linalg.norm(places - places[0], axis=1)
    assert of_first[1:20].max() < of_first[20:].min()
    assert set(places_of(torch.ones(15, 3))) == {(0.5, 0.5)}


def test_the_most_frequent_classes_stay():
    labels = np.array([3, 3, 1, -1, -1, -1, 0, 0, 0])
    assert most_frequent(labels, 5, 2) == [0, 3]
    assert most_frequent(labels, 5, 5) == [0, 1, 3]  # no record has class 2 or 4


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("letters", [1, 10, 20, 40, 300])
def test_a_map_keeps_its_place_beside_names_of_any_length(letters):
    names = [f"{number}{'x' * (letters - 1)}" for number in range(10)]
    canvas = map_plot([(0.1 * number, 0.5) for number in range(11)], range(-1, 10), names)
    canvas.draw_without_rendering()
    (axes,) = canvas.axes
    box, legend = axes.get_window_extent(), axes.get_legend().get_window_extent()
    assert box.height > 2 * canvas.dpi and legend.x0 >= 0 and legend.x1 <= canvas.bbox.x1
