"""What of a model is trained, in words and numbers: for the terminal and the privacy card."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import nn

from dpfed.config import Config
from dpfed.config.sections import PROCEDURAL
from dpfed.models.blueprints import blueprint
from dpfed.models.parameters import TrainableVector


@dataclass(frozen=True)
class Trained:
    """How much of a model is trained.

    Attributes:
        trainable: parameters that get gradients, noise and updates.
        total: parameters, frozen ones included.
        how: what is trained, in words.
        start: where the weights come from, in words.
    """

    trainable: int
    total: int
    how: str
    start: str

    @property
    def bytes_per_aggregate(self) -> int:
        """Size of the clipped sum of one step, float32: what travels between owners and coordinator."""
        return 4 * self.trainable

    def __str__(self) -> str:
        part = f"all {self.total:,}" if self.trainable == self.total else f"{self.trainable:,} of {self.total:,}"
        return f"{part} parameters ({self.how}); starting weights: {self.start}"


def trained_part(model: nn.Module, config: Config) -> Trained:
    """Counts what a model trains and words it as the configuration has it."""
    total = sum(parameter.numel() for parameter in model.parameters())
    return Trained(TrainableVector(model).numel, total, _how(config), start_of(config))


def _how(config: Config) -> str:
    if config.model.kind != "open_clip":
        return "both towers in full" if config.model.reads_text else "encoder and head in full"
    adaptation = config.adaptation
    towers = {"image": (adaptation.image, adaptation.image_layers), "text": (adaptation.text, adaptation.text_layers)}
    words = []
    for name, (training, layers) in towers.items():
        if training == "lora":
            words.append(f"{name} tower: LoRA of rank {adaptation.rank} on {', '.join(layers)}")
        else:
            words.append(f"{name} tower: {'in full' if training == 'full' else 'frozen'}")
    return "; ".join(words)


def start_of(config: Config) -> str:
    """Where the weights of a configuration come from, in words; ``random``: from nowhere."""
    if config.model.start is not None:
        return "procedural images" if config.model.start == PROCEDURAL else f"'{'/'.join(Path(config.model.start).parts[-2:])}'"
    if config.model.kind != "open_clip":
        return "random"
    spec = blueprint(config.model)
    if spec.tag is not None:
        return f"'{spec.tag}'"
    return "random" if spec.file is None else f"'{'/'.join(spec.file.parts[-3:-1] if spec.folder else spec.file.parts[-1:])}'"
