"""Adapters in a file of their own: a few megabytes that turn public weights into the privately adapted model."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from dpfed.errors import UserError
from dpfed.files.reading import require_regular
from dpfed.models.lora import adapted, update_of
from dpfed.places import path_of

FORMAT = "dpfed-adapters-1"


def adapter_bytes(model: nn.Module) -> bytes | None:
    """The adapters of a model as a safetensors file, or ``None`` if it has none.

    Tensors ``WEIGHT.down`` ``(blocks, r, in)`` and ``WEIGHT.up`` ``(blocks, out, r)``, where WEIGHT is the name in the model
    without adapters; the header says for each weight its scale, into how many blocks of rows it falls, and which are adapted.
    """
    tensors, facts = {}, {}
    for name, update in adapted(model):
        for side in ("down", "up"):
            tensors[f"{name}.{side}"] = getattr(update, side).detach().cpu().contiguous()
        facts[name] = {"scale": update.scale, "blocks": update.blocks, "chosen": list(update.chosen)}
    header = {"format": FORMAT, "weights": json.dumps(facts)}
    return save(tensors, header | {"digest": _digest(tensors, header)}) if tensors else None


@torch.no_grad()
def apply_adapters(model: nn.Module, path: str | Path) -> None:
    """Adds the adapters of a file to the weights of a model, in place.

    Args:
        model: a stock open_clip model with the weights that were adapted.
        path: written by a run (``model/adapters.safetensors``) or by ``dpfed export --adapters``.

    Raises:
        UserError: if the file is not one of adapters, or does not fit the model; the model is then as it was.
    """
    path = path_of(path, "the file of the adapters")
    if not isinstance(model, nn.Module):
        raise UserError(f"expected a model, a torch.nn.Module, got {type(model).__name__}.")
    try:
        require_regular(Path(path))
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        facts = json.loads(header["weights"]) if header.get("format") == FORMAT else None
        if facts is not None and header.get("digest") != _digest(tensors, header):
            raise ValueError("it is damaged: its digest is not that of its content")
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise UserError(f"cannot read the adapters in {path}: {str(error).splitlines()[0]}.") from error
    if facts is None:
        raise UserError(f"{path} holds no adapters: expected a file that `dpfed export --adapters` wrote.")
    weights = dict(model.named_parameters())
    sums = []
    for name, fact in facts.items():
        up, down = tensors[f"{name}.up"], tensors[f"{name}.down"]
        weight = weights.get(name)
        if weight is None or tuple(weight.shape) != (fact["blocks"] * up.shape[1], down.shape[2]):
            found = "no such weight" if weight is None else f"one of shape {tuple(weight.shape)}"
            raise UserError(f"the adapters in {path} do not fit: they adapt '{name}', and the model has {found}.")
        update = update_of(up.to(weight), down.to(weight), fact["scale"], fact["blocks"], fact["chosen"])
        sums.append((weight, update))
    for weight, update in sums:
        weight.add_(update)


def _digest(tensors: dict[str, Tensor], header: dict[str, str]) -> str:
    """Of all that the file says, but for the digest itself."""
    rest = {name: value for name, value in header.items() if name != "digest"}
    return hashlib.sha256(save(tensors) + json.dumps(rest, sort_keys=True).encode()).hexdigest()
