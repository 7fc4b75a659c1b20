"""From a configuration to a model, and a trained model to a folder and back."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import nn

from dpfed.config import Config, ModelConfig, ObjectiveConfig
from dpfed.errors import UserError
from dpfed.models.contrastive import SimCLRModel, TwoTowerModel
from dpfed.models.encoders import ResNet, SmallCNN, resnet
from dpfed.models.text import TextTransformer

FORMAT = 1
WEIGHTS, DESCRIPTION = "model.safetensors", "model.json"
NORMALISATION = {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]}
_KEYS = ("model", "objective", "image_size", "normalisation", "parameters", "sha256")


def build_model(model: ModelConfig, objective: ObjectiveConfig) -> SimCLRModel | TwoTowerModel:
    """Makes an untrained model; the weights are drawn from torch's global generator.

    Args:
        model: encoders and their sizes.
        objective: the temperature, which lives in the model.

    Raises:
        UserError: if the widths do not fit together.
    """
    encoder = _image_encoder(model)
    temperature = {"temperature": objective.temperature, "learn_temperature": objective.learn_temperature}
    if model.kind == "image":
        head = nn.Sequential(
            nn.Linear(encoder.features_dim, model.head_hidden), nn.ReLU(), nn.Linear(model.head_hidden, model.embedding)
        )
        return SimCLRModel(encoder, head, **temperature)
    if model.text_width % model.text_heads:
        raise UserError(f"model.text_width ({model.text_width}) must be a multiple of model.text_heads ({model.text_heads}).")
    text = TextTransformer(
        model.vocabulary, model.text_width, model.text_layers, model.text_heads, model.context, out=model.embedding
    )
    return TwoTowerModel(encoder, text, nn.Linear(encoder.features_dim, model.embedding, bias=False), **temperature)


def _image_encoder(model: ModelConfig) -> SmallCNN | ResNet:
    if model.image == "cnn":
        return SmallCNN(model.width)
    return resnet(int(model.image.removeprefix("resnet")), model.stem, model.width)


def save_encoder(folder: str | Path, model: nn.Module, config: Config) -> None:
    """Writes a trained model as ``model.safetensors`` and ``model.json``: tensors and text, nothing that is executed.

    Args:
        folder: made if missing; a model that is there is replaced.
        model: built by `build_model` from `config`.
        config: the run's configuration, of which the model, the objective and the image size are kept.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    weights = save(tensors)
    description = {
        "format": FORMAT,
        "model": config.model.model_dump(mode="json"),
        "objective": config.objective.model_dump(mode="json"),
        "image_size": config.data.size,
        "normalisation": NORMALISATION,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "sha256": hashlib.sha256(weights).hexdigest(),
    }
    _replace(folder / WEIGHTS, weights)
    _replace(folder / DESCRIPTION, (json.dumps(description, indent=2) + "\n").encode())


def load_encoder(folder: str | Path) -> SimCLRModel | TwoTowerModel:
    """Reads a model that `save_encoder` wrote, on the CPU and in evaluation mode.

    Raises:
        UserError: if the folder is missing, damaged, or of another version.
    """
    folder = Path(folder)
    description = describe(folder)
    try:
        model_config = ModelConfig.model_validate(description["model"])
        objective = ObjectiveConfig.model_validate(description["objective"])
    except ValidationError as error:
        raise UserError(f"{folder / DESCRIPTION} does not describe a model that this version of dpfed can build.") from error
    weights = _read(folder / WEIGHTS)
    if hashlib.sha256(weights).hexdigest() != description["sha256"]:
        raise UserError(f"{folder / WEIGHTS} is damaged or not the file that {DESCRIPTION} describes: copy the folder again.")
    try:
        tensors = load(weights)
    except SafetensorError as error:
        raise UserError(f"{folder / WEIGHTS} is not a safetensors file: {error}.") from error
    with torch.device("meta"):  # no weights are drawn: loading leaves the random state of the process alone
        model = build_model(model_config, objective)
    _compare(model.state_dict(), tensors, folder)
    model.load_state_dict(tensors, assign=True)
    return model.requires_grad_(True).eval()


def describe(folder: str | Path) -> dict[str, Any]:
    """What is in a model folder.

    Returns:
        The keys ``format, model, objective, image_size`` (pixels)``, normalisation`` (mean and std per channel, of pixels in
        [0, 1])``, parameters`` (their number) and ``sha256`` (of the weights).

    Raises:
        UserError: if there is no description, or it is damaged or of another version.
    """
    path = Path(folder) / DESCRIPTION
    try:
        description = json.loads(_read(path))
        found = description["format"]
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path} is damaged: it is not the description of a model.") from error
    if found != FORMAT:
        raise UserError(f"{path} describes a model of format {found}, this version of dpfed reads format {FORMAT}.")
    for key in _KEYS:
        if key not in description:
            raise UserError(f"{path} is damaged: it lacks '{key}'.")
    return description


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        wanted = f"a model folder has {WEIGHTS} and {DESCRIPTION}"
        raise UserError(f"cannot read {path}: {error.strerror or error}; {wanted}.") from error


def _compare(expected: dict[str, torch.Tensor], found: dict[str, torch.Tensor], folder: Path) -> None:
    for name in sorted(expected.keys() | found.keys()):
        wanted, given = expected.get(name), found.get(name)
        if wanted is None or given is None:
            what = "lacks" if given is None else "has an unknown"
            raise UserError(f"{folder / WEIGHTS} does not fit {DESCRIPTION}: it {what} tensor '{name}'.")
        if wanted.shape != given.shape or wanted.dtype != given.dtype:
            shapes = f"{tuple(given.shape)} {given.dtype}, expected {tuple(wanted.shape)} {wanted.dtype}"
            raise UserError(f"{folder / WEIGHTS} does not fit {DESCRIPTION}: tensor '{name}' is {shapes}.")


def _replace(path: Path, content: bytes) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(content)
    os.replace(partial, path)
