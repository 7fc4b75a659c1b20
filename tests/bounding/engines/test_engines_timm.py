"""Group gradients through timm's encoders, one of each family: the layerwise engine against one backward pass per group."""

import pytest
import torch
from torch import nn

from dpfed.bounding.engines import GroupBatch, LayerwiseEngine, LoopEngine
from dpfed.config import AdaptationConfig, ModelConfig, ObjectiveConfig
from dpfed.models.building import build_model
from dpfed.models.parameters import TrainableVector

STARTS = [0, 2, 5, 9]  # each group has another size: norms come in the order of sizes
FAMILIES = {
    "ViT": ("test_vit", {}),
    "ViT with layer scale": ("test_vit3", {}),
    "ViT, adapted": ("test_vit", {"image": "lora", "rank": 4, "image_layers": ("q", "v", "out", "mlp")}),
    "ConvNeXt": ("test_convnext", {}),
    "ConvNeXt V2": ("test_convnext3", {}),
    "ResNet with GroupNorm": ("resnet50_gn", {}),
}


def build(name, adaptation):
    config = ModelConfig(image=f"timm/{name}", embedding=16, head_hidden=16)
    model = build_model(config, ObjectiveConfig(learn_temperature=True), AdaptationConfig(**adaptation), 32)
    for parameter in model.parameters():  # scales and adapters start near zero, where little can be seen
        if parameter.dim() and parameter.abs().max() < 1e-3:
            nn.init.normal_(parameter, std=0.1)
    return model


@pytest.mark.parametrize("family", FAMILIES)
def test_norms_and_sum_of_the_layerwise_engine_are_the_loops(family):
    model = build(*FAMILIES[family])
    batch = GroupBatch({"image": torch.randn(STARTS[-1], 2, 3, 32, 32)}, STARTS)
    into, expected = (TrainableVector(model).zeros() for _ in range(2))
    clip_norm = 0.5
    norms = LayerwiseEngine(model).add_clipped(batch, clip_norm, into)
    loops = [
        LoopEngine(model).add_clipped(GroupBatch({"image": batch.views["image"][first:end]}, [0, end - first]), 0.5, expected)
        for first, end in zip(STARTS, STARTS[1:], strict=False)
    ]
    torch.testing.assert_close(norms.sort().values, torch.cat(loops).sort().values, rtol=1e-4, atol=0)
    assert (norms > clip_norm).all(), "all are clipped: a gradient in another group's place would show in the sum"
    assert (into - expected).norm() / expected.norm() < 1e-3
