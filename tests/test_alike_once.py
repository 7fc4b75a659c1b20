"""The question whether groups are computed alike is skipped only where the same engine has answered it with yes."""

import pytest
import torch

from dpfed.bounding.engines import LayerwiseEngine, batch_invariance
from dpfed.bounding.engines.batch_invariance import DependsOnOthers
from dpfed.bounding.layer_rules import convolution
from dpfed.models.building import build_model
from dpfed.objectives.infonce import group_loss
from tests import alike_once
from tests.bounding.engines.test_engines import MODELS, WITH_TEMPERATURE, batch_for


@pytest.fixture
def asked(monkeypatch):
    """The questions that reach the device."""
    seen = []
    real = batch_invariance.require_batch_invariance
    monkeypatch.setattr(alike_once, "_REAL", lambda *given: (seen.append(given), real(*given)))
    alike_once.ask_once(monkeypatch)
    return seen


def add(model, precision="fp32", **options):
    engine = LayerwiseEngine(model, precision, if_unlike="raise", **options)
    engine.add_clipped(batch_for(MODELS["cnn"]), 1.0, engine.zeros())


def test_other_weights_types_losses_and_passes_are_asked_again(asked, monkeypatch):
    monkeypatch.setattr(alike_once, "_REAL", lambda *given: asked.append(given))  # the answer is yes
    model = build_model(MODELS["cnn"], WITH_TEMPERATURE)
    add(model)
    add(model)
    assert len(asked) == 1
    add(model, "bf16")
    add(model, group_size=4)
    add(model, loss=lambda *given: 2 * group_loss(*given))
    with torch.no_grad():
        next(model.parameters()).view(-1)[0] += 1e-3
    add(model)
    assert len(asked) == 5


@pytest.mark.long
def test_a_rule_that_looks_at_neighbours_is_found_out_later(asked, monkeypatch):
    """Sabotage: a layer's norms change, in their last bits, with what else is in the pass."""
    model = build_model(MODELS["cnn"], WITH_TEMPERATURE)
    add(model)
    honest = convolution.Geometry.weight_gradients

    def looking(self, inputs, gradients, *rest):
        return honest(self, inputs, gradients * (1 + 1e-6 * (1e6 * inputs.flatten()[0].nan_to_num()).sin()), *rest)

    monkeypatch.setattr(convolution.Geometry, "weight_gradients", looking)
    with pytest.raises(DependsOnOthers, match="engine-not-alike"):
        add(model)
    with pytest.raises(DependsOnOthers, match="engine-not-alike"):  # a refusal is not kept
        add(model)
    assert len(asked) == 3
