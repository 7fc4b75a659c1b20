"""Turns the value of `--model` into keys of a configuration, and finds pretrained towers in this machine's cache."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfed.artifacts.directory import RunDirectory
from dpfed.errors import UserError
from dpfed.models.blueprints import CONFIG as CLIP_CONFIG
from dpfed.models.blueprints import LOCAL_DIR
from dpfed.models.options import SENTENCES, ModelConfig
from dpfed.models.text_blueprints import CONFIG as TEXT_CONFIG
from dpfed.schema.named import is_name

if TYPE_CHECKING:  # with torch
    from dpfed.features.public_tower import PublicTower

OURS = ("cnn", "resnet18", "resnet34", "resnet50")
TEXT = f"{SENTENCES}all-MiniLM-L6-v2"  # 22 million parameters; one of the measured towers (docs/moments.md)
SUGGESTED = "timm/tf_efficientnet_lite0"  # one of the measured towers, too
_FORMS = (
    "timm/NAME, torchvision/NAME, open_clip/NAME, the folder of a public run or of an open_clip model, cnn, resnet18, or "
    "package.module:function"
)
_TOWER_FORMS = (
    f"timm/NAME, torchvision/NAME, open_clip/NAME, the folder of an open_clip model, {SENTENCES}NAME, or the folder of a text "
    "tower"
)
# Image towers in order of preference; the first that is in Hugging Face's cache is used.
_CACHED_IMAGES = ("vit_small_patch14_dinov2.lvd142m", "tf_efficientnet_lite0.in1k", "resnet50.a1_in1k", "resnet18.a1_in1k")
_PREFERRED_TAGS = ("laion2b", "datacomp", "openai")


@dataclass(frozen=True)
class Towers:
    """The towers of a run before training.

    Attributes:
        keys: Values of configuration keys, by dotted key.
        said: Description of the towers, a few words.
        why: Reason for this choice.
        pretrained: Kind of pretraining: ``"none"``; ``"images"``: an image tower; ``"unaligned"``: an image and a text tower
            that were never trained together; ``"aligned"``: an image and a text tower that were trained together.
        sized: Whether the architecture fixes the size of its images.
    """

    keys: dict[str, Any]
    said: str
    why: str
    pretrained: str = "none"
    sized: bool = False


def given_towers(name: str, reads_text: bool, given: dict[str, Any]) -> Towers:
    """Returns the towers that the user names.

    Args:
        name: Value of ``--model``, or the path of a folder.
        reads_text: Whether the records have captions.
        given: Values of the keys that ``--set`` sets, such as weights or a text tower.

    Raises:
        UserError: If the name has an unknown form, if its library does not know it or is not installed, or if the folder's
            run is damaged.
    """
    name, kind = str(name), "image-text" if reads_text else "image"  # a program may give a folder as a Path
    why = "given by --model"
    if name in OURS or is_name(name):
        return Towers({"model.kind": kind, "model.image": name}, name, why)
    family, _, rest = name.partition("/")
    if family == "open_clip" and rest:
        return _open_clip(rest, why)
    if family in ("timm", "torchvision") and rest:
        return _encoder(family, rest, kind, why, given)
    path = _folder(name)
    if os.path.isfile(path / CLIP_CONFIG):
        keys = {"model.kind": "open_clip", "model.architecture": f"{LOCAL_DIR}{path.resolve()}"}
        return Towers(keys, f"the open_clip model in {path}", why, "aligned", sized=True)
    if os.path.isfile(path / "config.toml"):
        return _run(path, why)
    raise UserError(f"--model {name}: expected {_FORMS}. [automatic-model]")


def named_tower(name: str, weights: str | None = None) -> PublicTower:
    """Loads pretrained towers by their ``--model`` name (see `given_towers`), or a text tower alone.

    Args:
        name: Name of the tower; also ``sentence-transformers/NAME``, or the folder of a text tower in the Hugging Face format.
        weights: Tag of weights that the library fetches, or a local file or folder; ``None``: the library's usual weights.

    Raises:
        UserError: If the name or the weights are unknown or unavailable, the model has no pretrained weights, or `weights` is
            given for a text tower.
    """
    from dpfed.features.public_tower import public_text_tower, public_tower

    if weights == "":
        raise UserError("--weights names no weights: give a tag or a file, or leave it out. [tower-no-weights]")
    name = str(name)
    folder = _folder(name)
    if name.startswith(SENTENCES) or (os.path.isfile(folder / TEXT_CONFIG) and not os.path.isfile(folder / CLIP_CONFIG)):
        if weights is not None:
            raise UserError(
                "--weights is for image towers: a text tower's folder contains its weights. Leave it out. [tower-text-weights]"
            )
        return public_text_tower(name)
    try:
        towers = given_towers(name, False, {} if weights is None else {"model.weights": weights})
    except UserError as error:
        if error.code != "automatic-model":
            raise
        towers = Towers({}, name, "")
    if towers.pretrained == "none" or "model.start" in towers.keys:
        raise UserError(
            f"--model {name}: expected {_TOWER_FORMS}. To use a run, give it as the first argument, without --model. "
            "[tower-name]"
        )
    keys = {key.removeprefix("model."): value for key, value in towers.keys.items()}
    return public_tower(ModelConfig(**keys | ({} if weights is None else {"weights": weights})))


def _folder(name: str) -> Path:
    return Path(os.path.expanduser(name))  # unlike `Path.expanduser`, leaves the name of an unknown user as it is


def towers_at_hand(reads_text: bool) -> Towers | None:
    """Looks in this machine's Hugging Face cache for the few pretrained towers that dpfed chooses from. Nothing is fetched.

    Args:
        reads_text: Whether the records have captions, which also need a text tower.

    Returns:
        The towers; ``None`` if the cache has none of these image towers, or lacks the text tower, or a library that loads one
        of them is missing.
    """
    image = next((name for name in _CACHED_IMAGES if _is_cached(f"timm/{name}")), None)
    if image is None or importlib.util.find_spec("timm") is None:
        return None
    if reads_text and (not _is_cached(TEXT) or importlib.util.find_spec("transformers") is None):
        return None
    base, _, tag = image.partition(".")
    keys: dict[str, Any] = {"model.kind": "image-text" if reads_text else "image"}
    keys |= {"model.image": f"timm/{base}", "model.weights": tag}
    if reads_text:
        keys["model.text"] = TEXT
    return Towers(keys, f"timm/{image}", "its weights are on this machine", "unaligned" if reads_text else "images", sized=True)


def _encoder(family: str, name: str, kind: str, why: str, given: dict[str, Any]) -> Towers:
    """Returns an encoder of timm or torchvision, with given or usual weights; for image-text records, also a text tower."""
    base, _, tag = name.partition(".")
    weights = given.get("model.weights") or tag or _usual_tag(family, base)
    keys = {"model.kind": kind, "model.image": f"{family}/{base}", "model.weights": weights}
    said = f"{family}/{base}, weights {weights}"
    if kind == "image":
        return Towers(keys, said, why, "images", sized=True)
    text = given.get("model.text", TEXT)
    return Towers({**keys, "model.text": text}, f"{said}, and {text}", why, "unaligned", sized=True)


def _usual_tag(family: str, name: str) -> str:
    """Returns the tag of an architecture's usual weights in its library.

    Raises:
        UserError: If the library is missing, or has no pretrained weights for the architecture.
    """
    if family == "torchvision":
        from dpfed.models.torchvision_encoders import weights_of

        return next(iter(weights_of(name)))
    if importlib.util.find_spec("timm") is None:
        raise UserError(f"--model timm/{name} needs the package timm: `pip install timm`. [automatic-timm]")
    import timm

    known: dict[str, Any] = timm.models.get_arch_pretrained_cfgs(name) if name in timm.list_models() else {}
    tags = [full.partition(".")[2] for full, cfg in known.items() if cfg.has_weights]
    if not tags:
        close = [other for other in timm.list_models(pretrained=True) if other.startswith(name.split("_")[0])][:3]
        hint = f", such as {', '.join(f'timm/{other}' for other in close)}" if close else ""
        raise UserError(
            f"--model timm/{name}: timm has no pretrained weights of that name; choose one of "
            f"`timm.list_models(pretrained=True)`{hint}. [automatic-no-weights]"
        )
    return tags[0]


def _open_clip(name: str, why: str) -> Towers:
    if importlib.util.find_spec("open_clip") is None:
        raise UserError(f"--model open_clip/{name} needs the package open_clip_torch; install dpfed[clip]. [automatic-clip]")
    import open_clip

    architecture, _, tag = name.partition("/")
    tags: Sequence[str] = open_clip.list_pretrained_tags_by_model(architecture)
    if not tags or (tag and tag not in tags):
        known = sorted({candidate for candidate, _ in open_clip.list_pretrained()})
        expected = f"one of its weights: {', '.join(tags)}" if tags else f"one of {', '.join(known[:6])}, ..."
        raise UserError(f"--model open_clip/{name}: expected {expected}. [automatic-clip-name]")
    preferred = (candidate for start in _PREFERRED_TAGS for candidate in tags if candidate.startswith(start))
    tag = tag or next(preferred, tags[0])
    keys = {"model.kind": "open_clip", "model.architecture": architecture, "model.weights": tag}
    return Towers(keys, f"open_clip {architecture}, weights {tag}", why, "aligned", sized=True)


def _run(path: Path, why: str) -> Towers:
    """Returns the model of a finished run; `dpfed.runs.starts.checked_start` later checks whether a run may start from it."""
    run = RunDirectory.open(path)
    model = run.config().model
    left_out = {"start", "start_digest", "digest", "weights"}
    keys = {f"model.{key}": value for key, value in model.model_dump(exclude_defaults=True).items() if key not in left_out}
    if model.kind == "open_clip":
        keys = {"model.kind": "open_clip", "model.architecture": f"{LOCAL_DIR}{(run.model).resolve()}"}
    else:
        keys |= {"model.kind": model.kind, "model.start": str(path.resolve())}
    return Towers(keys, f"the model of {path}", why, "aligned" if model.reads_text else "images", sized=model.external)


def _is_cached(repository: str) -> bool:
    """Returns whether Hugging Face's cache contains a repository's weights."""
    if importlib.util.find_spec("huggingface_hub") is None:
        return False
    with contextlib.suppress(Exception):  # a damaged cache counts as empty
        from huggingface_hub import try_to_load_from_cache

        for file in ("model.safetensors", "pytorch_model.bin"):
            cached = try_to_load_from_cache(repository, file)
            if isinstance(cached, str) and os.path.exists(cached):
                return True
    return False
