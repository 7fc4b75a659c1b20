"""The audit of private moments: what it finds of a sound run, and that it catches one that is broken."""

import math
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from dpfed.audit.moments import MomentTrial
from dpfed.audit.privacy import audit_claim
from dpfed.bounding.pair_moments import MomentsEngine
from dpfed.building.plan import plan_of
from dpfed.config import ModelConfig, ObjectiveConfig, parse_config
from dpfed.models.building import build_model
from dpfed.privacy.randomness import Randomness
from tests.sparing import sparing

EXPERIMENTS = 80


@pytest.fixture(params=[0.25])
def claimed(request, tmp_path):
    model = {"kind": "image", "width": 8}
    save_file(build_model(ModelConfig(**model), ObjectiveConfig(), size=16).state_dict(), tmp_path / "start.safetensors")
    tree = {
        "name": "claim",
        "data": {"source": "shapes", "records": 500, "size": 16},
        "model": model | {"start": str(tmp_path / "start.safetensors")},
        "bounding": {"method": "moments"},
        "privacy": {"noise_multiplier": request.param},
    }
    config = parse_config(tree)
    return config, plan_of(500, config)


@pytest.mark.long
@pytest.mark.parametrize("world_size", sparing([1, 2], 2))
def test_a_sound_run_is_not_accused_and_its_canary_is_seen(claimed, world_size):
    audit = audit_claim(*claimed, world_size=world_size, experiments=EXPERIMENTS)
    (only,) = audit.findings
    assert not only.contradicts and 0 < only.epsilon < audit.claim
    assert audit.moved == pytest.approx(audit.sensitivity, rel=1e-4) and audit.moved <= audit.sensitivity


@pytest.mark.long
@pytest.mark.parametrize("claimed", [6.0], indirect=True)  # little is tried here, which shows what is far off
def test_noise_that_is_missing_is_caught(claimed, monkeypatch):
    monkeypatch.setattr(Randomness, "normal_steps", lambda self, values, *args: values)
    (only,) = audit_claim(*claimed, experiments=EXPERIMENTS).findings
    assert only.contradicts


@pytest.mark.long
def test_a_part_that_is_too_long_is_caught(claimed, monkeypatch):
    real = MomentsEngine._unit
    monkeypatch.setattr(MomentsEngine, "_unit", lambda self, side, features: 2 * real(self, side, features))
    audit = audit_claim(*claimed, experiments=EXPERIMENTS)
    assert audit.moved > audit.sensitivity * 1.5


@pytest.mark.parametrize("sums", [math.nan, math.inf])
def test_sums_that_are_not_finite_are_no_small_distance(claimed, tmp_path, monkeypatch, sums):
    trial = MomentTrial.build(claimed[1], tmp_path / "trial")
    side = SimpleNamespace(aggregate=lambda step: SimpleNamespace(numbers=lambda: torch.full((3,), sums)))
    monkeypatch.setattr(MomentTrial, "workers", lambda *_: side)
    assert trial.moved() == math.inf
