"""Pretrained text towers: the features of transformers, texts kept apart, and one sentence for each folder that is none."""

import json
from pathlib import Path

import pytest
import timm
import torch

from dpfed.building.model import facts_of
from dpfed.config import AdaptationConfig, ModelConfig, ObjectiveConfig, parse_config
from dpfed.encoder import load
from dpfed.errors import UserError
from dpfed.models.building import build_model, tokenizer_for
from dpfed.models.folder import save_encoder
from dpfed.models.starting import find_start
from dpfed.models.validation import check_independence, random_group
from dpfed.runs.resolution import resolve_defaults
from tests.frozen_towers import frozen, text_folder

TEXTS = ["a small red circle", "the large green square on the left of a blue triangle", "a", "unheard"]


def model_of(folder, **model):
    config = ModelConfig(kind="image-text", width=8, embedding=16, text=folder, **model)
    return build_model(config, ObjectiveConfig(), AdaptationConfig(), 32).train(), tokenizer_for(config)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_features_are_those_of_transformers(pooling, tmp_path):
    from transformers import AutoModel, AutoTokenizer

    folder = Path(text_folder(tmp_path))
    if pooling == "cls":
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false}')
    model, tokenizer = model_of(str(folder))
    stock, stocks = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        with torch.no_grad():
            states = stock(**stocks([text], return_tensors="pt")).last_hidden_state[0]
        expected = states[0] if pooling == "cls" else states.mean(0)
        assert torch.allclose(model.text_features(tokenizer([text]))[0], expected, atol=1e-5)
    assert tokenizer([]).shape == (0, 32)


def test_only_the_heads_are_trained_and_texts_are_kept_apart(tmp_path):
    model, tokenizer = model_of(text_folder(tmp_path))
    assert [name for name, p in model.text_encoder.named_parameters() if p.requires_grad] == ["head.weight"]
    assert not any(module.training for module in model.text_encoder.backbone.modules())
    check_independence(model, random_group(32, (tokenizer.vocabulary, tokenizer.context)))


def test_a_saved_model_is_whole_and_its_tower_of_transformers(tiny, tmp_path):
    from transformers import AutoModel

    config = resolve_defaults(parse_config(frozen(tiny, tmp_path)))
    model, tokenizer = build_model(config.model, config.objective, config.adaptation, 16).eval(), tokenizer_for(config.model)
    save_encoder(tmp_path / "model", model, facts_of(config))
    for name in ("text", "image.safetensors"):
        (tmp_path / name).rename(tmp_path / f"gone-{name}")
    loaded, images = load(tmp_path / "model"), torch.randn(2, 3, 16, 16)
    assert torch.allclose(loaded.embed_text(TEXTS), model.embed_text(tokenizer(TEXTS)), atol=1e-6)
    assert torch.allclose(loaded.model.embed_images(images), model.embed_images(images), atol=1e-6)
    encoder = timm.create_model(f"local-dir:{tmp_path / 'model'}", pretrained=True).eval()  # with BatchNorm as timm has it
    assert torch.allclose(encoder(images), model.features(images), atol=1e-5)
    stock = AutoModel.from_pretrained(tmp_path / "model" / "text").state_dict()
    assert all(torch.equal(stock[name], value) for name, value in model.text_encoder.backbone.net.state_dict().items())
    (tmp_path / "gone-text").rename(tmp_path / "text")
    started = config.model.model_copy(update={"weights": None, "start": str(tmp_path / "model")})
    again = build_model(started, config.objective, config.adaptation, 16, start=find_start(tmp_path / "model")).eval()
    assert torch.allclose(again.embed_text(tokenizer(TEXTS)), model.embed_text(tokenizer(TEXTS)), atol=1e-6)


def test_the_digest_holds_weights_of_a_tower_never_sent(tiny, tmp_path):
    first = resolve_defaults(parse_config(frozen(tiny, tmp_path)))
    path = tmp_path / "text" / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(UserError, match="run-model-changed"):
        resolve_defaults(first)


def spoil(folder, name, content):
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("config.json", None, "text-no-config"),
        ("config.json", b"{", r"config.json.*\[text-unreadable"),
        ("config.json", {"model_type": "bert"}, r"wrong: 'hidden_size'.*\[text-config"),
        ("sentence_bert_config.json", {"max_seq_length": "many"}, r"sentence_bert_config.json must be .*\[text-length"),
        ("sentence_bert_config.json", ["128"], r"sentence_bert_config.json must be .*\[text-length"),
        ("vocab.txt", None, "text-no-tokenizer"),
        ("model.safetensors", None, "text-no-weights"),
        ("model.safetensors", b"nothing", "text-build"),
        ("modules.json", [{"type": "sentence_transformers.models.Dense"}], r"module Dense.*\[text-module"),
        ("1_Pooling/config.json", {"pooling_mode_max_tokens": True}, r"by max;.*\[text-pooling"),
        ("1_Pooling/config.json", {"pooling_mode_mean_tokens": False}, r"by no mode;.*\[text-pooling"),
    ],
)
def test_a_folder_that_is_none(name, content, said, tmp_path):
    folder = Path(text_folder(tmp_path))
    spoil(folder, name, content)
    with pytest.raises(UserError, match=said) as caught:
        model_of(str(folder))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 450
