"""BatchNorm with public statistics that never change: each record is normalised by itself, in every mode."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from dpfed.errors import UserError

_BEHIND = ("drop", "act")  # what timm's BatchNormAct2d does to the output


class FixedBatchNorm(nn.Module):
    """Normalises by running statistics alone, also in training mode; scale and shift may be trained.

    The statistics belong to pretrained weights, so anyone may see them, and no record enters them. The names of all tensors
    are those of the BatchNorm layer, so weights go both ways.

    Args:
        layer: torch's, or timm's with an activation, whose tensors are taken over.

    Raises:
        UserError: for another subclass, or a layer without running statistics.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, layer: _BatchNorm) -> None:
        super().__init__()
        behind = dict(layer.named_children())
        if layer.running_mean is None or layer.running_var is None or not behind.keys() <= set(_BEHIND):
            raise UserError(
                f"{type(layer).__name__} has no running statistics, or does more than BatchNorm: it mixes records. Use another "
                "model."
            )
        self.eps = layer.eps
        self.weight, self.bias = layer.weight, layer.bias
        for name, statistic in layer.named_buffers(recurse=False):
            self.register_buffer(name, statistic)
        for name, child in behind.items():
            self.add_module(name, child)

    def forward(self, x: Tensor) -> Tensor:
        """``(n, channels, ...)`` -> the same shape."""
        x = F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, training=False, eps=self.eps)
        for name in _BEHIND:
            x = getattr(self, name)(x) if name in self._modules else x
        return x


def fix_batch_norm(net: nn.Module) -> int:
    """Replaces every BatchNorm inside a network by a `FixedBatchNorm`, in place.

    Args:
        net: with the weights, and the statistics, that it starts from.

    Returns:
        How many layers were replaced.

    Raises:
        UserError: see `FixedBatchNorm`.
    """
    layers: list[tuple[Any, str, _BatchNorm]] = [
        (parent, name, child)
        for parent in net.modules()
        for name, child in parent.named_children()
        if isinstance(child, _BatchNorm)
    ]
    for parent, name, layer in layers:
        setattr(parent, name, FixedBatchNorm(layer))
    return len(layers)
