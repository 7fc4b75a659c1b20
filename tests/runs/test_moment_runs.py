"""Runs of private moments from end to end: what they write, resume, load, say and refuse."""

import json
import shutil

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

import dpfed
from dpfed.budgets.spending import set_budget
from dpfed.config import ModelConfig, ObjectiveConfig, parse_config
from dpfed.data.store.records import RecordStore
from dpfed.errors import UserError
from dpfed.models.building import build_model
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.randomness import Randomness
from dpfed.runs.build import build
from dpfed.runs.pretraining import pretrain, resume
from dpfed.runs.reevaluation import evaluate_run
from dpfed.training.coordinator import Coordinator
from tests.killed import killed
from tests.training.test_everything_that_leaves import names, without
from tests.training.twins import Noise, files, stores


@pytest.fixture
def images_only(tiny_moments, tmp_path):
    """The same for images alone."""
    model = {"kind": "image", "width": 8, "embedding": 16}
    save_file(build_model(ModelConfig(**model), ObjectiveConfig(), size=16).state_dict(), tmp_path / "image.safetensors")
    tiny_moments["model"] = model | {"start": str(tmp_path / "image.safetensors")}
    tiny_moments["views"] = {"crop_scale": [0.5, 1.0], "jitter": 0.5}
    tiny_moments["evaluation"] = {"split": "none"}
    return tiny_moments


@pytest.fixture(params=["pairs", "images"])
def tree(request, tiny_moments):
    return tiny_moments if request.param == "pairs" else request.getfixturevalue("images_only")


def pictures(count=5):
    return np.random.default_rng(0).integers(0, 255, (count, 16, 16, 3), dtype=np.uint8)


@pytest.mark.long
def test_a_run_is_two_releases_and_its_model_is_their_function(tree, tmp_path):
    tree["privacy"] |= {"seed": 3}
    run = pretrain(parse_config(tree), tmp_path / "run")
    privacy = json.loads(run.results.read_text())["privacy"]
    assert (privacy["method"], privacy["steps_charged"], privacy["batch"], privacy["divisor"]) == ("moments", 2, 600, 600)
    assert privacy["epsilon"] <= 8 and privacy["options"]["dimensions"] > 0
    assert not run.features.exists() and not run.releases.exists()
    encoder = dpfed.load(run.path)
    embedded = encoder.embed_images(pictures())
    assert torch.allclose(embedded.norm(dim=1), torch.ones(5)) and torch.equal(encoder.features(pictures()), embedded)
    again = pretrain(parse_config(tree), tmp_path / "again")
    assert torch.equal(dpfed.load(again.path).embed_images(pictures()), embedded)


def test_the_card_says_what_each_step_may_be_moved_by(tiny_moments, tmp_path):
    card = pretrain(parse_config(tiny_moments), tmp_path / "run").card.read_text()
    for said in (
        "one record: an image with all its captions |",
        "none: every record takes part; q = 1",
        "private moments: Towers are frozen",
        "0.223607 in step 0 and 0.974679 in step 1",
        "| Steps charged | 2 of 2 planned |",
        "dimensions = 16",
    ):
        assert said in card
    assert "chooses one of the K groups" not in card


def test_the_published_heads_are_enough_in_five_lines(tiny_moments, tmp_path):
    run = pretrain(parse_config(tiny_moments), tmp_path / "run")
    encoder, heads = dpfed.load(run.path), load_file(run.model / "heads.safetensors")
    model = encoder.model
    with torch.inference_mode():
        pixels = encoder._views.plain(torch.from_numpy(pictures()).permute(0, 3, 1, 2))
        unit = F.normalize(model.projection(model.features(pixels)) @ heads["image.projection"].T, dim=-1)
        embedding = F.normalize((unit - heads["image.centre"]) @ heads["image.matrix"], dim=-1)
    torch.testing.assert_close(embedding, encoder.embed_images(pictures()))


@pytest.mark.long
@pytest.mark.parametrize("ends", ["release", "_update"])
def test_a_run_cut_after_its_first_release_keeps_its_bits(tiny_moments, tmp_path, ends):
    tiny_moments["privacy"]["seed"] = 5
    whole = pretrain(parse_config(tiny_moments), tmp_path / "whole")
    with killed(Coordinator, ends, 2, before=False):
        pretrain(parse_config(tiny_moments), tmp_path / "run")
    run = resume(tmp_path / "run")
    one, two = (load_file(each.model / "heads.safetensors") for each in (whole, run))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert json.loads(run.results.read_text())["privacy"]["steps_charged"] == 2


