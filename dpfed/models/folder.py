"""Writes a trained model to a folder and reads it back. The folder holds tensors and text, nothing that is executed.

model.json              description of the model, of the preprocessing of images, and the weights' digest
model.safetensors       weights of dpfed's own models, and of a user's own
model.safetensors, config.json, head.safetensors
                        a timm encoder with its adapters merged in: ``timm.create_model("local-dir:FOLDER", pretrained=True)``
                        (or a torchvision encoder, whose weights fit torchvision's model after its classifier is removed),
                        and, in head.safetensors, the other parts of the trained model
text/                   a pretrained text tower: ``transformers.AutoModel.from_pretrained("FOLDER/text")``
open_clip_model.safetensors, open_clip_config.json
                        an open_clip model with its adapters merged in: ``open_clip.create_model("local-dir:FOLDER")``,
                        and the files of its tokenizer, if open_clip does not ship them
heads.safetensors       heads on the towers, computed from released moments (`dpfed.models.moments`)
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import nn

from dpfed.data.views.preprocessing import Preprocessing
from dpfed.errors import UserError
from dpfed.files.atomic import write_atomically
from dpfed.models.blueprints import CONFIG as CLIP_CONFIG
from dpfed.models.blueprints import LOCAL_DIR, preprocess_cfg
from dpfed.models.blueprints import WEIGHTS as CLIP_WEIGHTS
from dpfed.models.building import Model, build_model, tokenizer_for
from dpfed.models.centres import ATTRIBUTE as CENTRES
from dpfed.models.clip_tokenizer import ClipTokenizer
from dpfed.models.description import (
    DESCRIPTION,
    FORMAT,
    HEADS,
    MOMENTS,
    TEXT,
    TIMM_CONFIG,
    WEIGHTS,
    Part,
    describe,
    described_parts,
    digest_of,
    weight_parts,
)
from dpfed.models.lora import merged_state
from dpfed.models.moments import (
    ATTRIBUTE,
    PublishedHeads,
    give_heads,
    has_own_heads,
    has_several_layers,
    keep_towers,
    published_heads,
    stages_of,
)
from dpfed.models.options import AdaptationConfig, ModelConfig
from dpfed.models.own import finish_model
from dpfed.models.text_tower import FrozenTextTower, TextTokenizer, save_tower_files
from dpfed.models.timm_encoders import TimmEncoder, local_dir_config
from dpfed.models.towers import ClipModel
from dpfed.objectives import ObjectiveConfig


@dataclass(frozen=True)
class ModelFacts:
    """Facts that a model was built with, as its folder keeps them.

    Attributes:
        options: Encoders and their sizes.
        objective: Objective, whose temperature and bias live in the model.
        image_size: Side of the images, pixels.
        preprocessing: Preprocessing of the images.
        shape: Shape (C, H, W) of the images that the model reads; ``None``: square colour images.
    """

    options: ModelConfig
    objective: ObjectiveConfig
    image_size: int
    preprocessing: Preprocessing
    shape: tuple[int, int, int] | None = None


def save_encoder(
    folder: str | Path, model: nn.Module, facts: ModelFacts, trained: Sequence[Mapping[str, Any]] | None = None
) -> None:
    """Writes a trained model.

    Args:
        folder: Folder, made if missing; a model in this folder is replaced.
        model: Model built by `build_model`, or a user's own.
        facts: Facts that the model was built with.
        trained: Runs that made the model, oldest first; a run that starts from the model reads them (`dpfed.runs.starts`).
            ``None``: the folder does not say which runs made the model.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(model, ClipModel):
        files = _save_clip(folder, model, facts)
    else:
        files = _save_parts(model, facts.options)
        if facts.options.timm is not None:
            # The file that stock timm reads beside the weights.
            encoder = model.get_submodule(weight_parts(facts.options)[0].prefix.removesuffix(".timm."))
            assert isinstance(encoder, TimmEncoder)
            stock = local_dir_config(encoder, str(facts.options.timm), facts.preprocessing, facts.image_size)
            files[TIMM_CONFIG] = _text(stock)
        if facts.options.pretrained_text is not None:
            # The files that transformers reads beside the weights of a text tower.
            (folder / TEXT).mkdir(exist_ok=True)
            tower, tokenizer = model.get_submodule("text_encoder.backbone"), tokenizer_for(facts.options)
            assert isinstance(tower, FrozenTextTower) and isinstance(tokenizer, TextTokenizer)
            save_tower_files(tower, tokenizer, folder / TEXT)
    moments = {}
    if heads := published_heads(model):
        files[HEADS.file] = save(_portable(heads))
        said = {"projected": has_own_heads(model), "several_layers": has_several_layers(model)}
        moments = {MOMENTS: said | {"stages": stages_of(model)}}
    for name, content in files.items():
        write_atomically(folder / name, content)
    preprocessing = facts.preprocessing
    description = {
        "format": FORMAT,
        "model": _described(facts.options),
        "objective": facts.objective.model_dump(mode="json"),
        "image_size": facts.image_size,
        **({"shape": list(facts.shape)} if facts.shape and facts.options.is_own else {}),
        "normalisation": {"mean": list(preprocessing.mean), "std": list(preprocessing.std)},
        "resize": preprocessing.resize,
        "interpolation": preprocessing.interpolation,
        "parameters": sum(value.numel() for value in _published(dict(model.named_parameters())).values()),
        **moments,
        **{part.hash: hashlib.sha256(files[part.file]).hexdigest() for part in described_parts(facts.options, moments)},
        **({} if trained is None else {"trained": list(trained)}),
    }
    description["digest"] = digest_of(description)
    write_atomically(folder / DESCRIPTION, json.dumps(description, indent=2) + "\n")


