"""An open_clip model as Hugging Face `transformers` reads it: ``CLIPModel.from_pretrained(FOLDER)``.

Only what both libraries compute alike: CLIP's own vision transformer and its own text transformer. The transformers library is
not needed here: what it reads are tensors and JSON.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from safetensors.torch import save
from torch import Tensor

from dpfed.data.views.preprocessing import Preprocessing
from dpfed.errors import UserError

# What an architecture may say: other keys change what a model computes, in ways that CLIPModel does not have.
_KNOWN = {
    "": {"embed_dim", "quick_gelu", "vision_cfg", "text_cfg"},
    "vision_cfg": {"image_size", "layers", "width", "head_width", "patch_size", "mlp_ratio", "patch_dropout"},
    "text_cfg": {"context_length", "vocab_size", "width", "heads", "layers", "mlp_ratio"},
}
_BLOCK = {
    "ln_1": "layer_norm1",
    "ln_2": "layer_norm2",
    "attn.out_proj": "self_attn.out_proj",
    "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
}
_NAMES = {
    "visual.class_embedding": "vision_model.embeddings.class_embedding",
    "visual.conv1.weight": "vision_model.embeddings.patch_embedding.weight",
    "visual.positional_embedding": "vision_model.embeddings.position_embedding.weight",
    "visual.ln_pre.weight": "vision_model.pre_layrnorm.weight",  # the library's own spelling
    "visual.ln_pre.bias": "vision_model.pre_layrnorm.bias",
    "visual.ln_post.weight": "vision_model.post_layernorm.weight",
    "visual.ln_post.bias": "vision_model.post_layernorm.bias",
    "token_embedding.weight": "text_model.embeddings.token_embedding.weight",
    "positional_embedding": "text_model.embeddings.position_embedding.weight",
    "ln_final.weight": "text_model.final_layer_norm.weight",
    "ln_final.bias": "text_model.final_layer_norm.bias",
    "logit_scale": "logit_scale",
}
_TURNED = {"visual.proj": "visual_projection.weight", "text_projection": "text_projection.weight"}
_RESBLOCK = re.compile(r"(visual\.)?transformer\.resblocks\.(\d+)\.(.+)\.?(weight|bias)")
_RESAMPLE = {"bilinear": 2, "bicubic": 3}  # PIL's numbers


def transformers_files(
    model_cfg: Mapping[str, Any], state: Mapping[str, Tensor], preprocessing: Preprocessing, size: int, tokenizer: Any
) -> dict[str, bytes]:
    """The files of a folder that ``CLIPModel`` and ``CLIPProcessor`` read.

    Args:
        model_cfg: open_clip's description of the architecture.
        state: the open_clip model's tensors, adapters merged in.
        preprocessing: of images.
        size: side of the images, pixels.
        tokenizer: open_clip's ``SimpleTokenizer``.

    Returns:
        Name -> content.

    Raises:
        UserError: for an architecture that ``CLIPModel`` does not have, saying why.
    """
    _refuse_others(model_cfg, preprocessing, tokenizer)
    vision, text = model_cfg["vision_cfg"], model_cfg["text_cfg"]
    tensors = _converted(state)
    activation = "quick_gelu" if model_cfg.get("quick_gelu") else "gelu"
    tokens = {"bos_token_id": tokenizer.sot_token_id, "eos_token_id": tokenizer.eot_token_id, "pad_token_id": 0}
    common = {"hidden_act": activation, "layer_norm_eps": 1e-5, "projection_dim": model_cfg["embed_dim"]}
    config = {
        "architectures": ["CLIPModel"],
        "model_type": "clip",
        "projection_dim": model_cfg["embed_dim"],
        "logit_scale_init_value": math.log(1 / 0.07),
        "torch_dtype": "float32",
        "vision_config": {
            "model_type": "clip_vision_model",
            "hidden_size": vision["width"],
            "intermediate_size": tensors["vision_model.encoder.layers.0.mlp.fc1.weight"].shape[0],
            "num_hidden_layers": vision["layers"],
            "num_attention_heads": vision["width"] // vision.get("head_width", 64),
            "image_size": size,
            "patch_size": vision["patch_size"],
            **common,
        },
        "text_config": {
            "model_type": "clip_text_model",
            "hidden_size": text["width"],
            "intermediate_size": tensors["text_model.encoder.layers.0.mlp.fc1.weight"].shape[0],
            "num_hidden_layers": text["layers"],
            "num_attention_heads": text["heads"],
            "max_position_embeddings": text.get("context_length", 77),
            "vocab_size": text.get("vocab_size", 49408),
            **common,
            **tokens,
        },
    }
    return {
        "config.json": _json(config),
        "model.safetensors": save(tensors, metadata={"format": "pt"}),
        "preprocessor_config.json": _json(_image_processor(preprocessing, size)),
        **_tokenizer_files(tokenizer, int(text.get("context_length", 77))),
    }


def _refuse_others(model_cfg: Mapping[str, Any], preprocessing: Preprocessing, tokenizer: Any) -> None:
    def refuse(why: str) -> UserError:
        return UserError(f"transformers' CLIPModel cannot compute what this model does: {why}. open_clip reads it as it is.")

    for section, known in _KNOWN.items():
        given = model_cfg[section] if section else model_cfg
        for key, value in given.items():
            if key not in known and value not in (None, False, {}, 0):
                raise refuse(f"{section}{'.' * bool(section)}{key} = {value!r}")
    layers = model_cfg["vision_cfg"].get("layers")
    if not isinstance(layers, int):
        raise refuse(f"its image tower has layers = {layers!r}, which is no transformer")
    if preprocessing.resize == "pad":
        raise refuse("its images are padded")
    if not hasattr(tokenizer, "bpe_ranks"):
        raise refuse("its tokenizer is not CLIP's own")


def _converted(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under their other names; open_clip keeps the three projections of attention in one."""
    found: dict[str, Tensor] = {}
    for name, tensor in state.items():
        value = tensor.detach().float().cpu()
        if name in _NAMES:
            found[_NAMES[name]] = value
        elif name in _TURNED:
            found[_TURNED[name]] = value.T
        elif block := _RESBLOCK.fullmatch(name):
            tower = "vision_model" if block[1] else "text_model"
            prefix, part, kind = f"{tower}.encoder.layers.{block[2]}", block[3].rstrip("._"), block[4]
            if part == "attn.in_proj":
                for which, third in zip("qkv", value.chunk(3), strict=True):
                    found[f"{prefix}.self_attn.{which}_proj.{kind}"] = third
            elif part in _BLOCK:
                found[f"{prefix}.{_BLOCK[part]}.{kind}"] = value
            else:
                raise _unknown(name)
        else:
            raise _unknown(name)
    return {name: tensor.contiguous().clone() for name, tensor in found.items()}


