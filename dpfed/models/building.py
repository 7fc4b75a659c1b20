"""Makes a model and its tokenizer from their configuration."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from dpfed import discovery
from dpfed.data.views.words import WordTokenizer
from dpfed.errors import UserError
from dpfed.models.blueprints import blueprint
from dpfed.models.clip_tokenizer import ClipTokenizer, clip_tokenizer
from dpfed.models.contrastive import SimCLRModel, TwoTowerModel
from dpfed.models.encoders import Norm, ResNet, SmallCNN
from dpfed.models.lora import add_adapters
from dpfed.models.norm import StandardisedWeight, group_norm, layer_norm
from dpfed.models.options import SIZE, AdaptationConfig, ModelConfig
from dpfed.models.parameters import train_part
from dpfed.models.starting import StartingWeights
from dpfed.models.text import TextTransformer
from dpfed.models.text_blueprints import text_blueprint
from dpfed.models.text_tower import TextTokenizer, TextTower, build_text_tower
from dpfed.models.timm_encoders import build_timm
from dpfed.models.towers import ClipModel, adapt, build_clip
from dpfed.objectives import ObjectiveConfig

Model = SimCLRModel | TwoTowerModel | ClipModel
Tokenizer = WordTokenizer | ClipTokenizer | TextTokenizer


def tokenizer_for(model: ModelConfig) -> Tokenizer | None:
    """Returns the tokenizer that turns captions into the token ids that a model reads; ``None`` for image models.

    Raises:
        UserError: If the tokenizer of the open_clip architecture, or of the pretrained text tower, is not available.
    """
    if model.kind == "open_clip":
        spec = blueprint(model)
        return WordTokenizer(spec.vocabulary, spec.context) if model.tokenizer == "words" else clip_tokenizer(spec)
    if model.pretrained_text is not None:
        return TextTokenizer(text_blueprint(model.pretrained_text, weights=False))
    return WordTokenizer(model.vocabulary, model.context) if model.reads_text else None


def build_model(
    model: ModelConfig,
    objective: ObjectiveConfig,
    adaptation: AdaptationConfig | None = None,
    size: int | None = None,
    load_weights: bool = True,
    start: StartingWeights | None = None,
) -> Model:
    """Makes a model before training; random weights are drawn from torch's global generator.

    Args:
        model: Encoders and their sizes, or an open_clip or timm architecture.
        objective: Objective, whose temperature and bias live in the model.
        adaptation: Trained parts of an open_clip model (default: adapters on q and v of both towers) or of a timm encoder
            (default: all).
        size: Side of the images, pixels; default: the architecture's own (open_clip, timm), or 32.
        load_weights: Whether to load the weights of open_clip, timm and a pretrained text tower. If not, these weights are
            random, and the anchor images of ``model.anchors`` are zero, so that a caller can load a checkpoint over them.
        start: Starting weights; they replace the random ones (or open_clip's or timm's).

    Raises:
        UserError: If an argument has the wrong type, the widths do not fit together, or the objective needs another kind of
            model; if an open_clip model, a timm encoder, a text tower or the anchors are not available; if a tower lacks a part
            that `adaptation` trains; if the function of a user's own encoder fails or returns no encoder; or if the starting
            weights are missing, damaged, not finite, or those of another model.
    """
    kinds = {"model": (model, ModelConfig), "objective": (objective, ObjectiveConfig)}
    for section, (given, kind) in kinds.items():
        if not isinstance(given, kind):
            raise UserError(f"expected a {kind.__name__}, such as config.{section}, got {type(given).__name__}. [model-type]")
    if objective.loss.images_only and model.kind != "image":
        raise UserError(
            f"objective.name = '{objective.name}' compares two views of an image and needs model.kind = 'image', got "
            f"'{model.kind}'. [objective-image-only]"
        )
    adaptation = adaptation or AdaptationConfig()
    if model.kind == "open_clip":
        spec = blueprint(model)
        clip = build_clip(spec, objective, size or spec.size, load_weights, start)
        adapt(clip, adaptation, objective)
        return clip
    built = _small(model, objective, size, load_weights)
    if start is not None:
        start.load_into(built)
    if model.timm is not None:
        encoder = built.image_encoder if isinstance(built, TwoTowerModel) else built.encoder
        training = adaptation.of_images(model.kind)
        train_part(encoder.get_submodule("timm"), training, "the encoder")
        if training == "lora":
            add_adapters(encoder, "image", adaptation.image_layers, adaptation.rank, adaptation.alpha / adaptation.rank)
    return built


def _small(model: ModelConfig, objective: ObjectiveConfig, size: int | None, load_weights: bool) -> SimCLRModel | TwoTowerModel:
    """Makes a model of dpfed's own: an image encoder, and a projection head or a text tower."""
    encoder = _image_encoder(model, size, load_weights)
    bias = None if objective.loss.bias is None else objective.bias or 0.0
    rest: dict[str, Any] = {
        "temperature": objective.temperature,
        "learn_temperature": objective.learn_temperature,
        "bias": bias,
        "unit_length": objective.loss.unit_length,
    }
    width = getattr(encoder, "features_dim", None)
    if model.kind == "image":
        head = nn.Sequential(_linear(width, model.head_hidden), nn.ReLU(), nn.Linear(model.head_hidden, model.embedding))
        return SimCLRModel(encoder, head, **rest)
    text = _text_encoder(model, load_weights)
    return TwoTowerModel(encoder, text, _linear(width, model.embedding, bias=False), **rest)