def _save_clip(folder: Path, model: ClipModel, facts: ModelFacts) -> dict[str, bytes]:
    """Writes the tokenizer, and returns the contents of the files that stock open_clip reads, by their names."""
    stock = {"model_cfg": model.model_cfg, "preprocess_cfg": preprocess_cfg(facts.preprocessing, facts.image_size)}
    tokenizer = tokenizer_for(facts.options)
    if isinstance(tokenizer, ClipTokenizer) and hasattr(tokenizer.stock, "save_pretrained"):
        tokenizer.stock.save_pretrained(str(folder))  # a tokenizer whose files open_clip does not ship
    state = merged_state(model.clip)
    state["logit_scale"] = state["logit_scale"].clamp(max=model.max_logit_scale)  # stock open_clip has no limit
    return {CLIP_CONFIG: _text(stock), CLIP_WEIGHTS: save(_portable(state))}


def _save_parts(model: nn.Module, options: ModelConfig) -> dict[str, bytes]:
    """Merges the adapters into a model's weights, and returns the content of each file of weights, by file name.

    The file without a prefix gets the tensors that no other file holds.
    """
    state, files = _portable(_published(merged_state(model))), {}
    for part in sorted(weight_parts(options), key=lambda part: -len(part.prefix)):
        names = [name for name in state if name.startswith(part.prefix)]
        files[part.file] = save({name.removeprefix(part.prefix): state.pop(name) for name in names})
    return files


def _text(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=2) + "\n").encode()


def _portable(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}


def _described(model: ModelConfig) -> dict[str, Any]:
    """Returns the model's configuration without paths of this machine.

    On loading, `model_config` puts the path of the model's folder in place of those of an open_clip model or a text tower.
    """
    name = model.architecture and Path(model.architecture.removeprefix(LOCAL_DIR)).name
    gone = {"architecture": name, "weights": None, "digest": None, "anchors": None, "start": None, "start_digest": None}
    text = {"text": TEXT} if model.pretrained_text else {}
    return model.model_copy(update=gone | text).model_dump(mode="json")


def load_encoder(folder: str | Path) -> Model:
    """Reads a model that `save_encoder` wrote.

    The returned model is on the CPU and in evaluation mode, and its adapters are merged into the weights.

    Raises:
        UserError: If the folder is missing, damaged, or of another version; if a package that builds the model is missing; or
            if the user's own encoder cannot be built again, or is no longer the encoder that was trained.
    """
    folder = Path(folder)
    description = describe(folder)
    config = model_config(folder)
    try:
        objective = ObjectiveConfig.model_validate(description["objective"])
    except ValidationError as error:
        raise _unknown(folder) from error
    tensors: dict[str, torch.Tensor] = {}
    heads: dict[str, torch.Tensor] = {}
    for part in described_parts(config, description):
        path = folder / part.file
        try:
            stored = load(part.read(folder, description))
        except SafetensorError as error:
            raise UserError(f"{path} is not a safetensors file: {error}. [model-safetensors]") from error
        into = heads if part is HEADS else tensors
        into |= {f"{part.prefix}{name}": tensor for name, tensor in stored.items()}
    model = _skeleton(config, objective, description["image_size"], description.get("shape"))
    if heads:
        said = description[MOMENTS]
        keep_towers(model, said["projected"], said.get("several_layers", False))
    target = model.clip if isinstance(model, ClipModel) else model
    _compare(target.state_dict(), tensors, folder / weight_parts(config)[0].file)
    target.load_state_dict(tensors, assign=not (config.external or config.pretrained_text or config.is_own))
    if heads:
        give_heads(model, PublishedHeads(heads))
    return model.requires_grad_(True).eval()


