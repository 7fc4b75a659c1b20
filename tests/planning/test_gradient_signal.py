"""The gradient's real size: what independent sums agree on, and how far it moves the embeddings beside noise."""

import dataclasses

import pytest
import torch

from dpfed.config import parse_config
from dpfed.features.training_views import TrainingViews
from dpfed.models.parameters import TrainableVector
from dpfed.planning import gradient_signal
from dpfed.planning.gradient_signal import _response, measured
from dpfed.planning.proxy import Proxy, declared_plan
from dpfed.planning.simulated import SimulatedRun
from dpfed.privacy.randomness import Randomness
from dpfed.progress import Silent


@pytest.fixture
def imitation(tiny_config, shapes):
    plan = declared_plan(tiny_config, None, Silent())
    return SimulatedRun.of(tiny_config, plan, Proxy("store", shapes.path, 600), 200, Silent())


class Linear(torch.nn.Module):
    """Embeddings are linear in the weights before they get unit length; some weights do nothing."""

    temperature = torch.tensor(0.1)

    def __init__(self, idle: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4, 3, generator=torch.Generator().manual_seed(1)))
        self.idle = torch.nn.Parameter(torch.full((idle,), 100.0))  # much longer than those that do something

    def forward(self, views):
        return {"image": views["image"].mean((-1, -2)) @ self.weight.T}


def jacobian(model, views):
    def embedded(weight):
        z = torch.nn.functional.normalize((views["image"].mean((-1, -2)) @ weight.T)[:, 0], dim=-1)
        return (z - z.mean(0)).flatten()

    return torch.autograd.functional.jacobian(embedded, model.weight.detach()).flatten(1)


@pytest.mark.long
@pytest.mark.parametrize("idle", [0, 5_000])
def test_the_response_is_the_derivatives_whatever_idle_weights(imitation, monkeypatch, idle):
    model = Linear(idle)
    parts = imitation.parts.with_learner(
        model=model, views=TrainingViews(dataclasses.replace(imitation.parts.views, tokenizer=None))
    )
    small = dataclasses.replace(imitation, parts=parts)
    monkeypatch.setattr(gradient_signal, "_DRAWS", 400)
    vector = TrainableVector(model)
    before, gradient = vector.gather(), torch.randn(12 + idle, generator=torch.Generator().manual_seed(2))
    response = _response(small, (gradient, gradient))
    views = parts.views.maker(parts.store)(small.indices[:128], Randomness.from_seed(3), 0, torch.device("cpu"))
    exact = jacobian(model, views)
    assert response == pytest.approx(((exact @ gradient[:12]).norm() / exact.norm()).item(), rel=0.08)
    assert torch.equal(vector.gather(), before)
    opposite = _response(small, (gradient, -gradient))
    assert opposite == 0.0  # what the halves do not agree on is not a signal


@pytest.mark.long
def test_the_gradient_is_measured_through_the_runs_own_clipping(tiny, shapes):
    signals = {}
    for clip in (1e-3, 1e-2, 1e6):
        tiny["bounding"]["clip_norm"] = clip
        config = parse_config(tiny)
        plan = declared_plan(config, None, Silent())
        imitation = SimulatedRun.of(config, plan, Proxy("store", shapes.path, 600), 200, Silent())
        before = TrainableVector(imitation.parts.model).gather()
        signals[clip] = measured(imitation, plan, budget=1e9)
        assert torch.equal(TrainableVector(imitation.parts.model).gather(), before)
    signal = signals[1e-2]
    assert 0 < signal.length < 1e-2 and signal.groups >= 16 and signal.seconds > 0
    assert signals[1e-3].length * 10 == pytest.approx(signal.length, rel=1e-2)  # all are clipped: no other direction
    assert signals[1e-3].response * 10 == pytest.approx(signal.response, rel=1e-2)
    assert signals[1e6].length > 10 * signal.length
    assert signal.numbers == len(before)
