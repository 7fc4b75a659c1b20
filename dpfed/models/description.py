"""The description of a model in its folder (``model.json``), read without torch."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

from dpfed.errors import UserError
from dpfed.files.reading import read_bytes
from dpfed.models.blueprints import WEIGHTS as CLIP_WEIGHTS
from dpfed.models.options import ModelConfig

FORMAT = 1
WEIGHTS, DESCRIPTION, HEAD = "model.safetensors", "model.json", "head.safetensors"
TIMM_CONFIG = "config.json"  # timm's description of weights
FOREIGN = ".*"  # pattern of file names that are never dpfed's: file systems leave files such as .DS_Store and .nfs0001
TEXT = "text"  # subfolder of a model folder: a pretrained text tower, in the Hugging Face format
MOMENTS = "moments"  # key of a description: facts that heads made of moments need
# Notes on the images in training that timm's own keys of config.json cannot express.
BLACK_BORDERS = (
    "timm's own transform pads with the mean colour. In training, images were padded with fill_color, so the model returns "
    "other features for images that timm's transform has padded."
)
RGB_LAST = "Images with transparency or a palette are resized first, and converted to RGB afterwards."
_KEYS = ("model", "objective", "image_size", "normalisation", "parameters", "sha256", "digest")


def describe(folder: str | Path) -> dict[str, Any]:
    """Reads the description of the model in a folder.

    Returns:
        The description. Its keys are ``format``, ``model``, ``objective``, ``image_size`` (pixels), ``normalisation`` (mean and
        std per channel, of pixels in [0, 1]), ``resize``, ``interpolation``, ``parameters`` (their number), ``sha256`` (hash of
        the first file of weights) and ``digest`` (hash of all other keys). Some models have further keys: ``sha256_head`` (with
        a timm encoder: hash of the other weights), ``sha256_text`` (pretrained text tower), ``sha256_heads`` and ``moments``
        (heads made of moments), ``shape`` (C, H, W: images of a user's own encoder) and ``trained`` (the runs that made the
        model).

    Raises:
        UserError: If there is no description, or it is damaged or of another version.
    """
    path = Path(folder) / DESCRIPTION
    try:
        description = json.loads(read_file(path))
        version = description["format"]
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"{path} is damaged: it is not the description of a model; copy the folder again. [model-not-described]"
        ) from error
    if version != FORMAT:
        raise UserError(
            f"{path} describes a model of format {version}; this dpfed reads format {FORMAT}: load the model with the version "
            "of dpfed that wrote it. [model-format]"
        )
    for key in _KEYS:
        if key not in description:
            raise UserError(f"{path} is damaged: it lacks '{key}'; copy the folder again. [model-key-missing]")
    if description["digest"] != digest_of(description):
        raise UserError(f"{path} is damaged or was edited (its digest differs): copy the folder again. [model-edited]")
    return description


class Part(NamedTuple):
    """A file with weights of a model.

    Attributes:
        file: Name of the file.
        hash: Key under which the model's description (`describe`) has the file's SHA-256.
        prefix: Prefix that the tensors' names have in the model, but not in the file.
    """

    file: str
    hash: str = "sha256"
    prefix: str = ""

    def read(self, folder: Path, description: dict[str, Any]) -> bytes:
        """Reads this file of weights from a model folder, and checks its SHA-256.

        Args:
            folder: The model folder.
            description: The folder's description (`describe`).

        Raises:
            UserError: If the file is missing, or its SHA-256 is not the one in the description.
        """
        content = read_file(folder / self.file)
        if hashlib.sha256(content).hexdigest() != description.get(self.hash):
            raise UserError(
                f"{folder / self.file} is damaged, or not what {DESCRIPTION} describes: copy the folder again. "
                "[model-file-damaged]"
            )
        return content


HEADS = Part("heads.safetensors", "sha256_heads")  # heads made of moments (`dpfed.models.moments`)


def described_parts(model: ModelConfig, description: dict[str, Any]) -> tuple[Part, ...]:
    """Lists the files with the weights of a described model; if its heads are made of moments, the last file holds them."""
    return (*weight_parts(model), *((HEADS,) if MOMENTS in description else ()))


def weight_parts(model: ModelConfig) -> tuple[Part, ...]:
    """Lists the files with the weights of a model.

    Stock open_clip and timm read the first file, and transformers reads the file of the text tower.
    """
    if model.kind == "open_clip":
        return (Part(CLIP_WEIGHTS),)
    text = [Part(f"{TEXT}/{WEIGHTS}", "sha256_text", "text_encoder.backbone.net.")] if model.pretrained_text else []
    if model.timm is None:
        return (Part(WEIGHTS), *text)
    encoder = f"{'image_encoder' if model.reads_text else 'encoder'}.timm."
    return (Part(WEIGHTS, prefix=encoder), Part(HEAD, "sha256_head"), *text)


def digest_of(description: dict[str, Any]) -> str:
    """Computes the digest that protects a description: the hash of all its other keys."""
    rest = {name: value for name, value in description.items() if name != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def read_file(path: Path) -> bytes:
    """Reads a file of a model folder.

    Raises:
        UserError: If the file cannot be read.
    """
    try:
        return read_bytes(path)
    except OSError as error:
        wanted = f"a model folder has {DESCRIPTION} and {WEIGHTS} or {CLIP_WEIGHTS}"
        raise UserError(f"cannot read {path}: {error.strerror or error}; {wanted}. [model-unreadable]") from error
