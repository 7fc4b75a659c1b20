"""Counts and describes the trained part of a model, for the terminal and the privacy card."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from dpfed.models.blueprints import blueprint
from dpfed.models.options import PROCEDURAL, SENTENCES, AdaptationConfig, ModelConfig, Training
from dpfed.models.parameters import TrainableVector
from dpfed.models.timm_blueprints import timm_blueprint

_WORDS = {"full": "in full", "last": "the last block", "bias": "biases and scales", "frozen": "frozen"}


@dataclass(frozen=True)
class Trained:
    """The trained part of a model, counted and described.

    Attributes:
        trainable: Number of parameters that get gradients, noise and updates.
        total: Number of all parameters, frozen ones included.
        how: Description of the trained parts, such as ``encoder and head in full``.
        start: Description of the origin of the starting weights; see `start_of`.
    """

    trainable: int
    total: int
    how: str
    start: str

    @property
    def bytes_per_aggregate(self) -> int:
        """Size in bytes of the clipped int64 sum that a worker sends in a step; in a run of moments, in both steps together."""
        return 8 * self.trainable

    def __str__(self) -> str:
        part = f"all {self.total:,}" if self.trainable == self.total else f"{self.trainable:,} of {self.total:,}"
        return f"{part} parameters ({self.how}); starting weights: {self.start}"


def trained_part(net: nn.Module, model: ModelConfig, adaptation: AdaptationConfig, closed_form: bool = False) -> Trained:
    """Counts and describes the trained part of a model.

    Args:
        net: The model.
        model: Configuration that the model was built with.
        adaptation: Trained parts of the towers of open_clip or timm.
        closed_form: Whether the run is one of private moments: towers are frozen, and heads are computed from the moments.

    Raises:
        UserError: If the model has no trainable parameter.
    """
    total = sum(parameter.numel() for parameter in net.parameters())
    how = _how_of(net) if model.is_own and not closed_form else _how(model, adaptation, closed_form)
    return Trained(TrainableVector(net).numel, total, how, start_of(model))


def _how_of(net: nn.Module) -> str:
    """Describes the trained parts of a user's own model: each child module in full, in part, or frozen."""
    parts: dict[str, list[str]] = {}
    for name, part in net.named_children():
        asked = [parameter.requires_grad for parameter in part.parameters()]
        if asked:
            how = "in full" if all(asked) else "in part" if any(asked) else "frozen"
            parts.setdefault(how, []).append(name.replace("_", " "))
    return "; ".join(f"{' and '.join(names)} {how}" for how, names in parts.items()) or "in full"


def _how(model: ModelConfig, adaptation: AdaptationConfig, closed_form: bool) -> str:
    if closed_form:
        return "means and products of features, from which linear heads are computed; towers frozen"
    rest = "text tower and projection" if model.reads_text else "head"
    if model.pretrained_text is not None:
        rest = f"{model.text.removeprefix(SENTENCES).rpartition('/')[2]}: frozen; heads"
    elif not model.external:
        return "both towers in full" if model.reads_text else "encoder and head in full"

    def tower(name: str, training: Training, layers: Sequence[str]) -> str:
        if training == "lora":
            return f"{name}: LoRA of rank {adaptation.rank} on {', '.join(layers)}"
        return f"{name}: {_WORDS[training]}"

    images = adaptation.of_images(model.kind), adaptation.image_layers
    if model.kind == "open_clip":
        return f"{tower('image tower', *images)}; {tower('text tower', adaptation.text, adaptation.text_layers)}"
    image = tower(model.image, *images) if model.external else f"{model.image}: in full"
    return f"{image}; {rest}: in full"


def start_of(model: ModelConfig) -> str:
    """Describes the origin of a model's starting weights; ``random``: the weights are drawn."""
    image, text = image_start_of(model), model.pretrained_text
    if text is None or model.start is not None:
        return image
    name = "/".join(Path(text).parts[-2:])
    return f"'{name}' (text tower)" if image == "random" else f"{image} and '{name}'"


def image_start_of(model: ModelConfig) -> str:
    """Describes the origin of the image tower's starting weights; ``random``: the weights are drawn."""
    if model.start is not None:
        return "procedural images" if model.start == PROCEDURAL else f"'{'/'.join(Path(model.start).parts[-2:])}'"
    if model.is_own:
        return f"as '{model.image.rpartition(':')[2]}' gives them"
    if model.timm is not None:
        encoder = timm_blueprint(model)
        if encoder.file is not None:
            return f"'{'/'.join(Path(str(model.weights)).parts[-2:])}'"
        return "random" if encoder.random else f"'{model.weights}'"
    if model.kind != "open_clip":
        return "random"
    spec = blueprint(model)
    if spec.tag is not None:
        return f"'{spec.tag}'"
    return "random" if spec.file is None else f"'{'/'.join(spec.file.parts[-3:-1] if spec.folder else spec.file.parts[-1:])}'"
