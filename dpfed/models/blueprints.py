"""Blueprints of open_clip models before they are built: architecture, preprocessing, and the source of their weights.

An architecture is a name that open_clip knows, a JSON file in open_clip's format (the user's, or one that dpfed ships), or
``local-dir:DIR``, which names a folder in open_clip's format. Weights are a tag that open_clip knows, a local file, the weights
in that folder, or random. Nothing is downloaded unless a tag asks for it.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import logging
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpfed.data.views.preprocessing import Preprocessing, is_three
from dpfed.errors import UserError, nearest
from dpfed.files.reading import read_text
from dpfed.files.shipped import find_tower
from dpfed.models.options import ModelConfig

LOCAL_DIR = "local-dir:"
CONFIG, WEIGHTS = "open_clip_config.json", "open_clip_model.safetensors"
_RESIZE = {"shortest": "crop", "squash": "squash", "longest": "pad"}
_NEEDED = ("embed_dim", "vision_cfg", "text_cfg")
_NUMBERS = {"vision_cfg": ("image_size",), "text_cfg": ("vocab_size", "context_length")}
_INTERPOLATIONS = ("bicubic", "bilinear")


@dataclass(frozen=True)
class Blueprint:
    """An open_clip model that can be built.

    Attributes:
        name: Name of the architecture.
        model_cfg: Description of both towers in open_clip's format.
        preprocessing: Preprocessing that the image tower expects.
        tag: Tag of weights that open_clip can fetch, or ``None``.
        file: File of local weights, or ``None``; without tag and file, weights are random.
        folder: Folder DIR of ``local-dir:DIR``, which may hold a tokenizer, or ``None``.
    """

    name: str
    model_cfg: dict[str, Any]
    preprocessing: Preprocessing
    tag: str | None = None
    file: Path | None = None
    folder: Path | None = None

    @property
    def size(self) -> int:
        """Side of the images, pixels.

        Raises:
            UserError: If the architecture reads images that are not square.
        """
        size = self.model_cfg["vision_cfg"].get("image_size", 224)
        if isinstance(size, (list, tuple)):
            if size[0] != size[1]:
                raise UserError(f"the architecture reads {size[0]} x {size[1]} pixels; images must be square. [model-square]")
            size = size[0]
        return int(size)

    @property
    def digest(self) -> str:
        """Hash of architecture and preprocessing, not of the weights."""
        text = json.dumps([self.model_cfg, asdict(self.preprocessing)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def vocabulary(self) -> int:
        """Number of different tokens that the text tower knows."""
        return int(self.model_cfg["text_cfg"].get("vocab_size", 49408))

    @property
    def context(self) -> int:
        """Largest number of tokens that the text tower reads of a caption."""
        return int(self.model_cfg["text_cfg"].get("context_length", 77))


def blueprint(config: ModelConfig) -> Blueprint:
    """Looks up the open_clip architecture that a configuration names; builds and fetches nothing.

    Raises:
        UserError: For an unknown architecture or tag, a missing or malformed file, weights that expect borders of a
            colour other than black, or a missing package.
    """
    if importlib.util.find_spec("open_clip") is None:
        raise UserError("model.kind = 'open_clip' needs the package open_clip_torch; install dpfed[clip]. [clip-package]")
    name = config.architecture or ""
    if name.startswith(LOCAL_DIR):
        return _local_dir(Path(name.removeprefix(LOCAL_DIR)).expanduser(), config.weights)
    if name.endswith(".json"):
        path = find_tower(name) or Path(name).expanduser()
        model_cfg, preprocessing = _read_json(path)
        return Blueprint(name, model_cfg, preprocessing, file=_weights_file(config.weights, f"the architecture of {path}"))
    return _by_name(name, config.weights)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silences all logging except errors while the block runs.

    open_clip, for example, warns that weights are random, although dpfed asked for random weights.
    """
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def _by_name(name: str, weights: str | None) -> Blueprint:
    import open_clip
    from open_clip.pretrained import get_pretrained_cfg

    known = open_clip.list_models()
    if name not in known:
        raise UserError(f"unknown model.architecture {name!r}; {nearest(name, known)} [clip-architecture]")
    tags = open_clip.list_pretrained_tags_by_model(name)
    tag = weights if weights in tags else None
    # Preprocessing belongs to the weights. Local and random weights get the preprocessing of the first published weights.
    published = get_pretrained_cfg(name, tag or tags[0]) if tags else {}
    file = None
    if weights is not None and tag is None:
        if not Path(weights).expanduser().is_file():
            what = nearest(weights, tags) if tags else "open_clip publishes no weights for this architecture: give a file."
            raise UserError(f"model.weights = {weights!r} is neither a file nor a tag of {name}; {what} [clip-weights]")
        file = Path(weights).expanduser()
    return Blueprint(name, open_clip.get_model_config(name), _preprocessing(published, name), tag=tag, file=file)


