"""What a model folder says of itself (``model.json``), read without torch."""

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
TEXT = "text"  # a folder in the model's: a pretrained text tower, in the Hugging Face format
MOMENTS = "moments"  # of a description: what the heads of a run in closed form need to know
# What timm's config.json cannot say of the images in training.
BLACK_BORDERS = (
    "timm's own transform pads with the mean colour, and these images were padded with fill_color, so its features differ."
)
RGB_LAST = "Images with transparency or a palette are scaled as they are, and become RGB afterwards."
_KEYS = ("model", "objective", "image_size", "normalisation", "parameters", "sha256", "digest")


def describe(folder: str | Path) -> dict[str, Any]:
    """What is in a model folder.

    Returns:
        The keys ``format, model, objective, image_size`` (pixels)``, normalisation`` (mean and std per channel, of pixels in
        [0, 1])``, resize``, ``interpolation``, ``parameters`` (their number), ``sha256`` (of the weights), of a timm
        encoder ``sha256_head`` (of what is beside it), of a pretrained text tower ``sha256_text``, ``digest`` (of all else that
        is said) and, where they are known, ``trained`` (the runs that made it).

    Raises:
        UserError: if there is no description, or it is damaged or of another version.
    """
    path = Path(folder) / DESCRIPTION
    try:
        description = json.loads(read_file(path))
        found = description["format"]
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path} is damaged: it is not the description of a model. [model-not-described]") from error
    if found != FORMAT:
        raise UserError(f"{path} describes a model of format {found}; this dpfed reads format {FORMAT}. [model-format]")
    for key in _KEYS:
        if key not in description:
            raise UserError(f"{path} is damaged: it lacks '{key}'. [model-key-missing]")
    if description["digest"] != digest_of(description):
        raise UserError(f"{path} is damaged or was edited (its digest differs): copy the folder again. [model-edited]")
    return description


class Part(NamedTuple):
    """A file with weights of a model.

    Attributes:
        file: its name.
        hash: the key under which the description has its SHA-256.
        prefix: what the names of its tensors begin with in the model, and not in the file.
    """

    file: str
    hash: str = "sha256"
    prefix: str = ""

    def read(self, folder: Path, description: dict[str, Any]) -> bytes:
        """What the file in a model folder holds.

        Raises:
            UserError: if it is missing, or another one than is described.
        """
        content = read_file(folder / self.file)
        if hashlib.sha256(content).hexdigest() != description.get(self.hash):
            raise UserError(
                f"{folder / self.file} is damaged or not what {DESCRIPTION} describes: copy the folder. [model-file-damaged]"
            )
        return content


HEADS = Part("heads.safetensors", "sha256_heads")  # of a run in closed form (`dpfed.models.moments`)


def described_parts(model: ModelConfig, description: dict[str, Any]) -> tuple[Part, ...]:
    """The files with the weights of a model that is described; the last are its heads, if they are made of moments."""
    return (*weight_parts(model), *((HEADS,) if MOMENTS in description else ()))


def weight_parts(model: ModelConfig) -> tuple[Part, ...]:
    """The files with the weights of a model; stock open_clip and timm read the first, transformers that of the text tower."""
    if model.kind == "open_clip":
        return (Part(CLIP_WEIGHTS),)
    text = [Part(f"{TEXT}/{WEIGHTS}", "sha256_text", "text_encoder.backbone.net.")] if model.pretrained_text else []
    if model.timm is None:
        return (Part(WEIGHTS), *text)
    encoder = f"{'image_encoder' if model.reads_text else 'encoder'}.timm."
    return (Part(WEIGHTS, prefix=encoder), Part(HEAD, "sha256_head"), *text)


def digest_of(description: dict[str, Any]) -> str:
    """What guards a description: the hash of all that it says beside."""
    rest = {name: value for name, value in description.items() if name != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def read_file(path: Path) -> bytes:
    """What a file of a model folder holds.

    Raises:
        UserError: if it cannot be read.
    """
    try:
        return read_bytes(path)
    except OSError as error:
        wanted = f"a model folder has {DESCRIPTION} and {WEIGHTS} or {CLIP_WEIGHTS}"
        raise UserError(f"cannot read {path}: {error.strerror or error}; {wanted}. [model-unreadable]") from error