def _unknown(name: str) -> UserError:
    return UserError(f"transformers' CLIPModel has no place for this model's tensor '{name}'. open_clip reads it as it is.")


def _image_processor(preprocessing: Preprocessing, size: int) -> dict[str, Any]:
    crop = preprocessing.resize == "crop"
    return {
        "image_processor_type": "CLIPImageProcessor",
        "do_convert_rgb": True,
        "do_resize": True,
        "size": {"shortest_edge": size} if crop else {"height": size, "width": size},
        "resample": _RESAMPLE[preprocessing.interpolation],
        "do_center_crop": crop,
        "crop_size": {"height": size, "width": size},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(preprocessing.mean),
        "image_std": list(preprocessing.std),
    }


def _tokenizer_files(tokenizer: Any, context: int) -> dict[str, bytes]:
    names = {number: token for token, number in tokenizer.encoder.items()}
    start, end = names[tokenizer.sot_token_id], names[tokenizer.eot_token_id]
    merges = sorted(tokenizer.bpe_ranks, key=tokenizer.bpe_ranks.__getitem__)
    special = {"bos_token": start, "eos_token": end, "unk_token": end, "pad_token": end}
    config = {"tokenizer_class": "CLIPTokenizer", "model_max_length": context, **special}
    return {
        "vocab.json": _json(dict(tokenizer.encoder), indent=None),
        "merges.txt": ("#version: 0.2\n" + "".join(f"{one} {two}\n" for one, two in merges)).encode(),
        "tokenizer_config.json": _json(config),
        "special_tokens_map.json": _json(special),
    }


def _json(content: Any, indent: int | None = 2) -> bytes:
    return (json.dumps(content, indent=indent, ensure_ascii=False) + "\n").encode()