def _local_dir(folder: Path, weights: str | None) -> Blueprint:
    if not folder.is_dir():
        raise UserError(
            f"model.architecture: {folder} is not a folder; expected a folder with {CONFIG} and weights. [clip-folder]"
        )
    if not (folder / CONFIG).is_file():
        raise UserError(
            f"model.architecture: {folder} does not contain {CONFIG}: give the folder of an open_clip model. [clip-no-config]"
        )
    model_cfg, preprocessing = _read_json(folder / CONFIG)
    file = _weights_file(weights, f"the architecture in {folder}")
    if file is None:
        # The file that stock open_clip would take: version 3.3 has no public function for this.
        from open_clip.factory import _find_checkpoint_in_dir as find

        with quiet():
            checkpoint = find(folder)
        file = Path(checkpoint) if checkpoint else None
    return Blueprint(f"{LOCAL_DIR}{folder}", model_cfg, preprocessing, file=file, folder=folder)


def _read_json(path: Path) -> tuple[dict[str, Any], Preprocessing]:
    """Reads an architecture file, and returns the description of the towers and the preprocessing.

    The file has only the towers, or the form ``{"model_cfg": ..., "preprocess_cfg": ...}``.
    """
    try:
        content = json.loads(read_text(path))
    except OSError as error:
        raise UserError(f"cannot read the architecture {path}: {error.strerror or error}. [clip-config-unreadable]") from error
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON ({error}); expected an open_clip model config. [clip-json]") from error
    whole = content if isinstance(content, dict) else {}
    model_cfg = whole.get("model_cfg", whole)
    if not isinstance(model_cfg, dict) or not all(key in model_cfg for key in _NEEDED):
        raise UserError(f"{path} is not an open_clip model config: it needs the keys {', '.join(_NEEDED)}. [clip-config-keys]")
    for tower, keys in _NUMBERS.items():
        cfg = model_cfg[tower]
        if not isinstance(cfg, dict) or not all(_is_size(cfg[key], pair=key == "image_size") for key in keys if key in cfg):
            raise UserError(
                f"{path}: {tower} must be an object, with only whole numbers above 0 as {' and '.join(keys)} (if given); "
                f"got {str(cfg)[:80]}. Correct the file. [clip-config-towers]"
            )
    return model_cfg, _preprocessing(whole.get("preprocess_cfg"), str(path))


def _is_size(value: Any, pair: bool) -> bool:
    """Returns whether a value is a positive whole number or, where pairs are allowed, a pair of such numbers."""
    if pair and isinstance(value, list):
        return len(value) == 2 and all(_is_size(side, pair=False) for side in value)
    return type(value) is int and value > 0


def _weights_file(weights: str | None, what: str) -> Path | None:
    if weights is None:
        return None
    path = Path(weights).expanduser()
    if not path.is_file():
        raise UserError(
            f"model.weights = {weights!r} is not a file, and {what} has no published weights: give a file. [clip-no-file]"
        )
    return path


def _preprocessing(given: Any, where: str) -> Preprocessing:
    from open_clip.transform import PreprocessCfg

    cfg = asdict(PreprocessCfg()) | given if isinstance(given, dict) else asdict(PreprocessCfg())
    wrong = {"preprocess_cfg": ("an object", given)} if not isinstance(given, dict | None) else {}
    for key, allowed in {"resize_mode": tuple(_RESIZE), "interpolation": _INTERPOLATIONS}.items():
        if cfg[key] not in allowed:
            wrong[f"preprocess_cfg.{key}"] = (" or ".join(allowed), cfg[key])
    for key, least in {"mean": -math.inf, "std": 0.0}.items():
        if not is_three(cfg[key], least):
            wrong[f"preprocess_cfg.{key}"] = ("three numbers" if key == "mean" else "three numbers above 0", cfg[key])
    for key, (expected, value) in wrong.items():
        raise UserError(f"{where}: {key} must be {expected}, got {str(value)[:80]!r}. Correct the file. [clip-preprocess]")
    if cfg["resize_mode"] == "longest" and np.any(cfg["fill_color"]):
        raise UserError(
            f"{where}: preprocess_cfg.fill_color = {cfg['fill_color']}, but dpfed makes black borders: give weights that were "
            "trained with black borders, or set resize_mode to shortest or squash in this file. [clip-fill-color]"
        )
    return Preprocessing(tuple(cfg["mean"]), tuple(cfg["std"]), _RESIZE[cfg["resize_mode"]], cfg["interpolation"])


def preprocess_cfg(preprocessing: Preprocessing, size: int) -> dict[str, Any]:
    """Returns the preprocessing in open_clip's format, for `open_clip_config.json`.

    Args:
        preprocessing: Preprocessing of the images.
        size: Side of the images, pixels.
    """
    modes = {ours: theirs for theirs, ours in _RESIZE.items()}
    return {
        "size": [size, size],
        "mode": "RGB",
        "mean": list(preprocessing.mean),
        "std": list(preprocessing.std),
        "interpolation": preprocessing.interpolation,
        "resize_mode": modes[preprocessing.resize],
        "fill_color": 0,
    }
