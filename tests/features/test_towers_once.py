"""A run measures several models with the same frozen towers: each record goes through them once, and no figure changes."""

import functools

import pytest
import torch

from dpfed.config import parse_config
from dpfed.evaluation.features import Embedder
from dpfed.features.extraction import FeatureCache
from dpfed.features.towers_once import TowersOnce
from dpfed.models.parameters import TrainableVector
from dpfed.privacy.randomness import Randomness
from dpfed.runs.build import build
from tests.frozen_towers import frozen


@pytest.fixture
def parts(tiny, tmp_path):
    return build(parse_config(frozen(tiny, tmp_path, cached=2)), Randomness.from_seed(5))


def whole(parts, model):
    views = parts.views
    return Embedder(model, functools.partial(views.read, parts.store), views.images.plain, views.tokenizer, "cpu")


def once(parts, folder=None):
    return TowersOnce(parts.store, parts.views, FeatureCache(folder))


@pytest.fixture
def passed(parts, monkeypatch):
    """How many images went through the image tower."""
    seen, forward = [], type(parts.model.image_encoder).forward

    def counted(self, images):
        seen.append(len(images))
        return forward(self, images)

    monkeypatch.setattr(type(parts.model.image_encoder), "forward", counted)
    return seen


@pytest.mark.long
def test_features_and_embeddings_are_those_of_the_whole_model(parts):
    one, other, rows = once(parts).embedder(parts.model), whole(parts, parts.model), parts.store.split("test")[[3, 1, 2]]
    texts = [*(captions[0] for captions in parts.store.captions(rows)), "of no record", "of no record"]
    assert torch.allclose(one.features(rows), other.features(rows), atol=1e-5)
    assert torch.allclose(one.images(rows), other.images(rows), atol=1e-5)
    assert torch.allclose(one.texts(texts), other.texts(texts), atol=1e-5)
    vector = TrainableVector(parts.model)
    vector.assign(vector.gather() + 0.1)  # training goes on
    assert torch.allclose(one.images(rows), other.images(rows), atol=1e-5)
    assert torch.allclose(one.texts(texts), other.texts(texts), atol=1e-5)


def test_a_record_goes_through_the_towers_once_whatever_model_is_measured(parts, passed):
    towers, rows = once(parts), parts.store.split("test")
    first = towers.embedder(parts.model).features(rows)
    count = len(passed)
    assert count
    assert torch.equal(towers.embedder(parts.model).features(rows), first)
    towers.embedder(parts.model).images(rows)
    assert len(passed) == count


@pytest.mark.long
def test_models_with_other_towers_get_their_own_features(parts):
    towers, rows = once(parts), parts.store.split("test")
    first = towers.embedder(parts.model).features(rows)
    with torch.no_grad():
        for parameter in parts.model.image_encoder.parameters():
            parameter.mul_(1.5)
    second = towers.embedder(parts.model).features(rows)
    assert not torch.allclose(first, second, rtol=0.01)
    assert torch.allclose(second, whole(parts, parts.model).features(rows), atol=1e-4)


def test_a_trained_tower_is_asked_each_time(parts):
    parts.model.requires_grad_(True)
    assert type(once(parts).embedder(parts.model)) is Embedder
