"""Exports a run's model as ONNX: the image tower and, if the model has a text tower, also that tower."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dpfed.artifacts.model_card import loading_code
from dpfed.errors import UserError
from dpfed.models.blueprints import WEIGHTS as CLIP_WEIGHTS
from dpfed.models.blueprints import quiet
from dpfed.models.building import Tokenizer, tokenizer_for
from dpfed.models.contract import method_of
from dpfed.models.description import DESCRIPTION, FOREIGN, HEADS, TEXT
from dpfed.models.folder import load_encoder, model_config
from dpfed.models.moments import features_of
from dpfed.models.options import ModelConfig
from dpfed.models.weight_files import words

IMAGE_FILE, TEXT_FILE = "image.onnx", "text.onnx"
_LARGEST = 2**30  # most bytes of weights inside the file; more go beside it, since an ONNX file holds 2 GiB at most


class _Tower(nn.Module):
    """A module that calls some of a model's methods on one tensor, and returns all results.

    PyTorch's ONNX exporter takes a module, not methods.
    """

    def __init__(self, model: nn.Module, methods: list[Callable[[Tensor], Tensor]]) -> None:
        super().__init__()
        self.model, self._methods = model, methods

    def forward(self, inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(method(inputs) for method in self._methods)


def write_onnx(source: Path, dest: Path, description: dict[str, Any]) -> str:
    """Writes ``image.onnx`` and, for a model with a text tower, ``text.onnx``.

    ``image.onnx`` maps ``pixels`` ``(n, C, H, W)`` float32, normalised as in training, to ``image_features`` ``(n, F)`` and
    ``image_embeddings`` ``(n, D)`` of unit length. ``text.onnx`` maps ``tokens`` ``(n, L)`` int64 to ``text_embeddings``
    ``(n, D)`` of unit length. The batch size n may be any number. Files that the text tower's tokenizer needs are copied, too.

    Args:
        source: Folder of a model.
        dest: Empty folder to write into.
        description: Description of the model (`dpfed.models.description.describe`).

    Returns:
        Python code, for the user, that loads the files.

    Raises:
        UserError: If onnx or onnxscript is not installed, the model is damaged, or PyTorch cannot export it.
    """
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise UserError(
            "--format onnx needs the packages onnx and onnxscript: pip install 'dpfed[onnx]'. [export-onnx-package]"
        ) from error
    options, model = model_config(source), load_encoder(source).float()
    size = description["image_size"]
    shape = description.get("shape") or (3, size, size)
    towers = {"image_features": method_of(model, features_of(model)), "image_embeddings": method_of(model, "embed_images")}
    _export(_Tower(model, list(towers.values())), torch.zeros(2, *shape), dest / IMAGE_FILE, "pixels", list(towers))
    code = [_image_code(options, description)]
    if (tokenizer := tokenizer_for(options)) is not None:
        tokens = tokenizer(["a", "b c"])
        _export(_Tower(model, [method_of(model, "embed_text")]), tokens, dest / TEXT_FILE, "tokens", ["text_embeddings"])
        code.append(_text_code(options, tokenizer, source, dest))
    return "\n\n".join(code)


def _export(tower: _Tower, example: Tensor, file: Path, given: str, made: list[str]) -> None:
    """Exports a tower to an ONNX file, whose input is named `given`, and whose outputs are named `made`."""
    weights = sum(parameter.numel() * parameter.element_size() for parameter in tower.parameters())
    try:
        with quiet(), torch.no_grad():
            program = torch.onnx.export(
                tower.eval(),
                (example,),
                input_names=[given],
                output_names=made,
                dynamic_shapes=({0: torch.export.Dim.DYNAMIC},),
                dynamo=True,
                verbose=False,
            )
            assert program is not None
            program.save(file, external_data=weights > _LARGEST)
    except Exception as error:  # a user's own model can cause any error in PyTorch's exporter
        raise UserError(
            f"PyTorch cannot export this model to ONNX ({words(error)}). Choose another --format. [export-onnx-model]"
        ) from error


def _image_code(options: ModelConfig, description: dict[str, Any]) -> str:
    """Returns Python code that turns PIL images into features."""
    session = f'image = onnxruntime.InferenceSession("DEST/{IMAGE_FILE}")'
    run = 'image_features, image_embeddings = image.run(None, {"pixels": pixels})'
    if options.is_own:
        return f"import onnxruntime\n\n{session}\n# pixels: (n, C, H, W) float32 from your transform, without randomness\n{run}"
    before, _, transform = loading_code("timm", description).partition("transform = ")
    needed = "\n".join(line for line in before.splitlines() if line.startswith(("from ", "how")))
    pixels = "pixels = np.stack([transform(picture).numpy() for picture in pictures])  # PIL images"
    return f"import numpy as np\nimport onnxruntime\n{needed}\ntransform = {transform}\n{session}\n{pixels}\n{run}"


def _text_code(options: ModelConfig, tokenizer: Tokenizer, source: Path, dest: Path) -> str:
    """Copies the files that the tokenizer needs; returns Python code that turns captions into embeddings."""
    run = f'text = onnxruntime.InferenceSession("DEST/{TEXT_FILE}")\n(text_embeddings,) = text.run(None, {{"tokens": tokens}})'
    if options.kind == "open_clip" and options.tokenizer != "words":
        ignored = shutil.ignore_patterns(CLIP_WEIGHTS, DESCRIPTION, HEADS.file, FOREIGN)
        shutil.copytree(source, dest, dirs_exist_ok=True, ignore=ignored)
        return f'import open_clip\n\ntokens = open_clip.get_tokenizer("local-dir:DEST")(captions).numpy()\n{run}'
    if options.pretrained_text:
        shutil.copytree(source / TEXT, dest / TEXT, ignore=shutil.ignore_patterns("*.safetensors", FOREIGN))
        how = f'truncation=True, padding="max_length", max_length={tokenizer.context}, return_tensors="np"'
        tokens = f'tokens = AutoTokenizer.from_pretrained("DEST/{TEXT}")(captions, {how})["input_ids"]'
        return f"from transformers import AutoTokenizer\n\n{tokens}\n{run}"
    tokens = f"tokens = WordTokenizer({tokenizer.vocabulary}, {tokenizer.context})(captions).numpy()"
    return f"from dpfed.data.views.words import WordTokenizer\n\n{tokens}\n{run}"
