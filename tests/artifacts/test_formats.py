"""Exported models give, in the libraries that they are for, the features that dpfed gives: also of odd images."""

import json
import sys

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from dpfed.artifacts.formats import HOW, write_format
from dpfed.config import ModelConfig, ObjectiveConfig, ViewsConfig, parse_config
from dpfed.data.views.images import ImageViews
from dpfed.data.views.preprocessing import Preprocessing
from dpfed.encoder import load
from dpfed.errors import UserError
from dpfed.models.building import build_model, tokenizer_for
from dpfed.models.folder import ModelFacts, save_encoder
from dpfed.models.inputs import square_images
from dpfed.models.own import finish_model
from dpfed.runs.resolution import resolve_defaults
from tests.frozen_towers import frozen
from tests.models import test_timm_encoders as of_timm
from tests.models import test_towers as of_clip
from tests.models.conftest import SMALL


def pictures():
    """31 x 32 in colour, transparent and grey; and one that is wide."""
    generator = np.random.default_rng(0)
    odd = Image.fromarray(generator.integers(0, 255, (32, 31, 4), dtype=np.uint8))
    wide = Image.fromarray(generator.integers(0, 255, (9, 40, 3), dtype=np.uint8))
    return [odd.convert("RGB"), odd, odd.convert("L"), odd.convert("LA"), wide]


def saved(folder, of=of_timm, name="test_vit", **options):
    config = of.config_of(name, **options)
    model = of.model_of(config).eval()
    save_encoder(folder, model, of.facts_of(config))
    return model


def run_code(dest, names):
    """What the text beside the weights says, done."""
    code = (dest / HOW).read_text().split("```python\n")[1].split("\n```")[0].replace("DEST", str(dest))
    variables = dict(names)
    exec(code, variables)
    return variables


def transformed(dest, source):
    """The pixels that timm's text makes."""
    code = (source / HOW).read_text().split("```python\n")[1].split("\n```")[0].replace("DEST", str(source))
    variables = {}
    exec(code, variables)
    return torch.stack([variables["transform"](picture) for picture in pictures()])


_RESIZED = [(format, resize) for format in ("timm", "transformers", "state-dict") for resize in ("pad", "crop", "squash")]


@pytest.mark.long
@pytest.mark.parametrize(("format", "resize"), [*_RESIZED, ("onnx", "pad")])  # an export to ONNX takes five seconds
def test_a_timm_encoder(format, resize, tmp_path):
    saved(tmp_path / "model", resize=resize)
    for name in {"timm", format}:
        (tmp_path / name).mkdir()
        write_format(name, tmp_path / "model", tmp_path / name)
    pixels, expected = transformed(tmp_path, tmp_path / "timm"), load(tmp_path / "model").features(pictures())
    with torch.no_grad():
        if format == "transformers":
            from transformers import AutoModel

            features = AutoModel.from_pretrained(tmp_path / format).eval()(pixel_values=pixels).pooler_output
        elif format == "timm":
            features = timm.create_model(f"local-dir:{tmp_path / format}", pretrained=True).eval()(pixels)
        elif format == "onnx":
            features = run_code(tmp_path / format, {"pictures": pictures()})["image_features"]
        else:
            features = run_code(tmp_path / format, {})["encoder"].eval()(pixels)
    assert torch.allclose(torch.as_tensor(features), expected, atol=1e-5)
    assert not (tmp_path / format / "model.json").exists()


@pytest.mark.long
def test_an_open_clip_model(tmp_path):
    import open_clip

    (tmp_path / "small.json").write_text(json.dumps(SMALL))
    saved(tmp_path / "model", of_clip, str(tmp_path / "small.json"))
    (tmp_path / "out").mkdir()
    write_format("open_clip", tmp_path / "model", tmp_path / "out")
    stock, _, preprocess = open_clip.create_model_and_transforms(f"local-dir:{tmp_path / 'out'}")
    tokens = open_clip.get_tokenizer(f"local-dir:{tmp_path / 'out'}")(["a dog"])
    ours = load(tmp_path / "model")
    with torch.no_grad():
        image = stock.eval().encode_image(torch.stack([preprocess(picture) for picture in pictures()]), normalize=True)
        text = stock.encode_text(tokens, normalize=True)
    assert torch.allclose(image, ours.embed_images(pictures()), atol=1e-5)
    assert torch.allclose(text, ours.embed_text("a dog"), atol=1e-5)
    (tmp_path / "onnx").mkdir()
    write_format("onnx", tmp_path / "model", tmp_path / "onnx")
    run = run_code(tmp_path / "onnx", {"pictures": pictures(), "captions": ["a dog", "two cats"]})
    assert np.allclose(run["image_embeddings"], ours.embed_images(pictures()), atol=1e-5)
    assert np.allclose(run["text_embeddings"], ours.embed_text(["a dog", "two cats"]), atol=1e-5)
    for name in ("timm", "state-dict"):
        with pytest.raises(UserError, match=r"cannot hold .*: take 'open_clip' or 'onnx'\. \[export-format-unfit"):
            write_format(name, tmp_path / "model", tmp_path / "out")
    with pytest.raises(UserError, match="did you mean 'open_clip'.*export-format-unknown"):
        write_format("openclip", tmp_path / "model", tmp_path / "out")


