"""open_clip models: built from a name, a file or a folder, trained as asked, and read back by stock open_clip."""

import contextlib
import json
import math
import sys
import types

import open_clip
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from dpfed.building.model import facts_of
from dpfed.config import AdaptationConfig, Config, ModelConfig, ObjectiveConfig
from dpfed.data.views.preprocessing import Preprocessing
from dpfed.encoder import load
from dpfed.errors import UserError
from dpfed.models.blueprints import blueprint
from dpfed.models.building import build_model, tokenizer_for
from dpfed.models.folder import save_encoder
from dpfed.models.images import preprocessing_of
from dpfed.models.validation import check_independence, random_group, validate
from dpfed.runs.resolution import resolve_defaults
from tests.models.conftest import SIGLIP, SMALL
from tests.models.test_timm_encoders import pictures_of_every_mode

CAPTIONS = ["a small red circle", "a dog", "", "one two three four five six seven eight nine ten eleven twelve"]


def config_of(name, objective=None, **model):
    config = Config(
        model=ModelConfig(kind="open_clip", architecture=name, **model),
        objective=objective or ObjectiveConfig(temperature=0.05),
        adaptation=AdaptationConfig(rank=4),
    )
    return resolve_defaults(config)


def model_of(config):
    model = build_model(config.model, config.objective, config.adaptation, config.data.size)
    for parameter in model.parameters():
        if parameter.requires_grad and parameter.dim():
            torch.nn.init.normal_(parameter, std=0.05)
    return model.eval()


@pytest.mark.long
@pytest.mark.parametrize("content", [SMALL, SIGLIP], ids=["clip", "siglip"])
@pytest.mark.parametrize("loss", ["infonce", "siglip"])
def test_a_saved_model_is_the_same_in_stock_open_clip(architecture, tmp_path, content, loss):
    objective = ObjectiveConfig(name=loss, temperature=0.05, bias=-3.0 if loss == "siglip" else None)
    config = config_of(architecture(content), objective)
    model = model_of(config)
    save_encoder(tmp_path / "model", model, facts_of(config))
    stock, _, preprocess = open_clip.create_model_and_transforms(f"local-dir:{tmp_path / 'model'}")
    stock.eval()
    tokenize = open_clip.get_tokenizer(f"local-dir:{tmp_path / 'model'}")
    encoder = load(tmp_path / "model")
    pictures = [Image.effect_noise((50, 70), 90).convert("RGB"), Image.radial_gradient("L").convert("RGB")]
    with torch.no_grad():
        images = stock.encode_image(torch.stack([preprocess(picture) for picture in pictures]), normalize=True)
        texts = stock.encode_text(tokenize(CAPTIONS), normalize=True)
    assert torch.allclose(texts, encoder.embed_text(CAPTIONS), atol=1e-5)
    assert torch.allclose(texts, model.embed_text(tokenizer_for(config.model)(CAPTIONS)), atol=1e-5)
    assert torch.allclose(images, encoder.embed_images(pictures), atol=0.02)  # two ways to resize a picture
    assert stock.logit_scale.exp().item() == pytest.approx(1 / 0.05)
    if loss == "siglip":
        assert stock.logit_bias.item() == pytest.approx(-3.0)


def test_a_learnt_temperature_at_its_limit_is_the_same_in_stock_open_clip(architecture, tmp_path):
    config = config_of(architecture(), ObjectiveConfig(temperature=0.02, learn_temperature=True))
    model = model_of(config)
    with torch.no_grad():
        model.clip.logit_scale.fill_(4.7)
    save_encoder(tmp_path / "model", model, facts_of(config))
    stock = open_clip.create_model(f"local-dir:{tmp_path / 'model'}")
    assert 1 / stock.logit_scale.exp().item() == pytest.approx(model.temperature.item()) == pytest.approx(0.01)


def test_the_loaded_weights_are_the_given_ones(architecture, tmp_path):
    name = architecture()
    torch.manual_seed(3)
    source = build_model(config_of(name).model, ObjectiveConfig(), AdaptationConfig(image="full", text="full")).clip
    save_file({k: v.contiguous() for k, v in source.state_dict().items()}, tmp_path / "w.safetensors")
    torch.save(source.state_dict(), tmp_path / "w.pt")
    images = torch.randn(2, 3, 32, 32)
    for file in ("w.safetensors", "w.pt"):
        model = build_model(config_of(name, weights=str(tmp_path / file)).model, ObjectiveConfig()).eval()
        assert torch.allclose(model.features(images), source.eval().encode_image(images), atol=1e-6)


