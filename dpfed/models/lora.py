"""Low-rank adapters (LoRA, Hu et al. 2022) as parametrisations of frozen weights, packed attention weights included.

open_clip packs the projections of queries, keys and values into one ``in_proj_weight`` (timm: into one ``qkv`` layer), so
adapters that look for layers called "q" and "v" find none. A parametrisation reaches any block of rows of any weight, leaves
the forward pass of the model unchanged, and merges back into a plain weight.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from dpfed.errors import UserError

BLOCKS = ("q", "k", "v")  # the order of the rows in a packed weight
_SEPARATE = {"q_proj": "q", "query": "q", "k_proj": "k", "key": "k", "v_proj": "v", "value": "v"}
_OUT = ("out_proj", "proj")  # names of an attention module's output projection
_MLP = ("c_fc", "c_proj", "fc1", "fc2")


class LowRankUpdate(nn.Module):
    """Adds ``scale * up @ down`` to chosen blocks of rows of a frozen weight.

    `up` starts at zero, so an adapted model starts as the model that it adapts.

    Args:
        weight: Weight to adapt, ``(blocks * out, in)``.
        blocks: Number of equal blocks of rows in the weight: 3 for packed attention weights, else 1.
        chosen: Numbers of the adapted blocks, from 0, ascending.
        rank: r, rank of the update.
        scale: Factor alpha / r.
    """

    def __init__(self, weight: Tensor, blocks: int, chosen: Sequence[int], rank: int, scale: float) -> None:
        super().__init__()
        out, inner = weight.shape[0] // blocks, weight.shape[1]
        self.blocks, self.chosen, self.scale = blocks, tuple(chosen), scale
        self.down = nn.Parameter(torch.empty(len(chosen), rank, inner, dtype=weight.dtype, device=weight.device))
        self.up = nn.Parameter(torch.zeros(len(chosen), out, rank, dtype=weight.dtype, device=weight.device))
        bound = 1 / math.sqrt(inner)
        nn.init.uniform_(self.down, -bound, bound)

    def forward(self, weight: Tensor) -> Tensor:
        """Returns the weight plus the update, in the shape of the weight."""
        return weight + update_of(self.up, self.down, self.scale, self.blocks, self.chosen)


def update_of(up: Tensor, down: Tensor, scale: float, blocks: int, chosen: Sequence[int]) -> Tensor:
    """Computes the update that adapters add to a weight, ``(blocks * out, in)``.

    Args:
        up: Factors ``(len(chosen), out, r)``.
        down: Factors ``(len(chosen), r, in)``.
        scale: Factor alpha / r.
        blocks: Number of equal blocks of rows in the weight.
        chosen: Numbers of the adapted blocks, from 0, ascending.
    """
    products = ((up * scale) @ down).unbind()
    if blocks == 1:
        return products[0]
    parts = [torch.zeros_like(products[0])] * blocks
    for block, product in zip(chosen, products, strict=True):
        parts[block] = product
    return torch.cat(parts)


@dataclass(frozen=True)
class _Target:
    module: nn.Module
    name: str  # name of the weight in the module
    blocks: int
    chosen: tuple[int, ...]


def add_adapters(tower: nn.Module, name: str, layers: Sequence[str], rank: int, scale: float) -> None:
    """Adds adapters to the layers of a tower; the adapters' weights are drawn from torch's global generator.

    Args:
        tower: Tower with attention layers; its other parameters do not change.
        name: Name of the tower for messages, ``image`` or ``text``.
        layers: Kinds of layers to adapt: any of ``q``, ``k``, ``v``, ``out`` (the projection after the attention) and ``mlp``.
        rank: r, rank of the updates.
        scale: Factor alpha / r.

    Raises:
        UserError: If the tower lacks any of these kinds of layers, or `rank` is larger than a weight allows.
    """
    targets, present = _targets(tower, set(layers))
    if missing := [layer for layer in layers if layer not in present]:
        raise UserError(
            f"adaptation.{name}_layers: the {name} tower has no layer {', '.join(missing)} that can be adapted; leave it out, "
            f"or train the tower in full (adaptation.{name} = 'full'). [lora-no-layer]"
        )
    for target in targets:
        weight = getattr(target.module, target.name)
        most = min(weight.shape[0] // target.blocks, weight.shape[1])
        if rank > most:
            raise UserError(
                f"adaptation.rank = {rank} is too large: a weight of the {name} tower allows at most {most}. Lower the rank. "
                "[lora-rank]"
            )
        update = LowRankUpdate(weight, target.blocks, target.chosen, rank, scale)
        parametrize.register_parametrization(target.module, target.name, update)


def _targets(tower: nn.Module, layers: set[str]) -> tuple[list[_Target], set[str]]:
    """Returns the weights to adapt, and which of the kinds of layers in `layers` the tower has."""
    targets: list[_Target] = []
    present: set[str] = set()
    chosen = tuple(number for number, block in enumerate(BLOCKS) if block in layers)
    modules = dict(tower.named_modules())
    for path, module in modules.items():
        parent, _, leaf = path.rpartition(".")
        kind: str | None
        if getattr(module, "in_proj_weight", None) is not None:
            name, kind = "in_proj_weight", "packed"
        elif not isinstance(module, nn.Linear):
            continue
        elif leaf == "qkv":
            name, kind = "weight", "packed"
        else:
            name, kind = "weight", _SEPARATE.get(leaf) or _kind(leaf, modules.get(parent))
        if kind == "packed" and chosen:
            targets.append(_Target(module, name, len(BLOCKS), chosen))
            present |= layers & set(BLOCKS)
        elif kind is not None and kind in layers:
            targets.append(_Target(module, name, 1, (0,)))
            present.add(kind)
    return targets, present


def _kind(leaf: str, parent: nn.Module | None) -> str | None:
    if leaf in _MLP:
        return "mlp"
    attention = any(hasattr(parent, name) for name in ("in_proj_weight", "qkv", *_SEPARATE))
    return "out" if leaf in _OUT and attention else None


def adapted(model: nn.Module) -> Iterator[tuple[str, LowRankUpdate]]:
    """Yields, for each adapted weight, its name in the model without adapters, and the module that computes its update."""
    for path, module in model.named_modules():
        if parametrize.is_parametrized(module):
            for name, updates in list(module.parametrizations.items()):
                if isinstance(updates[0], LowRankUpdate):
                    yield f"{path}.{name}" if path else name, updates[0]


def merged_state(model: nn.Module) -> dict[str, Tensor]:
    """Returns the model's state with its adapters merged in, under the names without adapters; the model does not change."""
    state = dict(model.state_dict())
    for name, _ in adapted(model):
        path, _, leaf = name.rpartition(".")
        module = model.get_submodule(path)
        prefix = f"{path}." if path else ""
        for key in [key for key in state if key.startswith(f"{prefix}parametrizations.{leaf}.")]:
            del state[key]
        state[name] = getattr(module, leaf).detach()
    return state
