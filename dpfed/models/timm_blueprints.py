"""Blueprints of timm and torchvision encoders before they are built: architecture, preprocessing, and the source of weights.

Weights are a tag that timm or torchvision knows, or a local file or folder. Nothing is downloaded unless a tag asks for it. An
encoder must not mix records: BatchNorm uses the fixed statistics of pretrained or starting weights (`dpfed.models.norm`), and
is refused with random weights.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import importlib.util
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from dpfed.data.views.preprocessing import Preprocessing, is_three
from dpfed.errors import UserError, nearest
from dpfed.files.reading import read_text
from dpfed.models.blueprints import LOCAL_DIR, quiet
from dpfed.models.description import DESCRIPTION, TIMM_CONFIG, WEIGHTS
from dpfed.models.options import ModelConfig
from dpfed.models.torchvision_encoders import PREFIX as TORCHVISION
from dpfed.models.torchvision_encoders import create as create_torchvision
from dpfed.models.torchvision_encoders import described, weights_of
from dpfed.models.weight_files import not_fetched, words

_FILES = (WEIGHTS, "pytorch_model.bin", "pytorch_model.pth", "model.pth")  # files of weights in a folder; the first is taken
_SIZES = ("img_size", "in_chans", "num_classes")  # arguments that do not change the layers between the first and the last
RESIZE = {"center": "crop", "squash": "squash", "border": "pad"}  # timm's crop_mode -> dpfed's data.resize


@dataclass(frozen=True)
class TimmBlueprint:
    """A timm or torchvision encoder that can be built.

    Attributes:
        name: Name of the architecture, with the prefix ``torchvision/`` for torchvision's.
        cfg: Configuration of the weights or of the architecture, in the form of timm's ``pretrained_cfg``.
        preprocessing: Preprocessing that the weights expect; without weights, dpfed's own.
        published: Whether timm or torchvision knows the weights and fetches them.
        file: File of local weights, or ``None``.
        started: Whether the model gets starting weights (``model.start``). Without published, local or starting weights, the
            weights are random.
    """

    name: str
    cfg: dict[str, Any]
    preprocessing: Preprocessing
    published: bool = False
    file: Path | None = None
    started: bool = False

    @property
    def title(self) -> str:
        """Name of the encoder as `model.image` gives it."""
        return _title(self.name)

    @property
    def random(self) -> bool:
        """Whether the weights are random, so that BatchNorm would have no statistics."""
        return not (self.published or self.file or self.started)

    @property
    def size(self) -> int:
        """Side of the images that the architecture expects, pixels."""
        return int(self.cfg["input_size"][-1])

    @property
    def has_batch_norm(self) -> bool:
        """Whether the architecture has BatchNorm, whose statistics are never trained and never sent."""
        return _shapes(self.name)[1]

    @property
    def digest(self) -> str:
        """Hash of architecture and preprocessing, not of the weights.

        Raises:
            UserError: If the architecture cannot be built, or has BatchNorm and random weights.
        """
        if self.has_batch_norm and self.random:
            raise batch_norm_without_weights(self.name)
        text = json.dumps([self.name, _shapes(self.name)[0], asdict(self.preprocessing)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def timm_blueprint(model: ModelConfig) -> TimmBlueprint:
    """Looks up the encoder that a configuration names; builds and fetches nothing.

    Raises:
        UserError: For an unknown architecture, unknown weights, a folder without timm's description or weights, weights of
            another architecture, weights of this architecture with other arguments, a model of dpfed in place of weights, or a
            missing package.
    """
    name, weights = model.timm or "", model.weights
    if name.startswith(TORCHVISION):
        return _of_torchvision(name, weights, model.start is not None)
    if importlib.util.find_spec("timm") is None:
        raise UserError(f"model.image = '{model.image}' needs the package timm: `pip install timm`. [encoder-package]")
    import timm

    known = timm.list_models()
    if name not in known:
        base, _, tag = name.partition(".")
        hint = nearest(name, known).replace("did you mean '", "did you mean 'timm/")
        if base in known:
            hint = f"set model.image = 'timm/{base}' and model.weights = '{tag}'."
        raise UserError(f"unknown model.image = '{model.image}': timm has no such architecture; {hint} [encoder-unknown]")
    default_cfg = _cfg_of(name)
    if weights is None:
        return TimmBlueprint(name, default_cfg, Preprocessing(), started=model.start is not None)
    cfgs = {full.partition(".")[2]: cfg for full, cfg in timm.models.get_arch_pretrained_cfgs(name).items()}
    tags = [tag for tag, cfg in cfgs.items() if cfg.has_weights]
    if weights in tags:
        cfg = cfgs[weights].to_dict()
        return TimmBlueprint(name, cfg, _preprocessing(cfg), published=True)
    place = Path(weights.removeprefix(LOCAL_DIR)).expanduser()
    if place.name == WEIGHTS and (place.parent / DESCRIPTION).is_file() or (place / DESCRIPTION).is_file():
        raise UserError(
            f"model.weights: {place} is a model of dpfed: set model.start to it instead, so that the privacy card also says "
            "which records this model was trained on. [weights-of-dpfed]"
        )
    if place.is_dir():
        cfg = default_cfg | _described(name, str(place), _of_folder(place))
        weights_file = next((place / file for file in _FILES if (place / file).is_file()), None)
        if weights_file is None:
            raise UserError(f"model.weights: {place} has no weights; expected one of {', '.join(_FILES)}. [weights-none-there]")
        return TimmBlueprint(name, cfg, _preprocessing(cfg), file=weights_file)
    if not place.is_file():
        what = nearest(weights, tags) if tags else "timm publishes no weights for this encoder: give a file or folder."
        raise UserError(f"model.weights = {weights!r} is not a file, folder or tag of timm/{name}; {what} [weights-not-timm]")
    return TimmBlueprint(name, default_cfg, _preprocessing(default_cfg), file=place)


def _of_torchvision(name: str, weights: str | None, started: bool) -> TimmBlueprint:
    tags = list(weights_of(name.removeprefix(TORCHVISION)))
    published = weights in tags
    cfg, preprocessing = described(name.removeprefix(TORCHVISION), weights if published else None)
    if weights is None:
        return TimmBlueprint(name, cfg, Preprocessing(), started=started)
    file = None if published else Path(weights).expanduser()
    if file is not None and not file.is_file():
        raise UserError(f"model.weights = {weights!r} is not a file or tag of {name}; {nearest(weights, tags)} [weights-tag]")
    return TimmBlueprint(name, cfg, preprocessing, published=published, file=file)


def _title(name: str) -> str:
    return name if name.startswith(TORCHVISION) else f"timm/{name}"


def _of_folder(folder: Path) -> dict[str, Any]:
    """Reads timm's description of the weights in a folder."""
    try:
        return dict(json.loads(read_text(folder / TIMM_CONFIG)))
    except (OSError, ValueError, TypeError) as error:
        raise UserError(
            f"model.weights: {folder} has no {TIMM_CONFIG} that timm wrote ({words(error)}); give a file of weights. "
            "[weights-config]"
        ) from error