@pytest.mark.parametrize(
    ("name", "size", "resize", "mean"),
    [
        ("ViT-B-32", 224, "crop", 0.48145466),
        ("ViT-B-16", 224, "crop", 0.48145466),
        ("ViT-L-14", 224, "crop", 0.48145466),
        ("ViT-L-14-336", 336, "crop", 0.48145466),
        ("ViT-B-16-SigLIP", 224, "squash", 0.5),
        ("ViT-SO400M-14-SigLIP-384", 384, "squash", 0.5),
    ],
)
def test_a_published_architecture_brings_its_own_preprocessing(name, size, resize, mean):
    config = config_of(name)
    expected = preprocessing_of(config.model, config.data.resize)
    assert (config.data.size, expected.resize, expected.mean[0]) == (size, resize, mean)
    padded = config.model_copy(update={"data": config.data.model_copy(update={"resize": "pad"})})
    assert preprocessing_of(padded.model, padded.data.resize) == Preprocessing(
        expected.mean, expected.std, "pad", expected.interpolation
    )


def test_the_tokenizer_is_open_clips_own(architecture):
    tokenizer = tokenizer_for(ModelConfig(kind="open_clip", architecture="ViT-B-32"))
    assert torch.equal(tokenizer(CAPTIONS), open_clip.get_tokenizer("ViT-B-32")(CAPTIONS))
    assert tokenizer(CAPTIONS).shape == (4, 77) and tokenizer([]).shape == (0, 77)
    assert tokenizer_for(ModelConfig(kind="open_clip", architecture=architecture())).context == 16


def test_records_are_kept_apart(architecture):
    for content in (SMALL, SIGLIP):
        model = model_of(config_of(architecture(content)))
        validate(model)
        check_independence(model, random_group(32, (49408, 16)))


def test_a_pairwise_losss_bias_starts_at_the_odds_of_a_pair(architecture):
    config = config_of(architecture(), ObjectiveConfig(name="siglip"))
    assert config.objective.bias == pytest.approx(-2.70805, abs=1e-4)  # -ln 15: one right among 16
    assert build_model(config.model, config.objective).bias.item() == pytest.approx(-2.70805, abs=1e-4)


def test_an_architecture_cannot_make_a_tokenizer_run_code(tmp_path, monkeypatch):
    """`trust_remote_code` in a downloaded JSON would run what lies beside it."""
    given = {}

    class AutoTokenizer:
        @staticmethod
        def from_pretrained(source, **options):
            given.update(options, source=source)
            return lambda *_, **__: None

    monkeypatch.setitem(sys.modules, "transformers", types.SimpleNamespace(AutoTokenizer=AutoTokenizer))
    text = {**SMALL["text_cfg"], "hf_tokenizer_name": "x/y", "tokenizer_kwargs": {"trust_remote_code": True, "clean": "lower"}}
    (tmp_path / "open_clip_config.json").write_text(json.dumps({"model_cfg": {**SMALL, "text_cfg": text}}))
    (tmp_path / "tokenizer_config.json").write_text("{}")
    tokenizer_for(ModelConfig(kind="open_clip", architecture=f"local-dir:{tmp_path}"))
    assert given["source"] == str(tmp_path) and given["trust_remote_code"] is False


class TestMistakes:
    """One clear sentence each."""

    def refused(self, name, match, **model):
        with pytest.raises(UserError, match=match) as caught:
            config = config_of(name, **model)
            tokenizer_for(config.model)
            build_model(config.model, config.objective)
        assert str(caught.value).count("\n") == 0 and len(str(caught.value)) < 400

    def test_an_architecture_that_does_not_exist(self):
        self.refused("ViT-B32", r"'ViT-B32'; .*ViT-B-32.*\[clip-architecture")

    def test_weights_that_do_not_exist(self):
        self.refused("w.txt", r"valid: .* and [0-9]+ more.*\[clip-architecture")
        self.refused("ViT-B-32", r"laion2b_s34b_b79k.*\[clip-weights", weights="laion2b_s34b_b79")

    def test_weights_that_do_not_fit(self, architecture, tmp_path):
        save_file({"visual.conv1.weight": torch.zeros(3)}, tmp_path / "w.safetensors")
        self.refused(architecture(), "weights-misfit", weights=str(tmp_path / "w.safetensors"))

    def test_weights_that_are_no_weights(self, architecture, tmp_path):
        (tmp_path / "w.txt").write_text("not weights at all")
        self.refused(architecture(), "expected .safetensors, .npz, .npy, or .*weights-type", weights=str(tmp_path / "w.txt"))
        (tmp_path / "w.safetensors").write_bytes(b"not weights at all")
        self.refused(architecture(), "weights-unreadable", weights=str(tmp_path / "w.safetensors"))
        (tmp_path / "w.npz").write_bytes(b"PK\x03\x04 a copy that was cut off")
        self.refused(architecture(), "weights-unreadable", weights=str(tmp_path / "w.npz"))
        torch.save([1, 2], tmp_path / "w.pt")
        self.refused(architecture(), r"of an open_clip model.*\[weights-no-names", weights=str(tmp_path / "w.pt"))

    def test_a_pickle_that_would_run_code(self, architecture, tmp_path):
        torch.save({"state_dict": open_clip.create_model}, tmp_path / "w.pt")
        self.refused(architecture(), "weights-unsafe", weights=str(tmp_path / "w.pt"))

    def test_a_tokenizer_that_would_have_to_be_fetched(self):
        self.refused("ViT-B-16-SigLIP", r"model.tokenizer = 'words'.*\[tokenizer-not-shipped")
        words = tokenizer_for(ModelConfig(kind="open_clip", architecture="ViT-B-16-SigLIP", tokenizer="words"))
        assert (words.vocabulary, words.context) == (32000, 64)


