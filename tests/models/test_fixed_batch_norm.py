"""BatchNorm on the statistics of pretrained weights: nothing mixes, whatever mode the model is in."""

import pytest
import timm
import torch
import torch.nn.functional as F
import torchvision
from torch import nn

from dpfed.config import AdaptationConfig, ModelConfig, ObjectiveConfig
from dpfed.errors import UserError
from dpfed.models.building import build_model
from dpfed.models.norm import FixedBatchNorm, fix_batch_norm
from dpfed.models.validation import check_independence, random_group, validate
from tests.frozen_towers import image_weights


def encoder_of(folder, training="full", name="test_resnet"):
    config = ModelConfig(image=f"timm/{name}", weights=image_weights(folder, name), embedding=16)
    return build_model(config, ObjectiveConfig(), AdaptationConfig(image=training), 32)


def by_the_batch(self, x):
    return F.batch_norm(x, None, None, self.weight, self.bias, training=True, eps=self.eps)


@pytest.mark.parametrize("name", ["test_resnet", "test_efficientnet", "test_byobnet"])
def test_features_are_stock_timms_of_evaluation_in_every_mode(name, tmp_path):
    model = encoder_of(tmp_path, name=name)
    stock = timm.create_model(name, num_classes=0, checkpoint_path=image_weights(tmp_path, name)).eval()
    images, before = torch.randn(4, 3, 32, 32), {key: value.clone() for key, value in model.state_dict().items()}
    for train in (True, False):
        assert torch.allclose(model.train(train).features(images), stock(images), atol=1e-5)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert stock.state_dict().keys() == model.encoder.timm.state_dict().keys()


@pytest.mark.parametrize("name", ["resnet18", "densenet121"])
def test_weights_of_torchvision_fit_timms_model_of_the_same_name(name, tmp_path):
    net = torchvision.models.get_model(name, num_classes=7).eval()
    torch.save(net.state_dict(), tmp_path / "w.pt")
    config = ModelConfig(image=f"timm/{name}", weights=str(tmp_path / "w.pt"))
    model = build_model(config, ObjectiveConfig(), AdaptationConfig(image="frozen"), 64)
    setattr(net, "fc" if name == "resnet18" else "classifier", nn.Identity())
    images = torch.randn(2, 3, 64, 64)
    assert torch.allclose(model.features(images), net(images), atol=1e-5)


def test_a_record_moves_no_other_and_would_in_training_mode(tmp_path, monkeypatch):
    model = encoder_of(tmp_path).train()
    images = torch.randn(4, 3, 32, 32)
    others = torch.cat([images[:1], torch.randn(3, 3, 32, 32)])
    validate(model)
    check_independence(model, random_group(32))
    assert torch.equal(model.features(images)[0], model.features(others)[0])
    monkeypatch.setattr(FixedBatchNorm, "forward", by_the_batch)
    assert not torch.allclose(model.features(images)[0], model.features(others)[0], rtol=0.01)
    with pytest.raises(UserError, match=r"FixedBatchNorm at .*\[model-mixes-records"):
        check_independence(model, random_group(32))


def test_what_is_trained_is_biases_and_scales_or_the_last_block(tmp_path):
    def trained(training):
        named = encoder_of(tmp_path, training).encoder.timm.named_parameters()
        return {name: parameter.dim() for name, parameter in named if parameter.requires_grad}

    every, biases, last = trained("full"), trained("bias"), trained("last")
    assert biases == {name: dim for name, dim in every.items() if dim == 1} and biases
    assert last == {name: dim for name, dim in every.items() if name.startswith("layer4.0.")} and last
    assert not trained("frozen")


@pytest.mark.long
def test_without_statistics_it_is_refused():
    with pytest.raises(UserError, match=r"'timm/test_resnet'.*\[encoder-batch-norm"):
        build_model(ModelConfig(image="timm/test_resnet"), ObjectiveConfig())
    with pytest.raises(UserError, match=r"RN50.*\[clip-batch-norm"):
        build_model(ModelConfig(kind="open_clip", architecture="RN50"), ObjectiveConfig())
    with pytest.raises(UserError, match="norm-no-statistics"):
        fix_batch_norm(nn.Sequential(nn.BatchNorm2d(3, track_running_stats=False)))
    further = nn.BatchNorm2d(3)
    further.gate = nn.Identity()
    with pytest.raises(UserError, match=r"BatchNorm2d holds layers of its own \(gate\).*\[norm-layers-inside"):
        fix_batch_norm(nn.Sequential(further))
    with pytest.raises(UserError, match=r"has no block.*\[tower-part"):
        from dpfed.models.parameters import train_part

        train_part(nn.Linear(2, 2), "last", "the image tower")
