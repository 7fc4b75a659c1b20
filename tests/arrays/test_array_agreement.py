"""Private moments of arrays are those of a run: on the features of its towers, both release the same bits."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import dpfed
from dpfed.config import parse_config
from dpfed.data.store.record import RecordInput
from dpfed.data.store.records import RecordStore
from dpfed.data.store.writing import StoreWriter
from dpfed.errors import Notice
from dpfed.features.extraction import FeatureCache
from dpfed.privacy.randomness import Randomness
from dpfed.report import pictures
from dpfed.runs import closed_form
from dpfed.runs.build import build
from dpfed.runs.pretraining import pretrain
from tests.frozen_towers import frozen


def digests(lines: str) -> list[str]:
    return [line["digest"] for line in map(json.loads, lines.splitlines()) if "digest" in line]


@pytest.fixture(params=["gaussian", "discrete"])
def pairs(request, tiny_moments, tmp_path, monkeypatch):
    """A run on two towers that were not trained together."""
    monkeypatch.setattr(pictures, "POOL", 8)  # a report's pictures, which take most of the time
    kept = {name: tiny_moments[name] for name in ("name", "data", "training")}
    tree = frozen(kept, tmp_path) | {"evaluation": {"split": "none"}}
    del tree["adaptation"], tree["views"], tree["model"]["embedding"]
    tree["data"] = {name: value for name, value in tree["data"].items() if name != "size"}
    tree["bounding"] = {"method": "moments", "options": {"dimensions": 12, "basis": "random"}}
    return tree | {"privacy": {"epsilon": 6.0, "seed": 3, "noise": request.param}}


def features_of(tree):
    parts = build(parse_config(tree | {"privacy": {"epsilon": 8.0}}), Randomness.from_seed(3))
    learner, rows = parts.learner, parts.store.split("train")
    maker = learner.views.maker(learner.model, learner.records, rows)
    return maker(rows, Randomness.from_seed(0), 0, torch.device("cpu"))


@pytest.mark.long
def test_two_matrices_give_the_bits_of_a_run_on_pairs(pairs, tmp_path):
    views = features_of(pairs)
    run = pretrain(parse_config(pairs), tmp_path / "run")
    cca = dpfed.PrivateCCA(epsilon=6.0, dimensions=12, noise=pairs["privacy"]["noise"], random_state=3)
    with pytest.warns(Notice, match="predictable"):
        cca.fit(views["image"][:, 0].numpy(), views["text"][:, 0].numpy())
    assert digests(cca.ledger_) == digests(run.ledger.read_text()) and len(digests(cca.ledger_)) == 2
    heads = load_file(run.model / "heads.safetensors")
    assert heads.keys() == cca.heads_.keys()
    assert all(np.array_equal(heads[name].numpy(), cca.heads_[name]) for name in heads)


@pytest.mark.long
def test_public_rows_give_the_basis_of_a_run_with_a_public_store(pairs, tmp_path):
    """The map has the same bits and the same fingerprint, and so have both releases."""
    views = features_of(pairs)
    with StoreWriter(tmp_path / "given", name="given", kind="image-text", size=16, public=True) as writer:
        for number, picture in enumerate(np.random.default_rng(5).integers(0, 255, (150, 16, 16, 3), dtype=np.uint8)):
            writer.add(RecordInput(str(number), picture, (f"a large {('red', 'blue', 'green')[number % 3]} circle",)))
    stores = {"stores": str(tmp_path / "stores")}
    options = {"dimensions": 12, "basis": "store", "layers": "last"}
    tree = pairs | {"public": {"path": str(tmp_path / "given")}, "data": pairs["data"] | stores}
    run = pretrain(parse_config(tree | {"bounding": {"method": "moments", "options": options}}), tmp_path / "run")

    parts = build(parse_config(pairs | {"privacy": {"epsilon": 8.0}}), Randomness.from_seed(3))
    store = RecordStore.open(tmp_path / "given")
    rows = store.split("train")
    rows = rows[np.argsort(store.keys[rows])]
    (shard,) = FeatureCache(tmp_path / "features").features(parts.model, parts.views, store, rows).shards()
    given = (shard.image[:, 0].numpy(), shard.text.numpy())
    cca = dpfed.PrivateCCA(
        epsilon=6.0, dimensions=12, noise=pairs["privacy"]["noise"], basis=given, random_state=3, device="cpu"
    )
    with pytest.warns(Notice, match="predictable"):
        cca.fit(views["image"][:, 0].numpy(), views["text"][:, 0].numpy())
    assert cca.basis_fingerprint_ == run.config().bounding.options["basis_digest"]
    assert digests(cca.ledger_) == digests(run.ledger.read_text()) and len(digests(cca.ledger_)) == 2
    heads = load_file(run.model / "heads.safetensors")
    assert heads.keys() == cca.heads_.keys() and "text.origin" in heads
    assert all(np.array_equal(heads[name].numpy(), cca.heads_[name]) for name in heads)


@pytest.mark.long
def test_views_of_images_give_the_bits_of_a_run_on_images(images_only, tmp_path, monkeypatch):
    monkeypatch.setattr(closed_form, "FEWEST_IMAGES", 0)  # a run of so few leaves the public tower as it is
    images_only["privacy"]["seed"] = 3
    views = features_of(images_only)
    run = pretrain(parse_config(images_only), tmp_path / "run")
    with pytest.warns(Notice, match="predictable"):
        cca = dpfed.PrivateCCA(epsilon=8.0, random_state=3).fit(views["image"].numpy())
    assert digests(cca.ledger_) == digests(run.ledger.read_text()) and len(digests(cca.ledger_)) == 2
    matrix = load_file(run.model / "heads.safetensors")["image.matrix"].numpy()
    assert np.array_equal(matrix, cca.heads_["image.matrix"])


@pytest.fixture
def images_only(tiny_moments, tmp_path):
    """A run on images alone."""
    from safetensors.torch import save_file

    from dpfed.config import ModelConfig, ObjectiveConfig
    from dpfed.models.building import build_model

    model = {"kind": "image", "width": 8, "embedding": 16}
    save_file(build_model(ModelConfig(**model), ObjectiveConfig(), size=16).state_dict(), tmp_path / "image.safetensors")
    tiny_moments["model"] = model | {"start": str(tmp_path / "image.safetensors")}
    tiny_moments["evaluation"] = {"split": "none"}
    return tiny_moments
