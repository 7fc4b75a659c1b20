"""Group gradients through timm's encoders, one of each family: every engine against plain autograd."""

import pytest
import torch
from timm.layers import GroupNormAct
from torch import nn

from dpfed.bounding.engines import GroupBatch, LayerwiseEngine, LoopEngine
from dpfed.bounding.layer_rules.grouping import Unsupported
from dpfed.config import AdaptationConfig, ModelConfig, ObjectiveConfig
from dpfed.models.building import build_model
from dpfed.models.norm import FixedBatchNorm
from dpfed.models.parameters import TrainableVector
from dpfed.objectives.infonce import group_loss
from tests.sparing import sparing

STARTS = [0, 2, 5, 9]  # each group has another size: norms come in the order of sizes
FAMILIES = {
    "ViT": ("test_vit", {}),
    "ViT with layer scale": ("test_vit3", {}),
    "ViT, adapted": ("test_vit", {"image": "lora", "rank": 4, "image_layers": ("q", "v", "out", "mlp")}),
    "ConvNeXt": ("test_convnext", {}),
    "ConvNeXt, adapted": ("test_convnext", {"image": "lora", "rank": 4, "image_layers": ("mlp",)}),
    "ConvNeXt V2": ("convnextv2_atto", {}),
    "BatchNorm by fixed statistics": ("test_resnet", {}),
    "BatchNorm, biases and scales": ("test_resnet", {"image": "bias"}),
    "BatchNorm, last block": ("test_resnet", {"image": "last"}),
    "ResNet with GroupNorm": ("resnet50_gn", {}),
    "ResNet with GroupNorm and standardised weights": ("resnetv2_50x1_bit", {}),
}


def build(name, adaptation, size=32):
    config = ModelConfig(image=f"timm/{name}", embedding=16, head_hidden=16)
    model = build_model(
        config, ObjectiveConfig(learn_temperature=True), AdaptationConfig(**adaptation), size, load_weights=False
    )
    for module in model.modules():
        if isinstance(module, FixedBatchNorm):  # as if it had been trained
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.5, 2)
    net = model.encoder.timm
    # One block of the first two stages: the kinds of layers are the same, and the test is fast.
    if name in ("resnet50_gn", "resnetv2_50x1_bit"):
        if name == "resnet50_gn":
            net.layer1 = net.layer1[:1]
            net.layer2 = net.layer2[:1]
            net.layer3 = nn.Identity()
            net.layer4 = nn.Identity()
        else:
            net.stages, net.norm = net.stages[:2], GroupNormAct(512, 32)
            for stage in net.stages:
                stage.blocks = stage.blocks[:1]
        model.head[0] = nn.Linear(512, 16)
    elif name == "convnextv2_atto":
        for stage in net.stages:
            stage.blocks = stage.blocks[:1]
    for parameter in model.parameters():  # scales and adapters start near zero, where little can be seen
        if parameter.requires_grad and parameter.dim() and parameter.abs().max() < 1e-3:
            nn.init.normal_(parameter, std=0.1)
    return model


def oracle(model, images, clip_norm):
    """Norms of the groups' gradients, from one call of autograd each, and the sum of the clipped ones."""
    norms, total = [], 0
    for first, end in zip(STARTS, STARTS[1:], strict=False):
        views = {"image": images[first:end]}
        loss = group_loss(model(views), torch.ones(end - first, dtype=torch.bool), model.temperature, model.bias)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        flat = torch.cat([gradient.flatten() for gradient in torch.autograd.grad(loss, trained)])
        norms.append(flat.double().norm())
        total = total + flat * min(1.0, clip_norm / flat.norm().item())
    return torch.stack(norms), total


# The layers of the others are among those of the quick ones, and each has tests of its own.
OTHERS = {"ViT", "ConvNeXt", "BatchNorm, last block", "ResNet with GroupNorm"}


@pytest.mark.long
@pytest.mark.parametrize("family", sparing(FAMILIES, *FAMILIES.keys() - OTHERS))
def test_norms_and_sum_of_every_engine_are_those_of_autograd(family):
    model = build(*FAMILIES[family])
    images, clip_norm = torch.randn(STARTS[-1], 2, 3, 32, 32), 0.05
    expected_norms, expected = oracle(model, images, clip_norm)
    assert (expected_norms > clip_norm).all(), "all are clipped: a gradient in another group's place would show in the sum"
    for engine in (LoopEngine(model), LayerwiseEngine(model, if_unlike="try")):  # after a brief look at others
        into = TrainableVector(model).zeros()
        norms = engine.add_clipped(GroupBatch({"image": images}, STARTS), clip_norm, into)
        torch.testing.assert_close(norms.sort().values, expected_norms.sort().values, rtol=1e-4, atol=0)
        assert (into - expected).norm() / expected.norm() < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_computes_groups_alike_beside_any_others(family):
    engine = LayerwiseEngine(build(*FAMILIES[family]), if_unlike="raise")
    batch = GroupBatch({"image": torch.randn(STARTS[-1], 2, 3, 32, 32)}, STARTS)
    assert len(engine.add_clipped(batch, 0.05, engine.zeros())) == len(STARTS) - 1


def test_layers_that_draw_random_numbers_are_still():
    model = build("test_vit_relpos", {}).train()  # timm gives its positions dropout
    images = {"image": torch.randn(2, 2, 3, 32, 32)}
    state = torch.random.get_rng_state()
    assert torch.equal(model(images)["image"], model(images)["image"])
    assert torch.equal(state, torch.random.get_rng_state())


def test_a_table_of_as_many_rows_is_not_taken_for_records():
    model = build("test_vit_relpos", {}, 128)  # 8 x 8 patches: a table of 15 x 15 positions goes through a linear layer
    batch = GroupBatch({"image": torch.randn(15, 2, 3, 128, 128)}, [0, 3, 6, 9, 12, 15])
    with pytest.raises(Unsupported, match="layer-rows-differ"):
        LayerwiseEngine(model).add_clipped(batch, 0.5, TrainableVector(model).zeros())
