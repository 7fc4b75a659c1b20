"""Several layers of frozen towers side by side: those of the stock libraries, in the run and in its saved model."""

import json

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from transformers import AutoModel

import dpfed
from dpfed.artifacts.formats import write_format
from dpfed.config import parse_config
from dpfed.config.reading import read_back
from dpfed.errors import UserError
from dpfed.models.description import digest_of
from dpfed.models.moments import has_several_layers
from dpfed.models.timm_encoders import TimmEncoder, build_timm
from dpfed.privacy.randomness import Randomness
from dpfed.runs import public_basis
from dpfed.runs.build import build
from dpfed.runs.pretraining import pretrain
from tests.frozen_towers import frozen


@pytest.fixture
def tree(tiny_moments, tmp_path, monkeypatch):
    """A run of private moments behind towers that nobody aligned."""
    monkeypatch.setattr(public_basis, "GENERATED", 120)
    return tiny_moments | {"model": frozen(tiny_moments, tmp_path)["model"], "privacy": {"epsilon": 8.0, "seed": 3}}


def built(tree):
    return build(parse_config(tree), Randomness.from_seed(0))


def side_by_side(*pieces):
    return torch.cat([F.normalize(piece, dim=1) for piece in pieces], 1)


@pytest.mark.long
@torch.inference_mode()
def test_features_are_those_of_stock_timm_and_transformers(tree):
    model, images = built(tree).model, torch.randn(3, 3, 16, 16)
    stock = timm.create_model("test_resnet", num_classes=0)
    stock.load_state_dict(model.image_encoder.timm.state_dict())
    stock.eval()
    _, maps = stock.forward_intermediates(images, indices=[-2])
    expected = side_by_side(stock(images), maps[0].mean((2, 3)))  # the mean of a ResNet's last stage is its features
    assert expected.shape[1] == model.image_encoder.features_dim
    torch.testing.assert_close(model.features(images), expected)
    text = AutoModel.from_pretrained(tree["model"]["text"]).eval()
    tokens = torch.tensor([[2, 5, 6, 3, 0, 0], [2, 7, 8, 9, 10, 3]])
    states = text(input_ids=tokens, attention_mask=tokens.bool().long(), output_hidden_states=True).hidden_states
    means = [torch.stack([vectors[row != 0].mean(0) for vectors, row in zip(one, tokens, strict=True)]) for one in states]
    assert len(states) == 3  # the embeddings, and two layers
    torch.testing.assert_close(model.text_features(tokens), side_by_side(means[2], means[1]), atol=1e-5, rtol=1e-4)


@pytest.mark.long
def test_a_saved_model_has_the_layers_and_one_of_an_earlier_release_the_last(tree, tmp_path):
    run = pretrain(parse_config(tree), tmp_path / "run")
    pictures = np.random.default_rng(0).integers(0, 255, (4, 16, 16, 3), dtype=np.uint8)
    assert has_several_layers(dpfed.load(run.path).model)
    said = json.loads((run.model / "model.json").read_text())["moments"]
    assert (said["several_layers"], said["stages"]) == (True, [-2])
    tree["bounding"]["options"] = {"layers": "last"}
    old = pretrain(parse_config(tree), tmp_path / "old")
    expected, path = dpfed.load(old.path).embed_images(pictures), old.model / "model.json"
    said = json.loads(path.read_text())
    del said["moments"]["several_layers"]
    path.write_text(json.dumps(said | {"digest": digest_of(said)}))
    loaded = dpfed.load(old.model)
    assert not has_several_layers(loaded.model) and torch.equal(loaded.embed_images(pictures), expected)


@pytest.mark.long
def test_the_run_says_which_layers(tree, tmp_path):
    run = pretrain(parse_config(tree), tmp_path / "run")
    assert run.config().bounding.options["layers"] == "several"
    assert "image_layers = 2, text_layers = 2" in run.card.read_text()


def test_a_configuration_of_an_earlier_release_takes_the_last_layer(tree):
    tree["bounding"] = {"method": "moments", "options": {"basis": "generated"}}
    assert read_back(tree, "config.toml").bounding.options["layers"] == "last"


@pytest.mark.parametrize("name", ["test_efficientnet", "test_convnext", "test_resnet", "resnet18", "levit_128s", "densenet121"])
def test_stages_are_the_same_with_and_without_weights(name):
    """A model is loaded over random weights, and must then have the shapes that it had with its own."""
    facts = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        net = timm.create_model(name, num_classes=0)
        if seed:  # as training leaves them
            for module in net.modules():
                if isinstance(module, torch.nn.BatchNorm1d | torch.nn.BatchNorm2d):
                    torch.nn.init.normal_(module.running_mean, std=0.1)
                    torch.nn.init.uniform_(module.running_var, 0.5, 2)
        encoder = TimmEncoder(net, net.num_features, 224)
        encoder.give_several_layers()
        encoder.give_several_layers()
        facts.append((encoder.stages, encoder.features_dim))
        assert encoder.eval()(torch.randn(2, 3, 224, 224)).shape[1] == encoder.features_dim
    assert facts[0] == facts[1]
    assert facts[0][0] == ((-2, -1) if name in ("test_efficientnet", "test_convnext") else (-2,))


@pytest.mark.parametrize("basis", ["random", "generated"])
def test_random_rows_take_the_last_layer(tree, basis):
    tree["bounding"]["options"] = {"basis": basis}
    assert has_several_layers(built(tree).model) is (basis == "generated")


def test_a_vision_transformer_has_no_stages(tree):
    encoder = build_timm(parse_config(tree | {"model": {"kind": "image", "image": "timm/test_vit"}}).model, 160, False)
    width = encoder.features_dim
    encoder.give_several_layers()
    assert not encoder.stages and encoder.features_dim == width


def test_aligned_towers_keep_their_last_layers(tiny_moments):
    tiny_moments["bounding"]["options"] = {"layers": "several"}
    with pytest.raises(UserError, match="layers-aligned"):
        built(tiny_moments)


@pytest.mark.long
def test_onnx_has_the_layers_and_the_heads(tree, tmp_path):
    import onnxruntime

    run = pretrain(parse_config(tree), tmp_path / "run")
    (tmp_path / "out").mkdir()
    write_format("onnx", run.model, tmp_path / "out")
    encoder, pixels = dpfed.load(run.path), torch.randn(3, 3, 16, 16)
    with torch.inference_mode():
        expected = encoder.model.embed_images(pixels).numpy()
    features, embeddings = onnxruntime.InferenceSession(tmp_path / "out" / "image.onnx").run(None, {"pixels": pixels.numpy()})
    assert np.allclose(embeddings, expected, atol=1e-5) and np.allclose(features, expected, atol=1e-5)
    tokens = encoder._tokenizer(["a red circle", "blue"])
    (text,) = onnxruntime.InferenceSession(tmp_path / "out" / "text.onnx").run(None, {"tokens": tokens.numpy()})
    assert np.allclose(text, encoder.embed_text(["a red circle", "blue"]), atol=1e-5)
