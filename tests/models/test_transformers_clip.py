"""A CLIP model in transformers' format gives there what it gives in open_clip: for images, captions and pairs."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from dpfed.data.views.preprocessing import Preprocessing
from dpfed.errors import UserError
from dpfed.models.transformers_clip import transformers_files
from tests.models.conftest import SIGLIP, SMALL

open_clip = pytest.importorskip("open_clip")
TEXTS = ["a small red circle", "It's 42% ünïcode!!   naïve", "", "word " * 40]
GREY = (0.5,) * 3


def stock(folder, model_cfg):
    """An open_clip model with random weights that matter everywhere: also biases and positions."""
    folder.mkdir(exist_ok=True)
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": model_cfg}))
    model = open_clip.create_model(f"local-dir:{folder}", load_weights=False).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model


def tokenizer(context=16):
    return open_clip.tokenizer.SimpleTokenizer(context_length=context)


def converted(model, model_cfg, resize="crop", size=32, interpolation="bicubic"):
    preprocessing = Preprocessing(GREY, (0.25, 0.5, 1.0), resize, interpolation)
    return transformers_files(model_cfg, model.state_dict(), preprocessing, size, tokenizer())


@pytest.mark.parametrize("changes", [{}, {"quick_gelu": True}], ids=["gelu", "quick gelu"])
@pytest.mark.parametrize(("resize", "mode"), [("crop", "shortest"), ("squash", "squash")])
def test_images_captions_and_pairs_come_out_alike(tmp_path, changes, resize, mode):
    transformers = pytest.importorskip("transformers")
    model_cfg = {**SMALL, **changes}
    model = stock(tmp_path / "stock", model_cfg)
    for name, content in converted(model, model_cfg, resize).items():
        (tmp_path / name).write_bytes(content)
    theirs = transformers.CLIPModel.from_pretrained(tmp_path).eval()
    processor = transformers.CLIPProcessor.from_pretrained(tmp_path)
    pixels = np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    images = [Image.fromarray(pixels), Image.fromarray(pixels[:32, :32])]
    given = processor(images=images, text=TEXTS, return_tensors="pt", padding="max_length", truncation=True)
    transform = open_clip.image_transform(32, False, mean=GREY, std=(0.25, 0.5, 1.0), resize_mode=mode)
    views = torch.stack([transform(image) for image in images])
    assert (given["pixel_values"] - views).abs().max() < 0.02  # of two libraries that scale images
    with torch.no_grad():
        ours = model(views, tokenizer()(TEXTS))
        found = theirs(pixel_values=views, input_ids=given["input_ids"], attention_mask=given["attention_mask"])
    assert torch.allclose(found.image_embeds, ours[0], atol=1e-5) and torch.allclose(found.text_embeds, ours[1], atol=1e-5)
    assert torch.allclose(found.logits_per_image, ours[2] * ours[0] @ ours[1].T, atol=1e-3)


def test_the_published_vit_is_an_architecture_that_both_have():
    from dpfed.models.transformers_clip import _refuse_others

    for name in ("ViT-B-32", "ViT-B-16", "ViT-L-14-336", "ViT-B-32-quickgelu"):
        _refuse_others(open_clip.get_model_config(name), Preprocessing(GREY, GREY, "crop", "bicubic"), tokenizer())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"vision_cfg": {**SMALL["vision_cfg"], "attentional_pool": True}}, "vision_cfg.attentional_pool = True"),
        ({"text_cfg": {**SMALL["text_cfg"], "no_causal_mask": True}}, "text_cfg.no_causal_mask = True"),
        ({"vision_cfg": {**SMALL["vision_cfg"], "layers": [2, 2, 2, 2]}}, "which is no transformer"),
        ({"custom_text": True}, "custom_text = True"),
        (SIGLIP, "CLIPModel cannot compute"),
    ],
)
def test_what_transformers_computes_otherwise_is_refused(tmp_path, changes, said):
    with pytest.raises(UserError, match=said):
        converted(stock(tmp_path / "stock", SMALL), {**SMALL, **changes})


def test_padded_images_other_tokenizers_and_unknown_tensors_are_refused(tmp_path):
    model = stock(tmp_path / "stock", SMALL)
    with pytest.raises(UserError, match="its images are padded"):
        converted(model, SMALL, "pad")
    with pytest.raises(UserError, match="tokenizer is not CLIP's own"):
        transformers_files(SMALL, model.state_dict(), Preprocessing(GREY, GREY, "crop", "bicubic"), 32, None)
    with pytest.raises(UserError, match="no place for this model's tensor 'visual.extra'"):
        state = {**model.state_dict(), "visual.extra": torch.zeros(1)}
        transformers_files(SMALL, state, Preprocessing(GREY, GREY, "crop", "bicubic"), 32, tokenizer())
