"""Saved models: read back exactly, or refused."""

import hashlib
import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from dpfed.building.model import facts_of
from dpfed.config import Config, ModelConfig
from dpfed.errors import UserError
from dpfed.models.building import build_model
from dpfed.models.description import digest_of
from dpfed.models.folder import describe, load_encoder, save_encoder
from dpfed.runs.resolution import resolve_defaults


@pytest.fixture(params=["image", "image-text"])
def saved(request, tmp_path):
    config = resolve_defaults(Config.unchecked(model=ModelConfig(kind=request.param, width=8, text_width=16)))
    model = build_model(config.model, config.objective).eval()
    save_encoder(tmp_path, model, facts_of(config))
    return tmp_path, model


def test_a_loaded_model_gives_identical_features(saved):
    folder, model = saved
    state = torch.random.get_rng_state()
    loaded = load_encoder(folder)
    assert torch.equal(state, torch.random.get_rng_state())
    images, tokens = torch.randn(4, 3, 32, 32), torch.randint(0, 1024, (4, 24))
    assert torch.equal(model.features(images), loaded.features(images))
    assert torch.equal(model.embed_images(images), loaded.embed_images(images))
    if hasattr(model, "embed_text"):
        assert torch.equal(model.embed_text(tokens), loaded.embed_text(tokens))
    assert torch.equal(model.temperature, loaded.temperature)
    assert not loaded.training
    assert all(tensor.device.type == "cpu" for tensor in loaded.state_dict().values())


def test_the_description_says_what_a_reader_needs(saved):
    folder, model = saved
    description = describe(folder)
    assert description["image_size"] == 32
    assert description["normalisation"] == {"mean": [0.5] * 3, "std": [0.5] * 3}
    assert description["parameters"] == sum(parameter.numel() for parameter in model.parameters())
    assert sorted(path.name for path in folder.iterdir()) == ["model.json", "model.safetensors"]


@pytest.mark.parametrize("name", ["model.json", "model.safetensors"])
def test_missing_file(saved, name):
    (saved[0] / name).unlink()
    with pytest.raises(UserError, match=rf"{name}.*\[model-unreadable"):
        load_encoder(saved[0])


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": 1}', "\x00"])
def test_damaged_description(saved, text):
    (saved[0] / "model.json").write_text(text)
    with pytest.raises(UserError, match=r"model.json.*\[model-(not-described|key-missing)"):
        load_encoder(saved[0])


@pytest.mark.parametrize("model", [3, {"kind": "audio"}, {"wings": 2}])
def test_unknown_model(saved, model):
    _edit(saved[0], model=model)
    with pytest.raises(UserError, match="model-unknown"):
        load_encoder(saved[0])


@pytest.mark.parametrize("position", [-1, None])
def test_damaged_weights(saved, position):
    path = saved[0] / "model.safetensors"
    content = bytearray(path.read_bytes())
    if position is None:
        content = content[: len(content) // 2]
    else:
        content[position] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match="model-file-damaged"):
        load_encoder(saved[0])


@pytest.mark.parametrize("change", ["lacks", "unknown", "expected"])
def test_tensors_that_do_not_fit_are_named(saved, change):
    path = saved[0] / "model.safetensors"
    tensors = load_file(path)
    name = next(name for name in sorted(tensors) if tensors[name].dim() > 1)
    if change == "lacks":
        del tensors[name]
    elif change == "unknown":
        tensors[name := "zzz"] = torch.zeros(1)
    else:
        tensors[name] = tensors[name][:-1].clone()
    save_file(tensors, path)
    _match_digest(saved[0])
    with pytest.raises(UserError, match=f"{change}.*" if change == "expected" else f"{change}.*{name}"):
        load_encoder(saved[0])


def _match_digest(folder):
    _edit(folder, sha256=hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest())


def _edit(folder, **changes):
    path = folder / "model.json"
    description = json.loads(path.read_text()) | changes
    path.write_text(json.dumps(description | {"digest": digest_of(description)}))
