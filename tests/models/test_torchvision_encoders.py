"""torchvision's encoders: the features of stock torchvision, saved so that it reads them, or refused in a sentence."""

import pytest
import torch
from safetensors.torch import load_file
from torchvision import models

from dpfed.building.model import facts_of
from dpfed.config import AdaptationConfig, Config, DataConfig, ModelConfig
from dpfed.errors import UserError
from dpfed.models.building import build_model
from dpfed.models.folder import load_encoder, save_encoder
from dpfed.models.images import preprocessing_of
from dpfed.runs.resolution import resolve_defaults


def config_of(image, size=64, **model):
    return resolve_defaults(
        Config(
            data=DataConfig(size=size),
            model=ModelConfig(image=f"torchvision/{image}", embedding=8, head_hidden=8, **model),
            adaptation=AdaptationConfig(image="frozen"),
        )
    )


@pytest.mark.long
@pytest.mark.parametrize("name", ["mobilenet_v3_small", "shufflenet_v2_x0_5", "resnet18", "googlenet"])
def test_features_are_those_before_stock_torchvisions_classifier(name, tmp_path):
    stock = models.get_model(name, num_classes=7, **({"init_weights": False} if name == "googlenet" else {})).eval()
    torch.save(stock.state_dict(), tmp_path / "w.pth")
    config = config_of(name, weights=str(tmp_path / "w.pth"))
    assert preprocessing_of(config.model, config.data.resize).mean == (0.485, 0.456, 0.406)
    model = build_model(config.model, config.objective, config.adaptation, 64)
    model.train()  # what is frozen stays in evaluation mode, and draws nothing
    last = stock.classifier if name.startswith("mobilenet") else stock
    setattr(last, *(("3",) if name.startswith("mobilenet") else ("fc",)), torch.nn.Identity())
    images = torch.randn(3, 3, 64, 64)
    with torch.no_grad():
        expected = stock(images)
        assert torch.allclose(model.features(images), expected, atol=1e-5)
        save_encoder(tmp_path / "model", model, facts_of(config))
        assert torch.allclose(load_encoder(tmp_path / "model").features(images), expected, atol=1e-5)
    assert set(load_file(tmp_path / "model" / "model.safetensors")) <= set(torch.load(tmp_path / "w.pth"))


@pytest.mark.parametrize(
    ("image", "model", "said"),
    [
        ("resnet8", {}, r"did you mean 'resnet18'.*\[encoder-torchvision"),
        ("resnet18", {}, "encoder-batch-norm"),
        ("resnet18", {"weights": "IMAGENET1K_V3"}, r"did you mean 'IMAGENET1K_V1'.*\[weights-tag"),
        ("squeezenet1_1", {}, "encoder-no-features"),
        ("vit_b_32", {}, r"images of 64 pixels.*\[encoder-size"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(image, model, said):
    with pytest.raises(UserError, match=said):
        config = config_of(image, **model)
        build_model(config.model, config.objective, config.adaptation, 64)
