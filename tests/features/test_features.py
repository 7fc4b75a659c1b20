"""Features of frozen towers: those of the model, each of its record alone, kept where only the owner reads them, then gone."""

import math
import stat

import numpy as np
import pytest
import torch
from torch import nn

from dpfed.config import parse_config
from dpfed.errors import UserError
from dpfed.features import cache, passes
from dpfed.features.extraction import FeatureCache
from dpfed.features.towers import from_features, frozen_towers
from dpfed.models.parameters import TrainableVector
from dpfed.privacy.randomness import Randomness
from dpfed.progress import Silent
from dpfed.runs.build import build
from dpfed.runs.pretraining import pretrain
from tests.frozen_towers import frozen
from tests.training.records_of_worker import keep_only

SECRET = Randomness.from_seed(5)


def parts_of(tree):
    return build(parse_config(tree), SECRET)


@pytest.fixture
def parts(tiny, tmp_path):
    return parts_of(frozen(tiny, tmp_path, crop_scale=[0.5, 1.0], cached=2))


def features_of(parts, rows, folder, count=0, progress=None):
    kept = FeatureCache(folder, progress or Silent())
    return kept.features(parts.model, parts.views, parts.store, rows, count)


def files(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.mark.long
def test_they_are_the_models_own(parts, tmp_path):
    rows = parts.store.split("train")[:70]
    features = features_of(parts, rows, tmp_path / "kept")
    (shard,) = features.shards()
    expected = parts.model.eval().features(parts.views.images.plain(parts.views.read(parts.store, rows)))
    assert torch.allclose(shard.image[:, 0], expected, atol=1e-5)
    for row, mean in zip(rows, shard.text_means, strict=True):
        tokens = parts.views.tokenizer(parts.store.captions(np.array([row]))[0])
        assert torch.allclose(mean, parts.model.text_features(tokens).mean(0), atol=1e-5)
    positions = features.positions(rows[[5, 3]])
    assert torch.equal(features.images(positions, np.zeros((2, 1), int))[:, 0], shard.image[[5, 3], 0])
    assert torch.equal(features.text_means(positions), shard.text_means[[5, 3]])


def test_a_records_features_are_a_function_of_that_record_alone(parts, tmp_path):
    rows = parts.store.split("train")[:150]
    whole = features_of(parts, rows, tmp_path / "kept", count=2)
    fewer = features_of(parts, np.delete(rows, 4), tmp_path / "kept", count=2)
    both = np.delete(rows, 4)
    order = np.tile([0, 1], (len(both), 1))
    assert torch.equal(whole.images(whole.positions(both), order), fewer.images(fewer.positions(both), order))
    assert torch.equal(whole.text_means(whole.positions(both)), fewer.text_means(fewer.positions(both)))
    assert not torch.equal(*whole.images(np.arange(9), np.tile([0, 1], (9, 1))).unbind(1)), "views differ"


def test_a_tower_that_mixes_records_gets_one_at_a_time(parts, tmp_path, monkeypatch):
    class Mixes(nn.Module):
        features_dim = 3

        def forward(self, images):
            return (images - images.mean(0)).mean((2, 3)) + images.mean((2, 3))

    parts.model.image_encoder, rows = Mixes(), parts.store.split("train")[:5]
    (shard,) = features_of(parts, rows, tmp_path / "kept").shards()
    alone = [next(features_of(parts, rows[k : k + 1], tmp_path / "kept").shards()).image for k in range(5)]
    assert torch.equal(shard.image, torch.cat(alone))


@pytest.mark.long
def test_an_interrupted_computation_goes_on(parts, tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "SHARD", 16)
    monkeypatch.setattr(passes, "_IN_A_PASS", {"cpu": 8})
    rows, done = parts.store.split("train")[:40], []

    class Killed(Silent):
        def stage(self, name, total):
            def advance(count):
                done.append(count)
                if count == 24:
                    raise KeyboardInterrupt

            return advance

    with pytest.raises(KeyboardInterrupt):
        features_of(parts, rows, tmp_path / "kept", progress=Killed())
    assert len(files(tmp_path / "kept")) == 1 and done == [8, 16, 16, 24]
    read, count = parts.store.pictures.squares, []
    monkeypatch.setattr(parts.store.pictures, "squares", lambda rows, *rest: count.append(len(rows)) or read(rows, *rest))
    features = features_of(parts, rows, tmp_path / "kept")
    assert sum(count) == 24 + 1  # and one for the shape of images
    whole = features_of(parts, rows, tmp_path / "elsewhere")
    assert all(torch.equal(a.image, b.image) for a, b in zip(features.shards(), whole.shards(), strict=True))
    _, path, last = sorted(files(tmp_path / "kept"))
    for harm in (path.read_bytes()[:-5], last.read_bytes()):  # cut short; another shard's, of fewer records
        path.write_bytes(harm)
        again = list(features_of(parts, rows, tmp_path / "kept").shards())
        assert torch.equal(again[1].image, list(whole.shards())[1].image)


def test_only_the_owner_reads_them_and_they_go(parts, tmp_path):
    rows = parts.store.split("train")[:5]
    with features_of(parts, rows, tmp_path / "kept"):
        for path in (tmp_path / "kept").rglob("*"):
            assert stat.S_IMODE(path.stat().st_mode) == (0o600 if path.is_file() else 0o700)
    assert not files(tmp_path / "kept")
    with pytest.raises(ZeroDivisionError), features_of(parts, rows, tmp_path / "kept"):
        1 / 0  # noqa: B018
    assert files(tmp_path / "kept")


@pytest.mark.parametrize("what", ["image weights", "text weights", "views", "a view's settings", "records"])
def test_they_are_named_by_all_that_they_depend_on(what, parts, tmp_path):
    rows, views = parts.store.split("train")[:5], 2
    features_of(parts, rows, tmp_path / "kept", views)
    features_of(parts, rows, tmp_path / "kept", views)
    assert len(files(tmp_path / "kept")) == 1
    with torch.no_grad():
        if what == "image weights":
            next(parts.model.image_encoder.buffers()).add_(1)
        if what == "text weights":
            next(parts.model.text_encoder.backbone.parameters()).add_(1)
    if what == "a view's settings":
        parts.views.images.config = parts.views.images.config.model_copy(update={"crop_scale": (0.6, 1.0)})
    rows, views = rows[:4] if what == "records" else rows, 1 if what == "views" else views
    features_of(parts, rows, tmp_path / "kept", views)
    assert len(files(tmp_path / "kept")) == 2


def test_one_record_ends_no_run_and_damaged_weights_do(parts, tmp_path):
    rows = parts.store.split("train")[:5]
    whole, marked = parts.model.image_encoder, parts.views.images.plain(parts.views.read(parts.store, rows[2:3]))

    class Fails(nn.Module):
        features_dim = whole.features_dim

        def forward(self, images):
            return torch.where(((images - marked).abs().amax((1, 2, 3)) == 0)[:, None], math.nan, whole(images))

    parts.model.image_encoder = Fails()
    (shard,) = features_of(parts, rows, tmp_path / "kept").shards()
    assert [bool(row.any()) for row in shard.image] == [True, True, False, True, True] and shard.image.isfinite().all()
    next(whole.parameters()).data.fill_(math.nan)
    with pytest.raises(UserError, match="features-finite"):
        features_of(parts, rows, tmp_path / "elsewhere")


@pytest.mark.long
@pytest.mark.parametrize("engine", ["loop", "layerwise"])
def test_training_on_them_is_training_on_images(engine, tiny, tmp_path):
    """Without random views both see the same: through the towers, and from features."""
    tree = frozen(tiny, tmp_path, cached=1)
    tree["bounding"] |= {"engine": engine, "clip_norm": 0.01}
    cached = parts_of(tree)
    tree["views"], tree["bounding"]["engine"] = {}, "loop"
    plain = parts_of(tree)
    sums = [parts.learner.worker(SECRET).bounded_sum(1).numbers() for parts in (cached, plain)]
    assert len(sums[0]) == TrainableVector(cached.model).numel and sums[0].any()
    assert (sums[0] - sums[1]).norm() < 1e-3 * sums[1].norm()


def test_neighbours_stay_within_the_bound(parts):
    whole, rows = parts.learner.worker(SECRET), parts.store.split("train")
    for gone in whole.draw(0).indices[:4]:
        fewer = parts.learner.worker(SECRET)
        keep_only(fewer, rows[rows != gone], parts.store.keys)
        moved = (whole.bounded_sum(0).numbers() - fewer.bounded_sum(0).numbers()).norm()
        assert 0 < moved <= parts.plan.sensitivity


def test_a_model_goes_on_from_its_features(parts):
    views = {"image": torch.randn(2, 2, 3, 16, 16), "text": parts.views.tokenizer(["a red circle", "a square"])[:, None]}
    model = parts.model.eval()
    features = {
        "image": model.features(views["image"].flatten(0, 1)).unflatten(0, (2, 2)),
        "text": model.text_features(views["text"][:, 0])[:, None],
    }
    expected, embeddings = model(views), from_features(model)(features)
    assert all(torch.allclose(expected[name], embeddings[name], atol=1e-5) for name in expected)
    assert frozen_towers(model)[1::2] == (96, 16)
    model.requires_grad_(True)
    with pytest.raises(UserError, match="features-trained"):
        frozen_towers(model)


@pytest.mark.parametrize(
    ("section", "key", "value", "said"),
    [
        ("adaptation", "image", "bias", "'views.cached' has no effect .* set adaptation.image = 'frozen'"),
        ("model", "weights", None, "has BatchNorm|run-views-random"),
        ("objective", "augmentations", 2, "views.cached = 2: set 3 or more.*run-views-few"),
        ("text_views", "word_swap", 0.5, "features of the captions are computed once"),
    ],
)
def test_what_cannot_be_cached_is_refused(section, key, value, said, tiny, tmp_path):
    tree = frozen(tiny, tmp_path, cached=2)
    tree.setdefault(section, {})[key] = value
    tree["model"]["image"] = "timm/test_vit" if key == "weights" else "timm/test_resnet"
    with pytest.raises(UserError, match=said):
        pretrain(parse_config(tree), tmp_path / "run")
