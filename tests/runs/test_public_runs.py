"""Whole runs with public contrast: the same bits after an interruption, and papers that name the public set."""

import json

import pytest
import torch
from safetensors.torch import load_file

from dpfed.config import parse_config
from dpfed.errors import UserError
from dpfed.federation.simulated import Simulation
from dpfed.federation.simulation import resume, simulate
from dpfed.runs.pretraining import pretrain
from dpfed.training.coordinator import Coordinator
from tests.killed import killed


@pytest.fixture
def seeded(tiny_public):
    tiny_public["privacy"] = {"noise_multiplier": 1.0, "accountant": "rdp", "batch": 40, "steps": 4, "seed": 11}
    tiny_public["evaluation"] = {"split": "none"}
    return tiny_public


def weights(run):
    return load_file(run.model / "model.safetensors")


@pytest.mark.long
def test_a_resumed_run_keeps_its_bits_and_names_the_public_set(seeded, tmp_path, public_store):
    config = parse_config(seeded)
    whole = pretrain(config, tmp_path / "whole")
    with killed(Coordinator, "apply", 3):
        pretrain(config, tmp_path / "cut")
    other = parse_config({**seeded, "public": {**seeded["public"], "records": 2}})
    with pytest.raises(UserError, match="public.records"):
        pretrain(other, tmp_path / "cut", resume=True)
    cut = resume(tmp_path / "cut")
    assert all(torch.equal(value, weights(cut)[name]) for name, value in weights(whole).items())

    card = whole.card.read_text(encoding="utf-8")
    assert "public contrast" in card and "M = 3 public records" in card and "The public records that join" in card
    assert f"of {public_store.name}, 60 records" in card and public_store.contents in card
    privacy = json.loads(whole.results.read_text(encoding="utf-8"))["privacy"]
    assert (privacy["sensitivity"], privacy["divisor"], privacy["groups"]) == (1.0, 40, 40)
    assert public_store.contents in whole.report.read_text(encoding="utf-8")
    assert whole.config().public.digest == public_store.contents


SLOW = ("distributed", "local")


@pytest.mark.long
@pytest.mark.parametrize("trust", ["central", "secure", *(pytest.param(mode, marks=pytest.mark.slow) for mode in SLOW)])
def test_simulated_sites_train_with_one_public_set(seeded, tmp_path, trust, public_store):
    seeded["privacy"] |= {"steps": 2}
    run = simulate(parse_config(seeded), tmp_path / "run", Simulation(sites=3, trust=trust))
    terms = json.loads(run.terms.read_text(encoding="utf-8"))
    assert terms["config"]["public"] == {"path": public_store.path.name, "digest": public_store.contents}
    assert "public contrast" in run.card.read_text(encoding="utf-8") and run.finished
