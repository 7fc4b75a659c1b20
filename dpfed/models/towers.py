"""The two towers of an open_clip model (CLIP, SigLIP and others), trained in full, through adapters, or not at all."""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from dpfed.errors import UserError
from dpfed.models.blueprints import CONFIG, LOCAL_DIR, Blueprint, quiet
from dpfed.models.contrastive import MIN_TEMPERATURE, per_view
from dpfed.models.lora import add_adapters
from dpfed.models.norm import fix_batch_norm
from dpfed.models.options import AdaptationConfig
from dpfed.models.parameters import train_part
from dpfed.models.starting import StartingWeights
from dpfed.models.weight_files import not_fetched, reading_weights, words
from dpfed.objectives import ObjectiveConfig

_NOT_TEXT = ("visual.", "logit_", "text_decoder.")


class ClipModel(nn.Module):
    """An open_clip model that keeps the contract of docs/architecture.md.

    Temperature and bias live in open_clip's own ``logit_scale`` and ``logit_bias``, so that a saved model gives a pair the same
    score in stock open_clip.

    Args:
        clip: Module of open_clip.
        model_cfg: Description of both towers in open_clip's format.
        objective: Objective with temperature and bias (initial values, if learnt). It also says whether `forward` returns
            embeddings of unit length.

    Raises:
        UserError: If a learnt temperature starts below 0.01.
    """

    clip: Any  # open_clip ships no types

    def __init__(self, clip: Any, model_cfg: dict[str, Any], objective: ObjectiveConfig) -> None:
        super().__init__()
        self.clip = clip
        self.image_head: nn.Module = nn.Identity()  # the last layer, a head of moments if there is one (`dpfed.models.moments`)
        self.text_head: nn.Module = nn.Identity()
        self.model_cfg = dict(model_cfg)
        if objective.learn_temperature and objective.temperature < MIN_TEMPERATURE:
            raise UserError(
                f"objective.temperature = {objective.temperature}: a learnt temperature must start at {MIN_TEMPERATURE} or "
                "above. Raise it, or set objective.learn_temperature = false. [tower-learnt-low]"
            )
        self.unit_length = objective.loss.unit_length
        self._least = MIN_TEMPERATURE if objective.learn_temperature else 0.0
        with torch.no_grad():
            clip.logit_scale.fill_(-math.log(objective.temperature))
            if objective.loss.bias is not None:
                if clip.logit_bias is None:
                    clip.logit_bias = nn.Parameter(torch.zeros_like(clip.logit_scale))
                clip.logit_bias.fill_(objective.bias or 0.0)
                self.model_cfg["init_logit_bias"] = objective.bias or 0.0

    @property
    def temperature(self) -> torch.Tensor:
        """Temperature, which divides the cosine similarities: a scalar tensor, at least 0.01 if it is learnt."""
        return torch.exp(-self.clip.logit_scale).clamp(min=self._least).reshape(())

    @property
    def max_logit_scale(self) -> float:
        """Largest ``logit_scale`` that has an effect: ln 100 if the temperature is learnt, otherwise infinity."""
        return -math.log(self._least) if self._least else math.inf

    @property
    def bias(self) -> torch.Tensor | None:
        """Bias, which is added to every logit of a pairwise loss: a scalar tensor, or ``None``."""
        bias = getattr(self.clip, "logit_bias", None)
        return None if bias is None else bias.reshape(())

    def forward(self, views: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Maps views ``{"image": (S, V, 3, H, W), "text": (S, V_t, L)}`` to ``{"image": (S, V, D), "text": (S, V_t, D)}``."""
        unit, raw = (self.embed_images, self.embed_text), (self.project_images, self.project_text)
        image, text = unit if self.unit_length else raw
        return {"image": per_view(image, views["image"]), "text": per_view(text, views["text"])}

    def features(self, images: torch.Tensor) -> torch.Tensor:
        """Computes image features ``(n, D)`` of normalised images ``(n, 3, H, W)``, with open_clip's ``encode_image``."""
        return self.clip.encode_image(images)

    def text_features(self, tokens: torch.Tensor) -> torch.Tensor:
        """Computes text features ``(n, D)`` of tokens ``(n, L)``, with open_clip's ``encode_text``."""
        return self.clip.encode_text(tokens)

    def embed_images(self, images: torch.Tensor) -> torch.Tensor:
        """Computes unit-norm embeddings ``(n, D)`` from normalised images ``(n, 3, H, W)``."""
        return F.normalize(self.project_images(images), dim=-1)

    def embed_text(self, tokens: torch.Tensor) -> torch.Tensor:
        """Computes unit-norm embeddings ``(n, D)`` from tokens ``(n, L)``."""
        return F.normalize(self.project_text(tokens), dim=-1)

    def project_images(self, images: torch.Tensor) -> torch.Tensor:
        """Computes image embeddings ``(n, D)``, not scaled to unit length, of normalised images ``(n, 3, H, W)``."""
        return self.image_head(self.features(images))

    def project_text(self, tokens: torch.Tensor) -> torch.Tensor:
        """Computes text embeddings ``(n, D)``, not scaled to unit length, of tokens ``(n, L)``."""
        return self.text_head(self.text_features(tokens))


def build_clip(
    spec: Blueprint, objective: ObjectiveConfig, size: int, load_weights: bool = True, start: StartingWeights | None = None
) -> ClipModel:
    """Builds an open_clip model; random weights are drawn from torch's global generator.

    Args:
        spec: Blueprint of the model.
        objective: Objective with temperature and bias.
        size: Side of the images, pixels; if it is not the architecture's own, position embeddings are resized.
        load_weights: Whether to fetch or read the weights that the blueprint names.
        start: Starting weights; they replace the blueprint's.

    Raises:
        UserError: If the architecture cannot be built, or has BatchNorm and random weights, or if the weights are not
            available, do not fit, or were trained with another activation.
    """
    import open_clip

    with tempfile.TemporaryDirectory() as folder, quiet():
        # The architecture is given as a local-dir: only then does open_clip build from a description without a download.
        Path(folder, CONFIG).write_text(json.dumps({"model_cfg": spec.model_cfg}), encoding="utf-8")
        try:
            clip = open_clip.create_model(
                f"{LOCAL_DIR}{folder}",
                load_weights=False,
                device=torch.get_default_device(),  # "meta" if the caller only counts parameters
                pretrained_text=False,
                force_image_size=None if size == spec.size else size,
                force_patch_dropout=None if "timm_model_name" in spec.model_cfg["vision_cfg"] else 0.0,
            )
        except (TypeError, ValueError, RuntimeError, AssertionError, KeyError, ImportError) as error:
            raise UserError(f"open_clip cannot build this architecture: {words(error)}. [clip-not-built]") from error
    model_cfg = dict(spec.model_cfg, vision_cfg=dict(spec.model_cfg["vision_cfg"], image_size=size))
    if start is not None:
        start.refuse_other_towers(spec.model_cfg)
        start.load_into(clip)
    elif load_weights and (file := _fetched(spec) if spec.tag else spec.file) is not None:
        _load(clip, file)
    if fix_batch_norm(clip) and load_weights and start is None and spec.tag is None and spec.file is None:
        raise UserError(
            f"{spec.name} has BatchNorm, which mixes records unless its statistics are those of pretrained weights: set "
            "model.weights, or take a ViT. [clip-batch-norm]"
        )
    return ClipModel(clip, model_cfg, objective)


def adapt(model: ClipModel, adaptation: AdaptationConfig, objective: ObjectiveConfig) -> None:
    """Freezes everything except the trained parts, and adds adapters.

    With adapters, it also switches off the fast path of torch's attention layers for the whole process.

    Args:
        model: Model to adapt, in place.
        adaptation: Trained parts of both towers.
        objective: Objective, which says whether temperature and bias are learnt.

    Raises:
        UserError: If the model lacks a part that should be trained, or a weight is too small for the adapters' rank.
    """
    clip = model.clip
    model.requires_grad_(False)
    text = [(name, parameter) for name, parameter in clip.named_parameters() if not name.startswith(_NOT_TEXT)]
    images = adaptation.of_images("open_clip")
    train_part(clip.visual, images, "the image tower")
    if adaptation.text == "full":
        for _, parameter in text:
            parameter.requires_grad_(True)
    scale = adaptation.alpha / adaptation.rank
    if images == "lora":
        add_adapters(clip.visual, "image", adaptation.image_layers, adaptation.rank, scale)
    if adaptation.text == "lora":
        tower = clip.text if hasattr(clip, "text") else clip.transformer
        add_adapters(tower, "text", adaptation.text_layers, adaptation.rank, scale)
    if "lora" in (images, adaptation.text):
        # The fused inference kernel of nn.MultiheadAttention reads its weight several times per call, and each read merges the
        # adapters.
        torch.backends.mha.set_fastpath_enabled(False)
    if objective.learn_temperature:
        clip.logit_scale.requires_grad_(True)
        if objective.loss.bias is not None:
            clip.logit_bias.requires_grad_(True)


def _fetched(spec: Blueprint) -> Path:
    from open_clip.pretrained import download_pretrained, get_pretrained_cfg

    published = get_pretrained_cfg(spec.name, spec.tag)
    if published.get("quick_gelu", False) != spec.model_cfg.get("quick_gelu", False):
        other = spec.name.removesuffix("-quickgelu") if spec.model_cfg.get("quick_gelu") else f"{spec.name}-quickgelu"
        raise UserError(
            f"the weights '{spec.tag}' were not trained with the activation of {spec.name}: set model.architecture = "
            f"'{other}'. [clip-activation]"
        )
    try:
        with quiet():
            return Path(download_pretrained(published))
    except Exception as error:  # a download can raise anything: the network, the disk, the hub's client
        why = not_fetched(error)
        raise UserError(
            f"cannot fetch the weights '{spec.tag}' of {spec.name} ({why}); set model.weights to a file. [clip-fetch]"
        ) from error


def _load(clip: nn.Module, path: Path) -> None:
    from open_clip.factory import load_checkpoint

    with reading_weights(path, "an open_clip model", numpy=True), quiet():
        load_checkpoint(clip, str(path), strict=True, weights_only=True)