@pytest.mark.long
def test_all_that_leaves_follows_from_two_noisy_sums(tiny_moments, shapes, tmp_path, monkeypatch):
    tiny_moments["privacy"] = {"noise_multiplier": 1.7, "accountant": "rdp", "seed": 3}
    noise, seen, place = Noise(monkeypatch), [], tmp_path / "place"
    for number, store in enumerate(stores(shapes, tmp_path)):
        (tmp_path / str(number)).rename(place)
        tiny_moments["data"] = {"source": "store", "path": str(place / "store"), "size": 16}
        moments = []
        noise.before = lambda moments=moments: moments.append(files(place / "run"))
        run = pretrain(parse_config(tiny_moments), place / "run")
        moments.append(files(place / "run"))
        moments = [without(names(run.identity, store), moment) for moment in moments]
        calls = noise.repeat() if number == 0 else noise.calls
        seen.append((moments, calls))
        place.rename(tmp_path / f"done-{number}")
    (first, calls), (second, others) = seen
    unit = Ledger.open(tmp_path / "done-1" / "run" / "ledger.jsonl").plan.grid_of().unit
    added = [(call.purpose, call.step, call.scale * unit) for call in calls]
    assert added == [("noise", step, pytest.approx(1.7)) for step in (0, 1)]
    assert all(not torch.equal(one.clean, two.clean) for one, two in zip(calls, others, strict=True))
    assert len(first) == len(second) == 3
    for one, two in zip(first, second, strict=True):
        private = {path for path in one.keys() | two.keys() if str(path).startswith("features/")}
        assert {path for path in one.keys() | two.keys() if one.get(path) != two.get(path)} <= private
    assert not any(str(path).startswith("features/") for path in first[-1])


def test_a_tiny_epsilon_leaves_an_aligned_model_as_it_was(tiny_moments, tmp_path, shapes):
    tiny_moments["privacy"] = {"noise_multiplier": 1e5, "seed": 1}
    before = build(parse_config(tiny_moments), Randomness.from_seed(0))
    run = pretrain(parse_config(tiny_moments), tmp_path / "run")
    pixels = before.views.images.plain(before.views.read(before.store, shapes.split("test")[:40]))
    with torch.inference_mode():
        public = before.model.embed_images(pixels)
        projected = F.normalize(before.model.projection(before.model.image_encoder(pixels)), dim=1)
    torch.testing.assert_close(public, projected)
    assert torch.isfinite(dpfed.load(run.path).model.embed_images(pixels)).all()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"bounding.options": {"dimensions": 100}}, "exceeds the smallest of the widths of the features (16 and 16)"),
        ({"training.precision": "bf16"}, "set training.precision = 'fp32'"),
        ({"model.start": None}, "this one has random weights"),
        ({"privacy.steps": 7}, "'privacy.steps' has no effect"),
        ({"optimizer": {"learning_rate": 0.1}}, "'optimizer.learning_rate' has no effect"),
        ({"diagnostics": "private"}, "is proven only for methods"),
        ({"bounding.options": {"dimension": 4}}, "dimension"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(tiny_moments, tmp_path, changes, said):
    for key, value in changes.items():
        *sections, name = key.split(".")
        node = tiny_moments
        for section in sections:
            node = node[section]
        node[name] = value
    with pytest.raises(UserError) as refused:
        pretrain(parse_config(tiny_moments), tmp_path / "run")
    assert said in str(refused.value) and not (tmp_path / "run").exists()


def test_images_alone_need_two_views(images_only, tmp_path):
    images_only["bounding"]["options"] = {"views": 1}
    with pytest.raises(UserError, match="at least two views"):
        pretrain(parse_config(images_only), tmp_path / "run")


def test_users_count_once(tiny_moments, tmp_path, shapes):
    tiny_moments["privacy"] |= {"unit": "user", "per_unit": 3}
    with pytest.raises(UserError, match="unit"):  # these records name none
        pretrain(parse_config(tiny_moments), tmp_path / "run")


def test_a_finished_run_measured_again_keeps_its_card(tiny_moments, tmp_path):
    run = pretrain(parse_config(tiny_moments), tmp_path / "run")
    before, figures = run.card.read_text(), json.loads(run.results.read_text())["evaluations"]
    evaluate_run(run.path)
    assert run.card.read_text() == before
    again = json.loads(run.results.read_text())["evaluations"]
    assert {(one["name"], one["model"], one["value"]) for one in again} == {
        (one["name"], one["model"], one["value"]) for one in figures
    }


@pytest.mark.long
def test_a_lifetime_budget_holds_two_releases(tiny_moments, tmp_path, shapes):
    store = RecordStore.open(shutil.copytree(shapes.path, tmp_path / "store"))
    set_budget(store, 9.0, 1e-3)
    tiny_moments["data"]["path"] = str(store.path)
    assert "none was set" not in pretrain(parse_config(tiny_moments), tmp_path / "run").card.read_text()
    with pytest.raises(UserError, match="has no room"):
        pretrain(parse_config(tiny_moments), tmp_path / "again")