def _linear(width: int | None, out: int, bias: bool = True) -> nn.Module:
    """Makes a linear layer. If `width` is ``None`` (a user's own encoder), the first forward pass finds the input width."""
    return nn.LazyLinear(out, bias=bias) if width is None else nn.Linear(width, out, bias=bias)


def _text_encoder(model: ModelConfig, load_weights: bool) -> TextTransformer | TextTower:
    if model.pretrained_text is not None:
        return build_text_tower(text_blueprint(model.pretrained_text, load_weights), model.embedding, load_weights)
    if model.text_width % model.text_heads:
        raise UserError(
            f"model.text_heads = {model.text_heads} does not divide model.text_width = {model.text_width}: change one of them. "
            "[text-heads]"
        )
    return TextTransformer(
        model.vocabulary, model.text_width, model.text_layers, model.text_heads, model.context, out=model.embedding
    )


def _image_encoder(model: ModelConfig, size: int | None, load_weights: bool) -> Any:
    """Makes the encoder from images to features ``(n, features_dim)``.

    If it has BatchNorm over a group, this layer comes from `dpfed.baselines`, which may be missing.
    """
    if model.is_own:
        built = discovery.call_named(model.image, "model.image", model.options)
        if not isinstance(built, nn.Module):
            raise discovery.other_part("model.image", model.image, "returns a torch.nn.Module", built)
        if isinstance(built, SimCLRModel | TwoTowerModel):
            raise UserError(
                f"model.image = {model.image!r} returns a whole model, {type(built).__name__}; expected an encoder (images "
                "to features): return only the encoder; dpfed adds the projection to model.embedding dimensions. To train a "
                "whole model, such as BYOL, in one process, use dpfed.Trainer(model, ...). [model-whole]"
            )
        return built
    if model.timm is not None:
        return build_timm(model, size, load_weights)
    anchored = discovery.part("baselines", "anchored_batch_norm") if model.normalisation == "batch" else None
    norm: Norm = anchored.AnchoredBatchNorm if anchored else {"group": group_norm, "layer": layer_norm}[model.normalisation]
    make = discovery.shipped("encoders")[model.image].load()
    if model.image == "cnn":
        plain: dict[str, Any] = {} if norm is group_norm else {"norm": norm}  # the default GroupNorm of SmallCNN has 8 groups
        encoder: SmallCNN | ResNet = make(model.width, features=model.features, **plain)
    else:
        encoder = make(model.stem, model.width, norm, model.features)
    if model.weight_standardisation:
        for layer in list(encoder.modules()):
            if isinstance(layer, nn.Conv2d):
                parametrize.register_parametrization(layer, "weight", StandardisedWeight())
    if anchored is None:
        return encoder
    count, size = model.anchor_count, size or SIZE
    images = anchored.anchor_images(model.anchors, count, size) if load_weights else torch.zeros(count, 3, size, size).byte()
    return anchored.AnchoredEncoder(encoder, images)
