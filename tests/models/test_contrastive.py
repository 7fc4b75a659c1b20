"""Models of one group: the contract of docs/architecture.md, and gradients of many groups at once."""

import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call, grad, vmap

from dpfed.config import ModelConfig, ObjectiveConfig
from dpfed.errors import UserError
from dpfed.models.building import build_model
from dpfed.models.contrastive import SimCLRModel

CNN = ModelConfig(width=8)
RESNET = ModelConfig(image="resnet18", width=8)
PAIRS = ModelConfig(kind="image-text", width=8, text_width=16)


def built(config: ModelConfig, **objective) -> torch.nn.Module:
    torch.manual_seed(3)
    return build_model(config, ObjectiveConfig(**objective))


def some_views(config: ModelConfig, *lead: int) -> dict[str, torch.Tensor]:
    views = {"image": torch.randn(*lead, 2, 3, 16, 16)}
    if config.kind == "image-text":
        views["text"] = torch.randint(1, config.vocabulary, (*lead, 2, config.context))
        views["text"][..., config.context // 2 :] = 0
        views["text"][..., 0, :] = 0
    return views


@pytest.mark.parametrize("config", [CNN, RESNET, PAIRS])
def test_embeddings_have_the_contracts_shape_and_unit_length(config):
    embeddings = built(config)(some_views(config, 3))
    assert list(embeddings) == (["image", "text"] if config.kind == "image-text" else ["image"])
    for embedding in embeddings.values():
        assert embedding.shape == (3, 2, config.embedding)
        assert torch.allclose(embedding.norm(dim=2), torch.ones(3, 2), atol=1e-5)


def test_learnt_temperature_starts_right_and_ends_at_0_01():
    model = built(CNN, temperature=0.2, learn_temperature=True)
    assert model.temperature.item() == pytest.approx(0.2)
    assert model.temperature.requires_grad and model.temperature.dim() == 0
    with torch.no_grad():
        model.log_scale.fill_(50.0)
    assert model.temperature.item() == pytest.approx(0.01)
    with pytest.raises(UserError, match=r"0.001.*\[model-learnt-low"):
        built(CNN, temperature=0.001, learn_temperature=True)
    with pytest.raises(UserError, match=r"0.001.*\[model-learnt-low"):  # clamped, it would have no gradient
        built(CNN, learn_temperature=True).set_temperature(0.001)


@pytest.mark.parametrize("config", [CNN, RESNET, PAIRS])
def test_vmap_of_grad_equals_the_loop(config):
    model, groups = built(config), 3
    stacked = some_views(config, groups, 4)
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}

    def loss(weights: dict[str, torch.Tensor], views: dict[str, torch.Tensor]) -> torch.Tensor:
        embeddings = functional_call(model, weights, (views,))
        first = embeddings["image"][:, 0]
        second = embeddings["text"][:, 1] if "text" in embeddings else embeddings["image"][:, 1]
        return F.cross_entropy(first @ second.T / 0.1, torch.arange(len(first)))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # vmap reports operations that it runs one by one
        together = vmap(grad(loss), in_dims=(None, 0))(parameters, stacked)
    for group in range(groups):
        views = {name: tensor[group] for name, tensor in stacked.items()}
        gradient = torch.autograd.grad(loss(dict(model.named_parameters()), views), list(model.parameters()))
        for (name, batched), single in zip(together.items(), gradient, strict=True):
            assert torch.allclose(batched[group], single, atol=1e-4, rtol=1e-3), name


@pytest.mark.parametrize("temperature", [math.nan, math.inf, 0.0, -1.0, "0.1", None])
@pytest.mark.parametrize("learn", [False, True])
def test_a_temperature_that_divides_by_nothing_is_refused(temperature, learn):
    with pytest.raises(UserError, match="model-temperature"):
        SimCLRModel(torch.nn.Identity(), torch.nn.Identity(), temperature=temperature, learn_temperature=learn)
