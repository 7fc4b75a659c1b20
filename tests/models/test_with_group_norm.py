"""One line turns an encoder with BatchNorm into one whose records do not mix."""

import pytest
import torch
import torchvision
from torch import nn

import dpfed
from dpfed.models.validation import check_independence, random_group, validate


@pytest.mark.long
def test_a_network_with_batch_norm_is_refused_and_then_fits():
    encoder = torchvision.models.resnet18(num_classes=8)
    with pytest.raises(dpfed.UserError, match=r"dpfed\.with_group_norm\(encoder\).*\[model-batch-norm\]"):
        validate(encoder)
    nn.init.uniform_(encoder.bn1.weight)
    scale = encoder.bn1.weight.detach().clone()
    assert dpfed.with_group_norm(encoder) is encoder and torch.equal(encoder.bn1.weight, scale)
    model = dpfed.SimCLR(encoder, 8, hidden=8)
    model(random_group(32))
    validate(model)
    check_independence(model, random_group(32))


def test_what_stands_behind_timms_batch_norm_stays():
    import timm

    encoder = timm.create_model("efficientnet_lite0", num_classes=0)
    before = sum(isinstance(part, nn.ReLU6) for part in encoder.modules())
    dpfed.with_group_norm(encoder)
    validate(encoder)
    assert sum(isinstance(part, nn.ReLU6) for part in encoder.modules()) == before
    assert encoder(torch.randn(2, 3, 64, 64)).shape == (2, 1280)


def test_a_layer_itself_and_one_without_channels():
    assert isinstance(dpfed.with_group_norm(nn.BatchNorm2d(6, affine=False)), nn.GroupNorm)
    with pytest.raises(dpfed.UserError, match="norm-lazy"):
        dpfed.with_group_norm(nn.Sequential(nn.LazyBatchNorm2d()))


def test_a_layer_that_is_used_twice_stays_one_layer_of_its_type():
    layer, model = nn.BatchNorm2d(4).double(), nn.Module()
    model.first, model.second, model.inner = layer, layer, nn.Sequential(layer)
    dpfed.with_group_norm(model)
    assert isinstance(model.first, nn.GroupNorm) and model.first is model.second is model.inner[0]
    assert model.first.weight.dtype == torch.float64


def test_a_model_that_is_refused_is_as_it_was():
    model = nn.Sequential(nn.BatchNorm2d(4), nn.LazyBatchNorm2d())
    with pytest.raises(dpfed.UserError, match="norm-lazy"):
        dpfed.with_group_norm(model)
    assert isinstance(model[0], nn.BatchNorm2d)