def _described(name: str, where: str, description: dict[str, Any]) -> dict[str, Any]:
    """Returns the part of ``pretrained_cfg`` in timm's description that dpfed uses.

    Args:
        name: Name of the architecture; the description must be of this architecture, as timm builds it by name.
        where: Path of the weights, for messages.
        description: timm's description of the weights.

    Raises:
        UserError: If the description is malformed, or of another or a changed architecture.
    """
    architecture, arguments = description.get("architecture"), description.get("model_args") or {}
    cfg = description.get("pretrained_cfg", description)
    if not isinstance(architecture, str) or not isinstance(arguments, dict) or not isinstance(cfg, dict):
        raise UserError(
            f"model.weights: {where} has no {TIMM_CONFIG} that timm wrote; give a file of weights. [weights-fields]"
        )
    if architecture != name:
        raise UserError(f"'{where}' holds weights of {architecture}: set model.image = 'timm/{architecture}'. [weights-model]")
    if changed := [key for key in arguments if key not in _SIZES]:
        raise UserError(
            f"'{where}' holds weights of {name} with other arguments ({', '.join(changed)}), but dpfed takes timm's default "
            "arguments: give other weights. [weights-arguments]"
        )
    kept = {key: cfg[key] for key in ("mean", "std", "interpolation", "crop_mode", "input_size") if cfg.get(key) is not None}
    for key, value in kept.items():
        if (wanted := _misfit(key, value)) is not None:
            raise UserError(
                f"model.weights: in {where}, {key} of {TIMM_CONFIG} must be {wanted}, got {str(value)[:80]!r}: correct the "
                "file, or give a file of weights. [weights-preprocessing]"
            )
    return kept


