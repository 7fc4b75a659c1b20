"""Weights that a model starts from: found by run, folder or file, and refused where they are another model's."""

import json
import os

import pytest
import torch
from safetensors.torch import load_file, save_file

from dpfed.building.model import facts_of
from dpfed.config import AdaptationConfig, ModelConfig, ObjectiveConfig, parse_config
from dpfed.errors import UserError
from dpfed.models.building import build_model
from dpfed.models.folder import save_encoder
from dpfed.models.lora import merged_state
from dpfed.models.starting import MissingStart, find_start
from dpfed.runs.resolution import resolve_defaults
from tests.models.conftest import SMALL

TINY = {
    "model": {"width": 4, "embedding": 8, "head_hidden": 8},
    "bounding": {"group_size": 4, "engine": "loop"},
    "privacy": {"epsilon": 4.0, "accountant": "rdp", "batch": 16, "steps": 2},
}


def config_of(model=None, objective=None, **sections):
    tree = {**TINY, **sections, "model": {**TINY["model"], **(model or {})}}
    return parse_config({**tree, "objective": objective or {}})


def built(config, start=None, seed=0):
    torch.manual_seed(seed)
    return build_model(config.model, config.objective, config.adaptation, 32, start=start)


@pytest.fixture
def saved(tmp_path):
    config = config_of()
    save_encoder(tmp_path / "model", built(config), facts_of(resolve_defaults(config)), [{"run": "r"}])
    return tmp_path / "model"


def test_a_model_gets_all_weights_but_keeps_its_temperature(saved):
    config = config_of(objective={"temperature": 0.7, "learn_temperature": True})
    model, images = built(config, find_start(saved), seed=5), torch.randn(3, 3, 32, 32)
    there = load_file(saved / "model.safetensors")
    learnt = {name: value for name, value in model.state_dict().items() if name != "log_scale"}
    assert learnt.keys() == there.keys() - {"fixed_temperature"} and len(learnt) > 8
    assert all(torch.equal(value, there[name]) for name, value in learnt.items())
    assert model.temperature.item() == pytest.approx(0.7)
    assert torch.equal(model.embed_images(images), built(config_of()).embed_images(images))
    assert not torch.equal(model.features(images), built(config, seed=5).features(images))


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ({"width": 8}, "model.width is 4 in the weights and 8 in this model"),
        ({"image": "resnet18"}, "model.image is 'cnn' in the weights and 'resnet18' in this model"),
        (
            {"embedding": 16, "head_hidden": 16},
            "model.embedding is 8 in the weights and 16 in this model, model.head_hidden is 8 in the weights",
        ),
        ({"normalisation": "layer"}, "model.normalisation"),  # of the same shapes
        ({"weight_standardisation": True}, "model.weight_standardisation"),
    ],
)
def test_another_architecture_is_refused_by_keys_and_tensors(saved, model, said):
    config = config_of(model)
    with pytest.raises(UserError, match=rf"{said}.*\[start-other-model"):
        find_start(saved).refuse_another_architecture(config.model, config.without_effect())
    (saved / "model.json").unlink()
    alone = find_start(saved / "model.safetensors")
    alone.refuse_another_architecture(config.model, config.without_effect())  # nothing says what it is
    if "normalisation" not in model:
        shape = r"(\(.*\) float32|missing)"
        with pytest.raises(UserError, match=rf"'[\w.]+' is {shape} in the weights and {shape} in this model"):
            built(config, alone)


def test_anchors_stay_the_models_own(tmp_path):
    one, two = (config_of({"normalisation": "batch", "anchor_count": count}) for count in (4, 6))
    save_encoder(tmp_path / "model", built(one), facts_of(resolve_defaults(one)))
    start = find_start(tmp_path / "model")
    start.refuse_another_architecture(two.model, two.without_effect())
    model = built(two, start, seed=3)
    assert model.encoder.anchors.shape[0] == 6 and model.encoder.anchors.any()
    weights = load_file(tmp_path / "model" / "model.safetensors")
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items() if "anchors" not in name)


def test_places_without_weights_are_refused(tmp_path, saved):
    (tmp_path / "text.txt").write_text("x")
    (tmp_path / "empty").mkdir()
    (tmp_path / "unfinished").mkdir()
    (tmp_path / "unfinished" / "config.toml").touch()
    os.mkfifo(tmp_path / "pipe.safetensors")
    for name, said in {
        "nowhere": "start-nowhere",
        "text.txt": "start-file-type",
        "empty": "start-no-model",
        "unfinished": r"`dpfed resume.*\[start-unfinished",
        "pipe.safetensors": r"not a regular file.*\[start-unreadable",
        "a" * 300: "the path given for model.start is too long.*path-too-long",
    }.items():
        with pytest.raises(UserError, match=said):
            find_start(tmp_path / name)
    with pytest.raises(MissingStart):
        find_start(tmp_path / "nowhere")
    (saved / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"model.safetensors.*\[start-file-missing"):
        find_start(saved)


def test_damaged_weights_are_refused(saved, tmp_path):
    config, file = config_of(), saved / "model.safetensors"
    start, tensors = find_start(saved), load_file(file)
    tensors["encoder.stages.0.weight" if "encoder.stages.0.weight" in tensors else sorted(tensors)[0]].view(-1)[0] += 1
    save_file(tensors, file)
    with pytest.raises(UserError, match="start-changed"):
        built(config, start)
    file.write_bytes(b"no tensors")
    (saved / "model.json").unlink()
    with pytest.raises(UserError, match="start-safetensors"):
        built(config, find_start(file))
    name = next(name for name, value in tensors.items() if value.ndim > 1)
    tensors[name].view(-1)[0] = float("nan")
    save_file(tensors, tmp_path / "nan.safetensors")
    with pytest.raises(UserError, match="start-not-finite"):
        built(config, find_start(tmp_path / "nan.safetensors"))


def test_open_clip_with_adapters_starts_from_merged_weights(architecture, tmp_path):
    pytest.importorskip("open_clip")
    model = ModelConfig(kind="open_clip", architecture=architecture(), tokenizer="words")
    objective, lora = ObjectiveConfig(), AdaptationConfig(rank=2)
    config = parse_config({**{k: v for k, v in TINY.items() if k != "model"}, "model": model.model_dump(exclude_none=True)})
    torch.manual_seed(1)
    first = build_model(model, objective, lora, 32)
    with torch.no_grad():
        for parameter in first.parameters():
            if parameter.requires_grad:
                parameter.normal_(std=0.1)
    save_encoder(tmp_path / "model", first, facts_of(resolve_defaults(config)))
    start, images = find_start(tmp_path / "model"), torch.randn(2, 3, 32, 32)
    torch.manual_seed(2)
    second = build_model(model, ObjectiveConfig(temperature=0.5), lora, 32, start=start)
    assert torch.allclose(second.embed_images(images), first.embed_images(images), atol=1e-5)  # new adapters add nothing yet
    assert second.temperature.item() == pytest.approx(0.5)
    merged, base = merged_state(first.clip), second.clip.state_dict()
    frozen = [name for name in merged if "logit" not in name and name in base]
    assert len(frozen) > 10 and all(torch.allclose(base[name], merged[name]) for name in frozen)
    other = architecture(json.loads(json.dumps({**SMALL, "text_cfg": {**SMALL["text_cfg"], "heads": 4}})), "other.json")
    said = r"text_cfg.heads is 2 in the weights and 4 in this model.*\[start-other-model"  # of the same shapes
    with pytest.raises(UserError, match=said):
        build_model(model.model_copy(update={"architecture": other}), objective, lora, 32, start=start)
