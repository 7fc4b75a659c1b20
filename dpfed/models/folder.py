"""A trained model as a folder, and back: tensors and text, nothing that is executed.

model.json              what the model is, how images must be prepared, and the weights' digest
model.safetensors       weights of our own models
model.safetensors, config.json, head.safetensors
                        a timm encoder with its adapters merged in: ``timm.create_model("local-dir:FOLDER", pretrained=True)``,
                        and what stands behind or beside it in training
open_clip_model.safetensors, open_clip_config.json
                        an open_clip model with its adapters merged in: ``open_clip.create_model("local-dir:FOLDER")``
adapters.safetensors    the adapters alone, where there are some
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import nn

from dpfed.config import AdaptationConfig, ModelConfig, ObjectiveConfig
from dpfed.config.resolved import ResolvedConfig
from dpfed.data.views.preprocessing import Preprocessing
from dpfed.errors import UserError
from dpfed.files.atomic import write_atomically
from dpfed.files.reading import read_bytes
from dpfed.models.adapter_file import adapter_bytes
from dpfed.models.blueprints import CONFIG as CLIP_CONFIG
from dpfed.models.blueprints import LOCAL_DIR, preprocess_cfg
from dpfed.models.blueprints import WEIGHTS as CLIP_WEIGHTS
from dpfed.models.building import Model, build_model, image_size, preprocessing_of, tokenizer_for
from dpfed.models.clip_tokenizer import ClipTokenizer
from dpfed.models.lora import merged_state
from dpfed.models.timm_encoders import TimmEncoder, local_dir_config
from dpfed.models.towers import ClipModel

FORMAT = 1
WEIGHTS, DESCRIPTION, ADAPTERS = "model.safetensors", "model.json", "adapters.safetensors"
TIMM_CONFIG, HEAD = "config.json", "head.safetensors"
_KEYS = ("model", "objective", "image_size", "normalisation", "parameters", "sha256")


def save_encoder(folder: str | Path, model: nn.Module, config: ResolvedConfig) -> None:
    """Writes a trained model.

    Args:
        folder: made if missing; a model that is there is replaced.
        model: built by `build_model` from `config`.
        config: the run's, resolved, of which the model, the objective and the image size are kept.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(model, ClipModel):
        files = _save_clip(folder, model, config)
    elif config.model.timm is not None:
        files = _save_timm(folder, model, config)
    else:
        files = {WEIGHTS: save(_portable(model.state_dict()))}
    for name, content in files.items():
        write_atomically(folder / name, content)
    preprocessing = preprocessing_of(config)
    description = {
        "format": FORMAT,
        "model": _described(config.model),
        "objective": config.objective.model_dump(mode="json"),
        "image_size": image_size(config),
        "normalisation": {"mean": list(preprocessing.mean), "std": list(preprocessing.std)},
        "resize": preprocessing.resize,
        "interpolation": preprocessing.interpolation,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        **{_hash_of(name): hashlib.sha256(files[name]).hexdigest() for name in _files_of(config.model)},
    }
    description["digest"] = _digest(description)
    write_atomically(folder / DESCRIPTION, json.dumps(description, indent=2) + "\n")


def _save_clip(folder: Path, model: ClipModel, config: ResolvedConfig) -> dict[str, bytes]:
    """Writes the tokenizer; returns what stock open_clip reads, and the adapters alone, by the names of the files."""
    stock = {"model_cfg": model.model_cfg, "preprocess_cfg": preprocess_cfg(preprocessing_of(config), image_size(config))}
    tokenizer = tokenizer_for(config.model)
    if isinstance(tokenizer, ClipTokenizer):
        tokenizer.save_files(folder)
    files = {CLIP_CONFIG: _text(stock), CLIP_WEIGHTS: save(_portable(merged_state(model.clip)))}
    alone = adapter_bytes(model.clip)
    return files | ({ADAPTERS: alone} if alone else {})


def _save_timm(folder: Path, model: nn.Module, config: ResolvedConfig) -> dict[str, bytes]:
    """What stock timm reads, the rest of the model, and the adapters alone, by the names of the files."""
    path, encoder = _timm_encoder(model)
    stock = local_dir_config(encoder, str(config.model.timm), preprocessing_of(config), image_size(config))
    state = _portable(merged_state(model))
    own = {name.removeprefix(path): tensor for name, tensor in state.items() if name.startswith(path)}
    rest = {name: tensor for name, tensor in state.items() if not name.startswith(path)}
    files = {TIMM_CONFIG: _text(stock), WEIGHTS: save(own), HEAD: save(rest)}
    alone = adapter_bytes(encoder.timm)
    return files | ({ADAPTERS: alone} if alone else {})


def _timm_encoder(model: nn.Module) -> tuple[str, TimmEncoder]:
    """The trained encoder of a model, and what the names of its tensors begin with (BYOL's target network comes later)."""
    path, encoder = next((path, part) for path, part in model.named_modules() if isinstance(part, TimmEncoder))
    return f"{path}.timm.", encoder


def _text(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=2) + "\n").encode()


def _files_of(model: ModelConfig) -> tuple[str, ...]:
    """The files of a folder that hold the weights of a model."""
    if model.kind == "open_clip":
        return (CLIP_WEIGHTS,)
    return (WEIGHTS,) if model.timm is None else (WEIGHTS, HEAD)


