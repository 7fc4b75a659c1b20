"""Canaries in the black box: who was trained on comes closer, where nothing hides it."""

import itertools

import pytest

from dpfed.audit.black_box import black_box, write_pairs
from dpfed.audit.findings import Effort
from dpfed.audit.privacy import audit_claim
from dpfed.audit.under_test import Scale
from dpfed.config import parse_config
from dpfed.privacy.noise import GaussianNoise
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.randomness import Randomness
from dpfed.progress import Silent

SCALE = Scale(records=160, batch=160, group_size=8, steps=25)


@pytest.fixture(autouse=True)
def repeatable(monkeypatch):
    seeds = itertools.count()
    monkeypatch.setattr(Randomness, "fresh", lambda: Randomness.from_seed(next(seeds)))


@pytest.fixture
def chosen(tiny):
    tiny["data"] = {"source": "shapes", "records": 500, "size": 16}
    tiny["views"] = {}
    tiny["privacy"] = {"noise_multiplier": 1.0, "batch": 500, "steps": 25}
    tiny["bounding"] = {"group_size": 8, "engine": "loop"}
    tiny["optimizer"] = {"learning_rate": 1e-2}
    config = parse_config(tiny)
    return config, PrivacyPlan.from_config(500, config)


@pytest.mark.parametrize("hidden", [True, False])
def test_canaries_give_themselves_away_where_there_is_no_noise(chosen, tmp_path, monkeypatch, hidden):
    if not hidden:
        monkeypatch.setattr(GaussianNoise, "add_", lambda *_: None)
    plan, coins, closer = black_box(*chosen, SCALE, 60, tmp_path, Silent())
    assert (plan.noise_multiplier, plan.sampling_rate, plan.steps) == (1.0, 1.0, 25)
    apart = (closer[coins].mean() - closer[~coins].mean()) / closer.std()
    assert abs(apart) < 0.8 if hidden else apart > 1.2


def test_pairs_are_public_and_unlike_the_rest(tmp_path):
    store = write_pairs(tmp_path / "pairs", fillers=20, canaries=5)
    assert store.public and len(store) == 25 and store.kind == "image-text"
    texts = [words for (words,) in store.captions(range(5))]
    assert len({word for text in texts for word in text.split()}) == 40


def test_an_audit_has_it_on_request(chosen):
    audit = audit_claim(*chosen, effort=Effort(canaries=24, steps=2, experiments=400, black_box=True))
    assert [one.attack for one in audit.findings] == ["repeated", "one run", "black box"]
    assert audit.findings[-1].of_run and not audit.contradicted
