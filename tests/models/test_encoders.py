"""Encoders: shapes, sizes, and no layer that mixes images."""

import pytest
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torchvision.models import resnet as torchvision_resnet

from dpfed.models.encoders import SmallCNN, group_norm, resnet
from dpfed.models.text import TextTransformer


def test_small_cnn():
    encoder = SmallCNN(32)
    assert sum(parameter.numel() for parameter in encoder.parameters()) == pytest.approx(250_000, rel=0.1)
    assert encoder.features_dim == 128
    for size in (8, 28, 32, 33):
        assert encoder(torch.randn(2, 3, size, size)).shape == (2, 128)


@pytest.mark.parametrize("depth", [18, 34, 50])
@pytest.mark.parametrize("stem", ["cifar", "imagenet"])
def test_resnet_normalises_by_groups_only(depth, stem):
    encoder = resnet(depth, stem, width=8)
    modules = list(encoder.modules())
    convolutions = sum(isinstance(module, nn.Conv2d) for module in modules)
    assert sum(isinstance(module, nn.GroupNorm) for module in modules) == convolutions
    assert not any(isinstance(module, _BatchNorm) for module in modules)
    assert not any(getattr(module, "inplace", False) for module in modules)
    assert encoder(torch.randn(2, 3, 32, 32)).shape == (2, encoder.features_dim)


@pytest.mark.long
@pytest.mark.parametrize("depth", [18, 50])
def test_resnet_is_torchvisions(depth):
    theirs = getattr(torchvision_resnet, f"resnet{depth}")(norm_layer=group_norm).eval()
    theirs.fc = nn.Identity()
    ours = resnet(depth, "imagenet", 64).eval()
    ours.load_state_dict(theirs.state_dict())
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.allclose(ours(images), theirs(images), atol=1e-4)
    assert ours.features_dim == (512 if depth == 18 else 2048)


@pytest.mark.parametrize("features", ["last", "pyramid"])
def test_images_of_any_size_give_as_many_features(features):
    for encoder in (SmallCNN(8, features=features), resnet(18, width=8, features=features)):
        for size in (8, 28, 33):
            assert encoder(torch.randn(2, 3, size, size)).shape == (2, encoder.features_dim)


def test_text_ignores_padding_and_survives_an_empty_caption():
    encoder = TextTransformer(vocabulary=100, width=16, layers=2, heads=2, context=8, out=5)
    tokens = torch.tensor([[5, 7, 9, 0, 0, 0, 0, 0], [0] * 8])
    result = encoder(tokens)
    result.sum().backward()
    assert result.shape == (2, 5) and result.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in encoder.parameters())
    assert torch.allclose(result[:1], encoder(tokens[:1, :3]), atol=1e-5)
