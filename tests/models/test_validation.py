"""The validator: refuses what mixes records, by name, and lets everything else through."""

import pytest
import torch
from torch import nn

from dpfed.config import ModelConfig, ObjectiveConfig
from dpfed.errors import UserError
from dpfed.models.building import build_model
from dpfed.models.contrastive import SimCLRModel
from dpfed.models.validation import check_independence, random_group, validate


class CentreOnTheBatch(nn.Module):
    def forward(self, x):
        return x - x.mean(0)


class CountsItsInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen += x.detach().abs().mean()
        return x


def small(kind: str = "image", **changes) -> nn.Module:
    torch.manual_seed(0)
    return build_model(ModelConfig(kind=kind, width=8, text_width=16, **changes), ObjectiveConfig())


@pytest.mark.parametrize("kind", ["image", "image-text"])
@pytest.mark.parametrize("image", ["cnn", "resnet18", "resnet50"])
def test_our_models_pass(kind, image):
    model = small(kind, image=image)
    validate(model)
    check_independence(model, random_group(16, (1024, 24) if kind == "image-text" else None))


@pytest.mark.parametrize(
    "layer", [nn.BatchNorm1d(4), nn.BatchNorm2d(4), nn.BatchNorm3d(4), nn.SyncBatchNorm(4), nn.LazyBatchNorm2d()]
)
def test_batch_norm_is_refused_by_name(layer):
    model = small()
    model.encoder.stages[1] = layer
    with pytest.raises(UserError, match=rf"{type(layer).__name__} at 'encoder\.stages\.1' .*\[model-batch-norm"):
        validate(model)


def test_instance_norm_is_refused_only_with_running_statistics():
    model = small()
    model.encoder.stages[1] = nn.InstanceNorm2d(8, affine=True)
    validate(model)
    check_independence(model, random_group(16))
    model.encoder.stages[1] = nn.InstanceNorm2d(8, track_running_stats=True)
    with pytest.raises(UserError, match=r"InstanceNorm2d at 'encoder\.stages\.1' .*\[norm-instance"):
        validate(model)


@pytest.mark.parametrize("layer", [CentreOnTheBatch(), nn.BatchNorm2d(8, track_running_stats=False)])
def test_mixing_layers_are_found_by_running_them(layer):
    model = small()
    model.encoder.stages[1] = nn.Sequential(nn.Identity(), layer)
    with pytest.raises(UserError, match=rf"{type(layer).__name__} at 'encoder\.stages\.1\.1' .*\[model-mixes-records"):
        check_independence(model, random_group(16))


def test_mixing_in_forward_itself_is_found():
    class Mixes(nn.Module):
        def forward(self, views):
            return {"image": views["image"].flatten(2) + views["image"].sum()}

    with pytest.raises(UserError, match=r"^Mixes .*\[model-mixes-records"):
        check_independence(Mixes(), random_group(8))


def test_a_buffer_that_changes_is_refused_and_put_back():
    model = small().eval()
    model.head.insert(0, CountsItsInputs())
    with pytest.raises(UserError, match=r"'head\.0\.seen'.*\[model-buffer-changes"):
        check_independence(model, random_group(16))
    assert model.head[0].seen == 0


class ChangesWhatItNeeds(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.sigmoid()
        y += 1
        return y


def test_a_backward_pass_that_fails_is_a_sentence():
    model = SimCLRModel(nn.Sequential(nn.Flatten(), nn.Linear(48, 4), ChangesWhatItNeeds()), nn.Linear(4, 4))
    with pytest.raises(UserError, match=r"inplace operation.*\[model-backward"):
        check_independence(model, random_group(4))


def test_a_layer_that_mixes_a_group_without_anchors_is_refused():
    layer = nn.Identity()
    layer.mixes_one_group = True
    with pytest.raises(UserError, match="norm-no-anchors"):
        validate(nn.Sequential(layer))