def _misfit(key: str, value: Any) -> str | None:
    """Describes what a value of ``pretrained_cfg`` must be, such as ``three numbers``; ``None``: the value is valid."""
    if key in ("interpolation", "crop_mode"):
        return None if isinstance(value, str) else "a string"
    kinds, least = {"mean": ((int, float), -math.inf), "std": ((int, float), 0.0), "input_size": ((int,), 0.0)}[key]
    if is_three(value, least, kinds):
        return None
    return {"mean": "three numbers", "std": "three numbers above 0", "input_size": "three whole numbers above 0"}[key]


def _preprocessing(cfg: dict[str, Any]) -> Preprocessing:
    interpolation = cfg.get("interpolation")
    return Preprocessing(
        tuple(cfg.get("mean", (0.485, 0.456, 0.406))),
        tuple(cfg.get("std", (0.229, 0.224, 0.225))),
        RESIZE.get(cfg.get("crop_mode", "center"), "crop"),
        interpolation if interpolation in ("bicubic", "bilinear") else "bicubic",
    )


def create(spec: TimmBlueprint, pretrained: bool, options: dict[str, Any]) -> nn.Module:
    """Builds the model of a blueprint without its classifier.

    Args:
        spec: Blueprint of the encoder.
        pretrained: Whether to fetch the published weights; otherwise weights are drawn from torch's global generator.
        options: Further arguments of timm's ``create_model``; torchvision's models take none.

    Raises:
        UserError: If the model cannot be built with these arguments, or its weights are not available.
    """
    from timm import create_model

    try:
        with quiet():
            if spec.name.startswith(TORCHVISION):
                net: Any = create_torchvision(spec.name.removeprefix(TORCHVISION), spec.cfg["tag"] if pretrained else None)
                net.pretrained_cfg = dict(spec.cfg)
                return net
            return create_model(spec.name, pretrained=pretrained, pretrained_cfg=dict(spec.cfg), num_classes=0, **options)
    except UserError:
        raise
    except Exception as error:  # a download can raise anything, and so can the constructors of a thousand models
        if pretrained:
            raise UserError(
                f"the weights '{spec.cfg.get('tag')}' of {spec.title} are not available ({not_fetched(error)}); set "
                "model.weights to a local file or folder. [weights-unavailable]"
            ) from error
        what = f" for images of {options['img_size']} pixels (data.size)" if options else ""
        raise UserError(f"{spec.title} cannot be built{what}: {words(error)}. [encoder-not-built]") from error


def batch_norm_without_weights(name: str) -> UserError:
    """Returns the error for an encoder whose BatchNorm would have to take its statistics from private records."""
    import timm

    siblings = [known for known in timm.list_models("*_gn") if not known.startswith("test_")]
    near = difflib.get_close_matches(f"{name}_gn", siblings, n=1)
    hint = f"'timm/{near[0]}', " if near else ""
    return UserError(
        f"model.image = '{_title(name)}' has BatchNorm, which mixes records unless its statistics are pretrained: set "
        f"model.weights, or take {hint}another timm model whose name ends in _gn, a ConvNeXt or a ViT. [encoder-batch-norm]"
    )


@functools.cache
def _shapes(name: str) -> tuple[dict[str, list[int]], bool]:
    """Returns the shapes of an architecture's tensors by name, and whether the architecture has BatchNorm.

    The shapes may differ between versions of timm.
    """
    spec = TimmBlueprint(name, _cfg_of(name), Preprocessing())
    with torch.random.fork_rng(devices=[]):
        try:
            with torch.device("meta"):
                net = create(spec, False, {})
        except UserError:  # some constructors compute constants, which meta tensors do not allow
            net = create(spec, False, {})
    has_batch_norm = any(isinstance(module, _BatchNorm) for module in net.modules())
    return {path: list(tensor.shape) for path, tensor in net.state_dict().items()}, has_batch_norm


def _cfg_of(name: str) -> dict[str, Any]:
    """Returns the ``pretrained_cfg`` of an architecture's default weights."""
    if name.startswith(TORCHVISION):
        return described(name.removeprefix(TORCHVISION), None)[0]
    from timm.models import PretrainedCfg, get_pretrained_cfg

    return (get_pretrained_cfg(name) or PretrainedCfg()).to_dict()