@pytest.mark.parametrize("image", ["cnn", "tests.own_parts:small"])
def test_a_state_dict_says_what_builds_its_model(image, tmp_path):
    options = ModelConfig(kind="image", image=image, embedding=8, head_hidden=8, **({"width": 8} if image == "cnn" else {}))
    objective, wanted = ObjectiveConfig(), Preprocessing()
    model = build_model(options, objective, size=32)
    finish_model(model, torch.zeros(2, 3, 32, 32), None)
    facts = ModelFacts(options, objective, 32, wanted, (3, 32, 32))
    save_encoder(tmp_path / "model", model.eval(), facts)
    (tmp_path / "out").mkdir()
    write_format("state-dict", tmp_path / "model", tmp_path / "out")
    variables = run_code(tmp_path / "out", {})
    images = ImageViews(ViewsConfig(), wanted).plain(square_images(pictures(), 32, wanted))
    with torch.no_grad():
        theirs = variables["encoder"].eval()(images) if "encoder" in variables else variables["model"].eval().features(images)
        assert torch.allclose(theirs, model.features(images), atol=1e-5)
    assert ("from tests.own_parts import small" in (tmp_path / "out" / HOW).read_text()) == (image != "cnn")


@pytest.mark.long
@pytest.mark.parametrize("image", ["cnn", "tests.own_parts:small"])
def test_onnx_runs_any_number_of_images(image, tmp_path):
    import onnxruntime

    options = ModelConfig(kind="image", image=image, embedding=8, head_hidden=8, **({"width": 8} if image == "cnn" else {}))
    model = build_model(options, ObjectiveConfig(), size=32)
    finish_model(model, torch.zeros(2, 3, 32, 32), None)
    save_encoder(tmp_path / "model", model.eval(), ModelFacts(options, ObjectiveConfig(), 32, Preprocessing(), (3, 32, 32)))
    (tmp_path / "out").mkdir()
    write_format("onnx", tmp_path / "model", tmp_path / "out")
    session = onnxruntime.InferenceSession(tmp_path / "out" / "image.onnx")
    for count in (1, 2, 5):
        pixels = torch.randn(count, 3, 32, 32)
        with torch.no_grad():
            features, embeddings = session.run(None, {"pixels": pixels.numpy()})
            assert np.allclose(features, model.features(pixels), atol=1e-5)
            assert np.allclose(embeddings, model.embed_images(pixels), atol=1e-5)


def test_onnx_without_its_packages_is_refused(tmp_path, monkeypatch):
    saved(tmp_path / "model")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(UserError, match=r"pip install 'dpfed\[onnx\]'.*export-onnx-package"):
        write_format("onnx", tmp_path / "model", tmp_path)


@pytest.mark.long
def test_a_text_tower_is_one_of_transformers(tiny, tmp_path):
    from transformers import AutoModel, AutoTokenizer

    config = resolve_defaults(parse_config(frozen(tiny, tmp_path)))
    model, tokenizer = build_model(config.model, config.objective, config.adaptation, 16).eval(), tokenizer_for(config.model)
    save_encoder(tmp_path / "model", model, of_timm.facts_of(config))
    (tmp_path / "out").mkdir()
    write_format("transformers", tmp_path / "model", tmp_path / "out")
    stock, words = (
        AutoModel.from_pretrained(tmp_path / "out" / "text").eval(),
        AutoTokenizer.from_pretrained(tmp_path / "out" / "text"),
    )
    with torch.no_grad():
        states = stock(**words(["a red circle"], return_tensors="pt")).last_hidden_state[0]
        ours = model.text_features(tokenizer(["a red circle"]))[0]
    assert any(torch.allclose(ours, theirs, atol=1e-5) for theirs in (states[0], states.mean(0)))
    (tmp_path / "onnx").mkdir()
    write_format("onnx", tmp_path / "model", tmp_path / "onnx")
    captions = ["a red circle", "a"]
    run = run_code(tmp_path / "onnx", {"pictures": pictures(), "captions": captions})
    assert np.allclose(run["text_embeddings"], load(tmp_path / "model").embed_text(captions), atol=1e-5)
    pixels = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        image = AutoModel.from_pretrained(tmp_path / "out").eval()(pixel_values=pixels).pooler_output
        assert torch.allclose(image, model.features(pixels), atol=1e-5)


def test_an_encoder_is_a_step_of_a_pipeline(tmp_path):
    saved(tmp_path / "model")
    encoder = load(tmp_path / "model")
    images = [picture for _ in range(20) for picture in pictures()]
    labels = [picture.mode == "L" for picture in images]
    step = encoder.transformer()
    assert np.allclose(step.set_params(batch=7).transform(images), encoder.features(images).numpy(), atol=1e-5)
    whole = make_pipeline(clone(step), LogisticRegression(max_iter=500)).fit(images, labels)
    assert whole.predict(images[:4]).shape == (4,)
    assert np.allclose(
        encoder.transformer(contrast=True).fit_transform(images[:3]), encoder.embed_images(images[:3]), atol=1e-5
    )
    with pytest.raises(UserError, match="model-no-image"):
        step.transform([])
