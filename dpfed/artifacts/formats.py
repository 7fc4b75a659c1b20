"""Exports a run's model to the files of another library, with a text that shows how to load them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load, save_file
from torch import Tensor

from dpfed.artifacts.model_card import loading_code
from dpfed.errors import UserError, nearest
from dpfed.files.atomic import write_atomically
from dpfed.models.description import DESCRIPTION, FOREIGN, HEADS, MOMENTS, TEXT, TIMM_CONFIG, WEIGHTS, describe, described_parts
from dpfed.models.options import ModelConfig
from dpfed.schema.wording import either

HOW = "HOW_TO_LOAD.md"
_HEADS = (
    f"\nThe run did not train the towers. It learnt the heads in `{HEADS.file}`, which transform the towers' features. "
    "Four lines of Python apply the heads; docs/moments.md of dpfed shows these lines.\n"
)
_LAYERS = "The heads read the features of several layers, side by side. The same page shows how to compute these features.\n"
_TRANSFORMERS = {
    "image": (
        'from transformers import AutoModel\n\nmodel = AutoModel.from_pretrained("DEST").eval()  # needs timm\n'
        "features = model(pixel_values=pixels).pooler_output"
    ),
    "text": (
        "from transformers import AutoModel, AutoTokenizer\n\n"
        'text = AutoModel.from_pretrained("DEST/text").eval()\ntokenizer = AutoTokenizer.from_pretrained("DEST/text")'
    ),
}


def formats_of(model: ModelConfig) -> list[str]:
    """Returns the names of the formats that can hold a model."""
    in_timm = model.timm is not None and "/" not in model.timm
    fits = {"timm": in_timm, "open_clip": model.kind == "open_clip", "transformers": in_timm or bool(model.pretrained_text)}
    ours = model.timm is None and not model.is_own and bool(model.pretrained_text)  # needs files beside its weights
    fits["onnx"] = True
    fits["state-dict"] = model.kind != "open_clip" and not ours
    return [name for name, holds in fits.items() if holds]


def write_format(name: str, source: Path, dest: Path) -> None:
    """Writes a model in one format, and ``HOW_TO_LOAD.md``, which shows how to load it.

    Args:
        name: Name of the format: ``"timm"``, ``"open_clip"``, ``"transformers"``, ``"onnx"`` or ``"state-dict"``.
        source: Folder of a model.
        dest: Empty folder to write into.

    Raises:
        UserError: If the model is missing or damaged, the name is unknown, or the format cannot hold this model; then the
            message names formats that can hold it. For ``"onnx"`` also if a package is missing, or PyTorch cannot export the
            model.
        OSError: If a file cannot be copied or written.
    """
    description = describe(source)
    model = ModelConfig.model_validate(description["model"])
    if name not in _WRITERS:
        raise UserError(f"--format {name}: {nearest(name, list(_WRITERS))} [export-format-unknown]")
    if name not in (can := formats_of(model)):
        what = model.architecture if model.kind == "open_clip" else model.image
        raise UserError(f"--format {name} cannot hold {what}: take {either(can)}. [export-format-unfit]")
    code, heads = _WRITERS[name](source, dest, description), MOMENTS in description and name != "onnx"
    if heads:
        shutil.copy(source / HEADS.file, dest)
    write_atomically(dest / HOW, f"```python\n{code}\n```\n{_said_of_heads(description) if heads else ''}")


def _said_of_heads(description: dict[str, Any]) -> str:
    """Returns what ``HOW_TO_LOAD.md`` says about the heads of private moments."""
    return _HEADS + _LAYERS * bool(description[MOMENTS].get("several_layers"))


def _timm(source: Path, dest: Path, description: dict[str, Any]) -> str:
    """Copies the files that timm reads; returns Python code that loads them."""
    for file in (TIMM_CONFIG, WEIGHTS):
        shutil.copy(source / file, dest)
    return loading_code("timm", description).replace("hf-hub:OWNER/NAME", "local-dir:DEST")


def _open_clip(source: Path, dest: Path, description: dict[str, Any]) -> str:
    """Copies the files that open_clip reads; returns Python code that loads them."""
    shutil.copytree(source, dest, dirs_exist_ok=True, ignore=shutil.ignore_patterns(DESCRIPTION, HEADS.file, FOREIGN))
    return loading_code("open_clip", description).replace("hf-hub:OWNER/NAME", "local-dir:DEST")


def _transformers(source: Path, dest: Path, description: dict[str, Any]) -> str:
    """Copies those towers (image, text or both) that transformers can read; returns Python code that loads them."""
    code = []
    if (source / TIMM_CONFIG).is_file():
        _timm(source, dest, description)
        config = json.loads((source / TIMM_CONFIG).read_text(encoding="utf-8"))
        cfg = config["pretrained_cfg"]
        if cfg["fixed_input_size"]:  # timm reads the size from pretrained_cfg, and transformers from model_args
            config["model_args"] = {"img_size": cfg["input_size"][1]}
        write_atomically(dest / TIMM_CONFIG, json.dumps(config, indent=2) + "\n")
        code.append(_TRANSFORMERS["image"])
        code.append("# pixels, as in training: " + loading_code("timm", description).partition("transform = ")[2])
    if (source / TEXT).is_dir():
        shutil.copytree(source / TEXT, dest / TEXT, ignore=shutil.ignore_patterns(FOREIGN))
        code.append(_TRANSFORMERS["text"])
    return "\n\n".join(code)


def _onnx(source: Path, dest: Path, description: dict[str, Any]) -> str:
    from dpfed.artifacts.onnx_files import write_onnx

    return write_onnx(source, dest, description)


def _state_dict(source: Path, dest: Path, description: dict[str, Any]) -> str:
    """Writes all weights under their names in the model; returns Python code that builds the model."""
    model = ModelConfig.model_validate(description["model"])
    tensors: dict[str, Tensor] = {}
    for part in described_parts(model, description):
        if part is not HEADS:
            loaded = load(part.read(source, description))
            tensors |= {f"{part.prefix}{name}": tensor for name, tensor in loaded.items()}
    save_file(tensors, dest / WEIGHTS)
    prefix = "image_encoder." if model.reads_text else "encoder."
    stripped = f'{{name.removeprefix("{prefix}"): value for name, value in tensors.items() if name.startswith("{prefix}")}}'
    reading = f'from safetensors.torch import load_file\n\ntensors = load_file("DEST/{WEIGHTS}")\n'
    if model.is_own:
        module, _, name = model.image.partition(":")
        build = f"from {module} import {name.partition('.')[0]}\n{reading}"
        build += f"encoder = {name}(**{model.options!r})  # or your arguments\n"
        return f"{build}encoder.load_state_dict({stripped})"
    if model.timm is not None:
        tower = stripped.replace(prefix, f"{prefix}timm.")
        library, _, name = model.timm.rpartition("/")
        size = description["image_size"]
        stock = json.loads((source / TIMM_CONFIG).read_text(encoding="utf-8"))
        fixed = f", img_size={size}" if not library and stock["pretrained_cfg"]["fixed_input_size"] else ""
        made = f"torchvision.models.{name}()" if library else f"timm.create_model({name!r}, num_classes=0{fixed})"
        strict = ", strict=False" if library else ""
        return f"import {library or 'timm'}\n{reading}encoder = {made}\nencoder.load_state_dict({tower}{strict})"
    encoder = (
        "from dpfed.models.building import build_model\nfrom dpfed.models.options import ModelConfig\n"
        f"from dpfed.objectives import ObjectiveConfig\n{reading}"
        f"options = ModelConfig.model_validate({description['model']!r})\n"
        f"objective = ObjectiveConfig.model_validate({description['objective']!r})\n"
        f"model = build_model(options, objective, size={description['image_size']}, load_weights=False)\n"
    )
    return f"{encoder}model.load_state_dict(tensors)"


_WRITERS: dict[str, Callable[[Path, Path, dict[str, Any]], str]] = {
    "timm": _timm,
    "open_clip": _open_clip,
    "transformers": _transformers,
    "onnx": _onnx,
    "state-dict": _state_dict,
}
