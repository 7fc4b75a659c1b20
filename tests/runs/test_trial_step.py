"""A run that would learn nothing is refused before it spends anything, and what the refusal advises trains."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch

from dpfed.config import parse_config
from dpfed.data.store.record import RecordInput
from dpfed.data.store.writing import StoreWriter
from dpfed.errors import UserError
from dpfed.files.toml_file import put
from dpfed.runs.preflight import known_plan
from dpfed.runs.pretraining import pretrain
from tests.models.conftest import SMALL
from tests.sparing import halved

FEW = [
    {"bounding.group_size": 1},
    {"bounding.group_size": 0},
    {"bounding.group_size": 1, "privacy.batch": 1},
    {"privacy.batch": 1},
    {"bounding.group_size": 1, "objective.name": "siglip"},
    {"bounding.group_size": 2, "objective.name": "barlow_twins"},
    {"bounding.max_group_size": 2, "objective.name": "barlow_twins"},
    {"bounding.group_size": 1, "bounding.method": "none", "privacy.epsilon": None},
    {"bounding.method": "batch", "bounding.group_size": None, "privacy.batch": 1, "bounding.engine": None},
]


def changed(tiny, **changes):
    tree = json.loads(json.dumps(tiny))
    for key, value in changes.items():
        put(tree, key, value)
    return tree


@pytest.mark.long
@pytest.mark.parametrize("changes", FEW, ids=str)
def test_groups_without_contrast_are_refused_and_advice_trains(tiny, tmp_path, changes):
    tree = changed(tiny, **changes, **{"privacy.steps": 2, "evaluation": {"split": "none"}})
    with pytest.raises(UserError, match="learns nothing from .*run-contrast-few") as refused:
        known_plan(parse_config(tree))
    keys, value = re.search(r"set (.*) to (\d+) or more", str(refused.value)).groups()
    advised = changed(tree, **dict.fromkeys(keys.split(" and "), int(value)))
    assert pretrain(parse_config(advised), tmp_path / "run").finished


@pytest.mark.long
@pytest.mark.parametrize(("batch", "size"), halved([0, -3, 601, 10**15], [4, 64]))
def test_a_batch_that_cannot_be_gets_one_that_trains(tiny, tmp_path, batch, size):
    tree = changed(tiny, **{"privacy.batch": batch, "bounding.group_size": size, "evaluation": {"split": "none"}})
    with pytest.raises(UserError, match=r"batch must lie in 2\.\.600 \(the training records or units\)") as refused:
        known_plan(parse_config(tree))
    advice = dict(word.partition("=")[::2] for word in refused.value.command.rstrip(".").split() if "=" in word)
    advised = changed(tree, **{key: int(value) for key, value in advice.items()}, **{"privacy.steps": 1})
    assert pretrain(parse_config(advised), tmp_path / "run").finished


def test_a_batch_of_uncounted_records_is_told_no_number(tmp_path):
    (tmp_path / "cats").mkdir()
    tree = {"data": {"source": "folder", "path": str(tmp_path / "cats")}, "privacy": {"epsilon": 8.0, "batch": 0}}
    with pytest.raises(UserError, match=r"batch must be at least 2 \(usually a tenth of the training records\)") as refused:
        known_plan(parse_config(tree))
    assert not refused.value.command
    with pytest.raises(UserError, match="batch must be at most [0-9,]+, got 1000"):
        known_plan(parse_config(tree | {"privacy": {"epsilon": 8.0, "batch": 10**15}}))


HOPELESS = [
    ({"optimizer.learning_rate": 1e-9}, "optimizer-rate-low", {"optimizer.learning_rate": 1e-4}),
    ({"optimizer.learning_rate": 1e8}, "optimizer-rate-high", {"optimizer.learning_rate": 1e-2}),
    (
        {"optimizer.name": "sgd", "optimizer.learning_rate": 1e9, "optimizer.momentum": 0.999},
        "optimizer-rate-high",
        {"optimizer.learning_rate": 1e-2},
    ),
    ({"bounding.clip_norm": 1e6, "objective.temperature": 100.0}, "run-no-signal", {"bounding.clip_norm": 1.0}),
]


@pytest.mark.long
@pytest.mark.parametrize(("changes", "code", "advised"), HOPELESS)
def test_idle_or_wild_steps_are_refused_before_any_spending(tiny, tmp_path, changes, code, advised):
    tree = changed(tiny, **changes, **{"privacy.steps": 2, "evaluation": {"split": "none"}})
    with pytest.raises(UserError, match=code):
        pretrain(parse_config(tree), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert pretrain(parse_config(changed(tree, **advised)), tmp_path / "run").finished


def test_a_temperature_that_leaves_no_gradient_is_refused(tiny):
    for temperature in (1e-300, 1e-4, 101.0, 1e30):
        with pytest.raises(UserError, match="'objective.temperature': expected at (least 0.001|most 100)"):
            parse_config(changed(tiny, **{"objective.temperature": temperature}))


@pytest.mark.parametrize("bounding", [{}, {"method": "batch", "microbatch": 32}], ids=["group", "batch"])
def test_a_model_that_trains_only_its_temperature_is_refused(tiny, tmp_path, bounding):
    (tmp_path / "small.json").write_text(json.dumps(SMALL))
    clip = {"kind": "open_clip", "architecture": str(tmp_path / "small.json"), "tokenizer": "words"}
    tree = changed(tiny, **{"model": clip, "data.size": None, "objective.learn_temperature": True})
    tree |= {"adaptation": {"image": "frozen", "text": "frozen"}} | ({"bounding": bounding} if bounding else {})
    with pytest.raises(UserError, match="only clip.logit_scale would be trained.*run-frozen"):
        pretrain(parse_config(tree), tmp_path / "run")
    tree["objective"]["learn_temperature"] = False
    with pytest.raises(UserError, match="model-all-frozen"):
        pretrain(parse_config(tree), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.long
@pytest.mark.parametrize("key", ["privacy.epsilon", "privacy.noise_multiplier", "bounding.clip_norm", "bounding.stability"])
def test_the_limits_that_a_refusal_names_are_values_that_train(tiny, tmp_path, key):
    given = {"privacy.noise_multiplier": {"privacy.epsilon": None}, "bounding.stability": {"bounding.clipping": "automatic"}}
    tree = changed(tiny, **{"privacy.steps": 1, "evaluation": {"split": "none"}}, **given.get(key, {}))
    for number, wrong in enumerate((1e-200, 1e200)):
        with pytest.raises(UserError) as refused:
            known_plan(parse_config(changed(tree, **{key: wrong})))
        named = re.search(r"at (?:least|most) ([\d.e+-]*\d)|expected ([\d.e+-]+) to ([\d.e+-]+)", str(refused.value))
        if named is None:
            assert key == "privacy.epsilon" and wrong == 1e200  # a promise of nothing has no largest value
            continue
        value = float(named[1] or named[2 + number])
        assert pretrain(parse_config(changed(tree, **{key: value})), tmp_path / f"run-{number}").finished


@pytest.mark.long
@pytest.mark.parametrize("differ", [False, True])
def test_captions_that_all_say_the_same_are_refused(tiny, tmp_path, differ):
    random = np.random.default_rng(0)
    with StoreWriter(tmp_path / "store", name="clinic", kind="image-text", size=16) as writer:
        for number in range(90):
            text = "Another one" if differ and number == 89 else ("A scan" if number % 2 else "a  scan ")
            image = random.integers(0, 256, (16, 16, 3), dtype=np.uint8)
            writer.add(RecordInput(f"r{number}", image, captions=[text], split="train"))
    tree = changed(tiny, **{"data.path": str(tmp_path / "store"), "privacy.steps": 1, "evaluation": {"split": "none"}})
    if differ:
        assert pretrain(parse_config(tree), tmp_path / "run").finished
        return
    with pytest.raises(UserError, match="all training records of clinic have the same caption.*run-captions-equal"):
        pretrain(parse_config(tree), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    images = changed(tree, **{"model": {"kind": "image", "width": 8}})
    assert pretrain(parse_config(images), tmp_path / "run").finished


def test_a_gradient_of_zero_is_not_blamed_on_the_clip_norm(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("dpfed.runs.trial_step.LoopEngine.add_clipped", lambda *_: torch.zeros(1))
    with pytest.raises(UserError, match="the gradient of a group of random images is zero.*run-no-gradient"):
        pretrain(parse_config(changed(tiny, **{"privacy.steps": 2, "evaluation": {"split": "none"}})), tmp_path / "run")