def _hash_of(file: str) -> str:
    """The key of a description that holds the hash of a file of weights."""
    return "sha256_head" if file == HEAD else "sha256"


def _portable(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}


def _described(model: ModelConfig) -> dict[str, Any]:
    """The configuration without paths of this machine: an open_clip model is rebuilt from its own folder."""
    name = model.architecture and Path(model.architecture.removeprefix(LOCAL_DIR)).name
    gone = {"architecture": name, "weights": None, "digest": None, "anchors": None}
    return model.model_copy(update=gone).model_dump(mode="json")


def load_encoder(folder: str | Path) -> Model:
    """Reads a model that `save_encoder` wrote, on the CPU and in evaluation mode; adapters are merged in.

    Raises:
        UserError: if the folder is missing, damaged, or of another version.
    """
    folder = Path(folder)
    description = describe(folder)
    config = model_config(folder)
    try:
        objective = ObjectiveConfig.model_validate(description["objective"])
    except ValidationError as error:
        raise _unknown(folder) from error
    parts = {name: _tensors(folder / name, description.get(_hash_of(name))) for name in _files_of(config)}
    model = _skeleton(config, objective, description["image_size"])
    if config.timm is not None:
        path, _ = _timm_encoder(model)
        parts[WEIGHTS] = {f"{path}{name}": tensor for name, tensor in parts[WEIGHTS].items()}
    tensors = {name: tensor for part in parts.values() for name, tensor in part.items()}
    target = model.clip if isinstance(model, ClipModel) else model
    _compare(target.state_dict(), tensors, folder / next(iter(parts)))
    target.load_state_dict(tensors, assign=not config.external)
    return model.requires_grad_(True).eval()


def _tensors(path: Path, expected: str | None) -> dict[str, torch.Tensor]:
    """What a file of weights holds, whose hash is known."""
    weights = _read(path)
    if hashlib.sha256(weights).hexdigest() != expected:
        raise UserError(f"{path} is damaged or not the file that {DESCRIPTION} describes: copy the folder again.")
    try:
        return load(weights)
    except SafetensorError as error:
        raise UserError(f"{path} is not a safetensors file: {error}.") from error


def _skeleton(config: ModelConfig, objective: ObjectiveConfig, size: int) -> Model:
    """The model before its weights are read, without touching the random state of the process."""
    if config.external:  # has constants that are computed when it is built, so it cannot be made of meta tensors
        whole = AdaptationConfig(image="full", text="full")
        with torch.random.fork_rng(devices=[]):
            return build_model(config, objective, whole, size, load_weights=False)
    with torch.device("meta"):
        return build_model(config, objective, size=size, load_weights=False)


def model_config(folder: str | Path) -> ModelConfig:
    """The configuration with which the model of a folder can be built and its captions tokenized.

    Raises:
        UserError: if the folder is missing, damaged, or of another version.
    """
    given = describe(folder)["model"]
    if isinstance(given, dict) and given.get("kind") == "open_clip":
        given["architecture"] = f"{LOCAL_DIR}{folder}"
    try:
        return ModelConfig.model_validate(given)
    except ValidationError as error:
        raise _unknown(Path(folder)) from error


def _unknown(folder: Path) -> UserError:
    return UserError(f"{folder / DESCRIPTION} does not describe a model that this version of dpfed can build.")


def preprocessing_in(folder: str | Path) -> Preprocessing:
    """What the model of a folder expects of its images."""
    description = describe(folder)
    normalisation = description["normalisation"]
    resize, interpolation = description.get("resize", "crop"), description.get("interpolation", "bicubic")
    return Preprocessing(tuple(normalisation["mean"]), tuple(normalisation["std"]), resize, interpolation)


def describe(folder: str | Path) -> dict[str, Any]:
    """What is in a model folder.

    Returns:
        The keys ``format, model, objective, image_size`` (pixels)``, normalisation`` (mean and std per channel, of pixels in
        [0, 1])``, resize``, ``interpolation``, ``parameters`` (their number), ``sha256`` (of the weights),
        ``sha256_head`` (of what is beside a timm encoder) and, unless an earlier version of dpfed wrote it, ``digest`` (of all
        else that is said).

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
    if "digest" in description and description["digest"] != _digest(description):
        raise UserError(f"{path} is damaged or was edited: its digest is not that of its content; copy the folder again.")
    return description


def _digest(description: dict[str, Any]) -> str:
    rest = {name: value for name, value in description.items() if name != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _read(path: Path) -> bytes:
    try:
        return read_bytes(path)
    except OSError as error:
        wanted = f"a model folder has {DESCRIPTION} and {WEIGHTS} or {CLIP_WEIGHTS}"
        raise UserError(f"cannot read {path}: {error.strerror or error}; {wanted}.") from error


def _compare(expected: dict[str, torch.Tensor], found: dict[str, torch.Tensor], path: Path) -> None:
    for name in sorted(expected.keys() | found.keys()):
        wanted, given = expected.get(name), found.get(name)
        if wanted is None or given is None:
            what = "lacks" if given is None else "has an unknown"
            raise UserError(f"{path} does not fit {DESCRIPTION}: it {what} tensor '{name}'.")
        if wanted.shape != given.shape or wanted.dtype != given.dtype:
            shapes = f"{tuple(given.shape)} {given.dtype}, expected {tuple(wanted.shape)} {wanted.dtype}"
            raise UserError(f"{path} does not fit {DESCRIPTION}: tensor '{name}' is {shapes}.")