def load_weights_into(folder: str | Path, model: nn.Module, shape: tuple[int, int, int]) -> None:
    """Loads the weights in a folder into a user's own model.

    Args:
        folder: Folder written by `save_encoder`.
        model: Model of the same architecture. It is moved to the CPU, and its lazy layers learn the width of their input.
        shape: Shape (C, H, W) of the images that the model reads.

    Raises:
        UserError: If the folder is missing or damaged, or the model has another architecture or fails on an image of zeros.
    """
    folder = Path(folder)
    content = Part(WEIGHTS).read(folder, describe(folder))
    tokenizer = getattr(model, "tokenizer", None)
    finish_model(model, torch.zeros(2, *shape), tokenizer(["a", "b"]) if tokenizer else None)
    tensors = load(content)
    _compare(_published(dict(model.state_dict())), tensors, folder / WEIGHTS)
    model.load_state_dict(tensors, strict=False)


def weights_digest(folder: str | Path) -> str:
    """Returns the SHA-256 of a model's first file of weights or, if its heads are made of moments, of the file of the heads.

    The hashes of all files of weights are checked first.

    Raises:
        UserError: If the folder is missing, damaged, or of another version.
    """
    folder = Path(folder)
    description = describe(folder)
    parts = described_parts(model_config(folder), description)
    for part in parts:
        part.read(folder, description)
    return str(description[HEADS.hash if HEADS in parts else "sha256"])


def _skeleton(config: ModelConfig, objective: ObjectiveConfig, size: int, shape: Sequence[int] | None) -> Model:
    """Builds the model before its weights are read, without changing the random state of the process."""
    if config.external or config.pretrained_text:  # such models compute constants when they are built: no meta tensors
        whole = AdaptationConfig(image="full", text="full")
        with torch.random.fork_rng(devices=[]):
            return build_model(config, objective, whole, size, load_weights=False)
    if config.is_own:
        with torch.random.fork_rng(devices=[]):
            model, tokenizer = build_model(config, objective, size=size, load_weights=False), tokenizer_for(config)
            finish_model(model, torch.zeros(2, *(shape or (3, size, size))), tokenizer(["a", "b"]) if tokenizer else None)
        return model
    with torch.device("meta"):
        return build_model(config, objective, size=size, load_weights=False)


def model_config(folder: str | Path) -> ModelConfig:
    """Returns the configuration that rebuilds the model of a folder and its tokenizer.

    Raises:
        UserError: If the folder is missing, damaged, or of another version.
    """
    given = describe(folder)["model"]
    if isinstance(given, dict) and given.get("kind") == "open_clip":
        given["architecture"] = f"{LOCAL_DIR}{folder}"
    if isinstance(given, dict) and given.get("text") == TEXT:
        given["text"] = f"{folder}/{TEXT}"
    try:
        return ModelConfig.model_validate(given)
    except ValidationError as error:
        raise _unknown(Path(folder)) from error


def _unknown(folder: Path) -> UserError:
    return UserError(
        f"{folder / DESCRIPTION} does not describe a model that this version of dpfed can build: load the model with the "
        "version that wrote it. [model-unknown]"
    )


def preprocessing_in(folder: str | Path) -> Preprocessing:
    """Returns the preprocessing of images that the model of a folder expects.

    Raises:
        UserError: If the folder is missing, damaged, or of another version.
    """
    description = describe(folder)
    normalisation = description["normalisation"]
    resize, interpolation = description.get("resize", "crop"), description.get("interpolation", "bicubic")
    return Preprocessing(tuple(normalisation["mean"]), tuple(normalisation["std"]), resize, interpolation)


def _published(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Returns the named tensors of a model except its centres, which belong to training, and heads of moments.

    Heads of moments have a file of their own.
    """
    left_out = f"{CENTRES}.", f"{ATTRIBUTE}."
    return {name: value for name, value in tensors.items() if not name.startswith(left_out)}


def _compare(expected: dict[str, torch.Tensor], stored: dict[str, torch.Tensor], path: Path) -> None:
    for name in sorted(expected.keys() | stored.keys()):
        wanted, given = expected.get(name), stored.get(name)
        if wanted is None or given is None:
            what = "lacks" if given is None else "has an unknown"
            raise UserError(
                f"{path} does not fit {DESCRIPTION} or your own model: it {what} tensor '{name}'. Give the model that was "
                "trained, with unchanged code. [model-tensor]"
            )
        if wanted.shape != given.shape or wanted.dtype != given.dtype:
            shapes = f"{tuple(given.shape)} {given.dtype}, expected {tuple(wanted.shape)} {wanted.dtype}"
            raise UserError(
                f"{path} does not fit {DESCRIPTION} or your own model: tensor '{name}' is {shapes}. Give the model that was "
                "trained, with unchanged code. [model-tensor-shape]"
            )
