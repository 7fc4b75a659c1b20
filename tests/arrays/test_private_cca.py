"""PrivateCCA as scikit-learn's users know an estimator, beside scikit-learn's own CCA, which is exact."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.base import clone
from sklearn.cross_decomposition import CCA
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer
from sklearn.utils.estimator_checks import parametrize_with_checks

import dpfed
from dpfed.arrays.embedding import recall
from dpfed.errors import Notice
from tests.arrays.two_views import two_views

TRAIN = 5000


@pytest.fixture(scope="module")
def views():
    return two_views(TRAIN + 500)


def unit(z):
    return (z / np.linalg.norm(z, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize(("epsilon", "lost"), [(1, 0.05), (3, 0.03), (8, 0.03), (80, 0.02)])
@pytest.mark.parametrize("widths", [(48, 40), (48, 12)])
def test_heads_find_what_an_exact_cca_finds(epsilon, lost, widths):
    x, y = two_views(TRAIN + 500, widths)
    exact = CCA(6, max_iter=2000).fit(x[:TRAIN], y[:TRAIN])
    best = recall(*map(unit, exact.transform(x[TRAIN:], y[TRAIN:])))
    cca = dpfed.PrivateCCA(epsilon=epsilon).fit(x[:TRAIN], y[:TRAIN])
    assert cca.with_components(6).score(x[TRAIN:], y[TRAIN:]) > best - lost > 0.5
    assert cca.score(x[TRAIN:], y[TRAIN:]) > best - 0.15  # k columns, most of which hold what X and Y do not share


@pytest.mark.long
def test_the_first_components_span_the_shared_subspace():
    x, y = two_views(20_000, noise=0.5)
    cca = dpfed.PrivateCCA(epsilon=8, n_components=6).fit(x, y)
    exact = CCA(6, max_iter=2000).fit(x, y)
    z, w = cca.transform(x[:2000], y[:2000])
    assert z.shape == w.shape == (2000, 6) and z.dtype == np.float32
    for mine, theirs in zip((z, w), exact.transform(x[:2000], y[:2000]), strict=True):
        basis = np.linalg.qr(unit(theirs) - unit(theirs).mean(0))[0]
        kept = mine - mine.mean(0)
        assert np.linalg.norm(basis @ (basis.T @ kept)) / np.linalg.norm(kept) > 0.97


def test_what_a_fit_leaves(views):
    x, y = (side[:TRAIN] for side in views)
    cca = dpfed.PrivateCCA(epsilon=3, delta=1e-5)
    assert cca.fit(x, y) is cca
    assert 2.9 < cca.epsilon_ <= 3 and cca.delta_ == 1e-5 and cca.n_features_in_ == 48 and cca.n_features_y_ == 40
    assert set(cca.heads_) == {f"{side}.{part}" for side in ("image", "text") for part in ("projection", "centre", "matrix")}
    assert "(3.00, 1.00e-5)-differentially private for one record: a row of X and Y" in cca.card_
    assert "each call of `fit` spends its epsilon again" in cca.card_ and "5,000" in cca.card_
    z, w = cca.fit_transform(x, y)
    assert np.allclose(np.linalg.norm(z, axis=1), 1, atol=1e-5) and np.array_equal(cca.transform(None, y), w)
    assert np.array_equal(cca.transform(x), z)
    assert dpfed.PrivateCCA(epsilon=3).fit(x, y).delta_ == pytest.approx(1 / (TRAIN * math.log(TRAIN)))


def test_the_heads_are_enough_in_three_lines(views):
    x, y = (torch.from_numpy(side) for side in views)
    cca = dpfed.PrivateCCA(epsilon=3).fit(x[:TRAIN], y[:TRAIN])
    heads = {name: torch.from_numpy(value) for name, value in cca.heads_.items()}
    for given, side, embedded in zip((x, y), ("image", "text"), cca.transform(x, y), strict=True):
        lengths = F.normalize(given @ heads[f"{side}.projection"].T, dim=-1)
        embedding = F.normalize((lengths - heads[f"{side}.centre"]) @ heads[f"{side}.matrix"], dim=-1)
        torch.testing.assert_close(embedding, torch.from_numpy(embedded), atol=1e-5, rtol=1e-4)


def test_it_is_cloned_pickled_and_put_into_a_pipeline(views):
    x, y = views
    cca = dpfed.PrivateCCA(epsilon=3, dimensions=32)
    copy = clone(cca).set_params(epsilon=5)
    assert copy.get_params() == cca.get_params() | {"epsilon": 5} and not hasattr(copy, "heads_")
    line = make_pipeline(Normalizer(), cca).fit(x[:TRAIN], y[:TRAIN])
    assert line.transform(x[TRAIN:]).shape == (500, 32) and line.score(x[TRAIN:], y[TRAIN:]) > 0.6
    again = pickle.loads(pickle.dumps(cca))
    assert np.array_equal(again.transform(x[:9]), cca.transform(x[:9]))
    assert cca.get_feature_names_out()[:2].tolist() == ["privatecca0", "privatecca1"]
    assert cca.set_output(transform="pandas").transform(x[:3]).shape == (3, 32)


def test_views_of_images_alone():
    x, y = two_views(TRAIN + 500, (48, 48))
    both = np.stack([x, x + y, x - 0.5 * y], 1)
    cca = dpfed.PrivateCCA(epsilon=8).fit(both[:TRAIN])
    assert cca.n_features_in_ == 48 and cca.n_features_y_ == 0 and "one record: a row of X |" in cca.card_
    assert cca.transform(both[:4]).shape == (4, 3, 48) and cca.transform(x[:4]).shape == (4, 48)
    assert cca.score(both[TRAIN:]) > 0.5


def test_towers_that_are_aligned_stay_so_where_noise_hides_all():
    x = two_views(400, (32, 32))[0]
    y = x + 0.1 * two_views(400, (32, 32), seed=5)[1]
    cca = dpfed.PrivateCCA(epsilon=0.01, aligned=True).fit(x[:200], y[:200])
    image, text = unit(x[200:]), unit(y[200:])
    assert cca.score(x[200:], y[200:]) == pytest.approx(recall(image, text), abs=0.05) and recall(image, text) > 0.95


def test_a_fixed_seed_promises_nothing(views):
    x, y = (side[:300] for side in views)
    with pytest.warns(Notice, match="promises no privacy"):
        one = dpfed.PrivateCCA(epsilon=3, random_state=0).fit(x, y)
    with pytest.warns(Notice, match="promises no privacy"):
        two = dpfed.PrivateCCA(epsilon=3, random_state=0).fit(x, y)
    assert one.epsilon_ == math.inf and "no privacy guarantee holds" in one.card_.splitlines()[0]
    assert all(np.array_equal(one.heads_[name], two.heads_[name]) for name in one.heads_)
    three, four = (dpfed.PrivateCCA(epsilon=3).fit(x, y) for _ in range(2))
    assert not np.array_equal(three.heads_["image.matrix"], four.heads_["image.matrix"])


def test_the_random_state_of_the_process_stays(views):
    x, y = (side[:300] for side in views)
    np.random.seed(1)
    torch.manual_seed(1)
    before = np.random.get_state()[1].copy(), torch.get_rng_state()
    dpfed.PrivateCCA(epsilon=3).fit(x, y)
    assert np.array_equal(before[0], np.random.get_state()[1]) and torch.equal(before[1], torch.get_rng_state())


def test_other_components_of_a_fit_cost_nothing(views, tmp_path):
    x, y = (side[:600] for side in views)
    cca = dpfed.PrivateCCA(epsilon=3).fit(x, y)
    few = cca.with_components(4)
    assert few.transform(x).shape == (600, 4) and few.epsilon_ == cca.epsilon_ and few.ledger_ == cca.ledger_
    assert cca.n_components is None and cca.transform(x).shape == (600, 48)
    back = few.with_components(None)
    assert all(np.array_equal(back.heads_[name], cca.heads_[name]) for name in cca.heads_)
    few.save(tmp_path / "few")
    again = dpfed.PrivateCCA.load(tmp_path / "few").with_components(None)
    assert all(np.array_equal(again.heads_[name], cca.heads_[name]) for name in cca.heads_)
    with pytest.raises(ValueError, match="arrays-parts"):
        cca.with_components(49)


class SecondViewOfLabels(dpfed.PrivateCCA):
    """scikit-learn's checks give labels as y, of which this makes a second view."""

    def fit(self, X, Y=None, groups=None):
        return super().fit(X, None if Y is None else self._second(Y), groups)

    def fit_transform(self, X, y=None):
        return self.fit(X, y).transform(X)

    def score(self, X, y=None):
        return super().score(X, self._second(y))

    @staticmethod
    def _second(labels):
        labels = np.asarray(labels, float)
        labels = labels.reshape(len(labels), -1)[:, 0]
        return np.column_stack([np.cos(labels), np.sin(labels), np.ones(len(labels))])


@parametrize_with_checks([SecondViewOfLabels(epsilon=8.0, delta=1e-4)])
def test_the_checks_of_scikit_learn(estimator, check):
    check(estimator)