@pytest.mark.parametrize("resize", ["pad", "crop", "squash"])
def test_stock_open_clip_prepares_odd_pictures_alike(architecture, tmp_path, resize):
    config = config_of(architecture(SMALL))
    config = config.model_copy(update={"data": config.data.model_copy(update={"resize": resize})})
    save_encoder(tmp_path / "model", model_of(config), facts_of(config))
    stock, _, preprocess = open_clip.create_model_and_transforms(f"local-dir:{tmp_path / 'model'}")
    pictures = list(pictures_of_every_mode())
    with torch.no_grad():
        expected = stock.eval().encode_image(torch.stack([preprocess(picture) for picture in pictures]), normalize=True)
    assert torch.allclose(load(tmp_path / "model").embed_images(pictures), expected, atol=1e-5)


@pytest.mark.parametrize(("mode", "colour", "refused"), [("longest", 255, True), ("longest", 0, False), ("squash", 255, False)])
def test_borders_of_another_colour_are_refused(tmp_path, mode, colour, refused):
    cfg = {"model_cfg": SMALL, "preprocess_cfg": {"resize_mode": mode, "fill_color": colour}}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(cfg))
    with pytest.raises(UserError, match="clip-fill-color") if refused else contextlib.nullcontext():
        facts_of(config_of(f"local-dir:{tmp_path}"))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"preprocess_cfg": {"resize_mode": "stretch"}}, r"resize_mode must be shortest or .*'stretch'.*\[clip-preprocess"),
        ({"preprocess_cfg": {"interpolation": "nearest"}}, r"interpolation must be .*\[clip-preprocess"),
        ({"preprocess_cfg": {"mean": 0.5}}, r"mean must be three numbers.*\[clip-preprocess"),
        ({"preprocess_cfg": {"std": [1, 1, None]}}, r"std must be three numbers.*\[clip-preprocess"),
        ({"preprocess_cfg": {"std": [1, 1, 0]}}, r"std must be three numbers above 0.*\[clip-preprocess"),
        ({"preprocess_cfg": {"mean": [0, 0, math.nan]}}, r"mean must be three numbers.*\[clip-preprocess"),
        ({"preprocess_cfg": ["shortest"]}, r"preprocess_cfg must be an object.*\[clip-preprocess"),
        ({"model_cfg": SMALL | {"vision_cfg": None}}, "vision_cfg must be an object.*clip-config-towers"),
        ({"model_cfg": SMALL | {"vision_cfg": {"image_size": [32]}}}, "image_size.*clip-config-towers"),
        ({"model_cfg": SMALL | {"text_cfg": {"vocab_size": None}}}, "vocab_size.*clip-config-towers"),
    ],
)
def test_a_malformed_architecture_is_a_sentence(tmp_path, changes, said):
    path = tmp_path / "odd.json"
    path.write_text(json.dumps({"model_cfg": SMALL, **changes}))
    with pytest.raises(UserError, match=said):
        blueprint(ModelConfig(kind="open_clip", architecture=str(path)))


def test_preprocessing_that_is_null_is_the_default(tmp_path):
    path = tmp_path / "odd.json"
    made = []
    for further in ({}, {"preprocess_cfg": None}):
        path.write_text(json.dumps({"model_cfg": SMALL, **further}))
        made.append(blueprint(ModelConfig(kind="open_clip", architecture=str(path))))
    assert made[0] == made[1]
