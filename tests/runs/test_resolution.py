"""A configuration is completed once: nothing is left to choose, and a choice that is made stays."""

import math
from pathlib import Path

import pytest

from dpfed.config import Config, parse_config
from dpfed.config.resolved import ResolvedConfig
from dpfed.errors import UserError
from dpfed.runs.resolution import resolve, settle

OPEN = {
    "model": {"width": 4, "embedding": 8, "head_hidden": 8},
    "objective": {"name": "siglip"},
    "bounding": {"group_size": 5, "microbatch": 10},
    "privacy": {"epsilon": 4.0, "batch": 10, "steps": 2},
}


def test_every_choice_is_made_and_stays(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = parse_config(OPEN)
    found = resolve(config)
    assert isinstance(found, ResolvedConfig) and resolve(found) is found
    assert Path(found.data.stores) == tmp_path / config.data.stores
    assert (found.data.size, found.data.resize) == (32, "crop") and found.objective.bias == -math.log(4)
    assert found.training.device in ("cpu", "cuda", "mps") and found.bounding.engine in ("loop", "vmap", "layerwise")
    monkeypatch.setattr("dpfed.runs.resolution.fastest_engine", lambda *_: pytest.fail("timed again"))
    assert resolve(parse_config(found.model_dump(mode="json"))) == found  # as a run's config.toml is read, elsewhere


def test_what_depends_on_the_machine_is_left_to_each():
    found = settle(parse_config(OPEN))
    assert found.data.size == 32 and found.objective.bias is not None
    assert (found.training.device, found.bounding.engine) == ("auto", "auto")
    assert settle(found) == found


def test_whole_batches_decide_the_odds_of_a_pair():
    bounding = {"method": "batch", "microbatch": 10}
    assert settle(parse_config({**OPEN, "bounding": bounding})).objective.bias == -math.log(9)


@pytest.mark.parametrize("name", ["data.size", "data.resize", "training.device", "bounding.engine", "objective.bias"])
def test_one_choice_that_is_left_is_named(name):
    tree, open_ = resolve(parse_config(OPEN)).model_dump(mode="json"), Config().model_dump(mode="json")
    section, key = name.split(".")
    tree[section][key] = open_[section][key]
    with pytest.raises(UserError, match=rf"{name} left to choose"):
        ResolvedConfig(**tree)
