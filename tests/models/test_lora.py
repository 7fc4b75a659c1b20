"""Adapters: on the layers that were asked for and nowhere else, and gone without a trace once merged."""

import itertools

import pytest
import torch
from torch import nn

from dpfed.config import AdaptationConfig, ModelConfig, ObjectiveConfig
from dpfed.models.building import build_model
from dpfed.models.lora import merged_state
from tests.models.conftest import SIGLIP, SMALL

LAYERS = ["q", "k", "v", "out", "mlp"]
SUBSETS = [list(chosen) for size in (1, 2, 3) for chosen in itertools.combinations("qkv", size)] + [["out"], ["mlp"], LAYERS]


def clip_of(name, **adaptation):
    config = ModelConfig(kind="open_clip", architecture=name)
    return build_model(config, ObjectiveConfig(), AdaptationConfig(rank=4, alpha=8, **adaptation))


def group_of(model, size=32, context=16):
    return {"image": torch.randn(3, 1, 3, size, size), "text": torch.randint(1, 49407, (3, 1, context))}


def stir(model):
    for parameter in model.parameters():
        if parameter.requires_grad:
            nn.init.normal_(parameter, std=0.05)


def blocks_changed(before, after):
    return "".join(name for name, a, b in zip("qkv", before.chunk(3), after.chunk(3), strict=True) if not torch.equal(a, b))


@pytest.mark.parametrize("layers", SUBSETS, ids="+".join)
def test_exactly_the_chosen_layers_of_the_packed_weights_move(architecture, layers):
    torch.manual_seed(1)
    model = clip_of(architecture(), image_layers=layers, text_layers=layers)
    before = {name: value.clone() for name, value in merged_state(model.clip).items()}
    stir(model)
    for name, value in merged_state(model.clip).items():
        if name.endswith("in_proj_weight"):
            assert blocks_changed(before[name], value) == "".join(layer for layer in "qkv" if layer in layers), name
        else:
            touched = ("out" in layers and name.endswith("out_proj.weight")) or (
                "mlp" in layers and ".mlp." in name and name.endswith("weight")
            )
            assert torch.equal(before[name], value) != touched, name


@pytest.mark.parametrize("content", [SMALL, SIGLIP], ids=["clip", "timm"])
@pytest.mark.parametrize("layers", [["q", "v"], LAYERS], ids="+".join)
def test_every_adapter_gets_a_gradient_and_nothing_else_does(architecture, content, layers):
    model = clip_of(architecture(content), image_layers=layers, text_layers=layers)
    stir(model)
    embeddings = model(group_of(model))
    (embeddings["image"] * embeddings["text"].roll(1, 0)).sum().backward()
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert all("parametrizations" in name and name.endswith((".down", ".up")) for name in trained)
    assert {"visual", "t"} == {"visual" if ".visual." in name else "t" for name in trained}
    for name, parameter in model.named_parameters():
        assert (parameter.grad is not None and parameter.grad.abs().sum() > 0) == (name in trained), name


def test_an_adapted_model_starts_as_the_model_that_it_adapts(architecture):
    name = architecture()
    torch.manual_seed(0)
    plain = clip_of(name, image="full", text="full").eval()
    torch.manual_seed(0)
    adapted = clip_of(name).eval()
    views = group_of(plain)
    for kind, z in plain(views).items():
        assert torch.allclose(z, adapted(views)[kind], atol=1e-6)


@pytest.mark.parametrize("content", [SMALL, SIGLIP], ids=["clip", "timm"])
def test_merged_weights_are_the_adapted_function_in_stock_names(architecture, content):
    name = architecture(content)
    model = clip_of(name, image_layers=LAYERS, text_layers=LAYERS).eval()
    stir(model)
    stock = clip_of(name, image="full", text="full").eval()
    merged = merged_state(model.clip)
    assert merged.keys() == stock.clip.state_dict().keys()
    stock.clip.load_state_dict(merged)
    views = group_of(model)
    for kind, z in model(views).items():
        assert torch.allclose(z, stock(views)[kind], atol=1e-5)
    assert all("parametrizations" not in name for name in merged)


def test_one_tower_may_be_adapted_the_other_trained_or_frozen(architecture):
    def trained(**adaptation):
        names = [n for n, p in clip_of(architecture(), **adaptation).named_parameters() if p.requires_grad]
        return {(".visual." in n, "parametrizations" in n) for n in names}

    assert trained(image="lora", text="frozen") == {(True, True)}
    assert trained(image="frozen", text="full") == {(False, False)}  # LiT
    assert trained(image="full", text="lora") == {(True, False), (False, True)}
