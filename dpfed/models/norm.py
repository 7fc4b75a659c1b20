"""Normalisation of image encoders, and of their weights, under group clipping.

GroupNorm and LayerNorm stay within one image. A layer that mixes the images of a forward pass declares this by an attribute
``mixes_one_group = True``; every forward pass must then hold exactly one clipped group. The layer's attribute ``anchors`` is
the number of public rows from which it takes its statistics in evaluation mode (`dpfed.baselines.anchored_batch_norm`).

The module also has `FixedBatchNorm`: BatchNorm with public statistics that never change. It normalises each record separately,
in training and in evaluation mode.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import handle_torch_function, has_torch_function

from dpfed.errors import UserError

Norm = Callable[[int], nn.Module]  # makes a layer for a number of channels


def group_norm(channels: int, groups: int = 32) -> nn.GroupNorm:
    """Makes a GroupNorm (Wu and He 2018) for any number of channels.

    Args:
        channels: Channels of the input.
        groups: Wanted number of channel groups. The layer has fewer if this number does not divide `channels`, or if a group
            would be a single channel: that would normalise every channel's contrast away.
    """
    limit = max(1, min(groups, channels // 2))
    return nn.GroupNorm(max(count for count in range(1, limit + 1) if channels % count == 0), channels)


def with_group_norm(model: nn.Module) -> nn.Module:
    """Replaces every BatchNorm inside a model by a GroupNorm of as many channels, in place.

    The scale and the shift of each layer stay; its running statistics go, so pretrained weights need training again. The new
    layers are trainable, even where the old ones were frozen.

    Args:
        model: Any model.

    Returns:
        The model; if the model is itself a BatchNorm, the new layer.

    Raises:
        UserError: If a lazy BatchNorm does not know its channels yet. The model is then as it was.
    """
    if isinstance(model, _BatchNorm):
        return _as_group_norm(model)
    places = [(path, layer) for path, layer in model.named_modules(remove_duplicate=False) if isinstance(layer, _BatchNorm)]
    made = {layer: _as_group_norm(layer) for _, layer in places}
    for path, layer in places:
        parent, _, name = path.rpartition(".")
        setattr(model.get_submodule(parent), name, made[layer])
    return model


def _as_group_norm(layer: _BatchNorm) -> nn.Module:
    if not layer.num_features:
        raise UserError(
            f"{type(layer).__name__} does not know its channels yet: run the model once before with_group_norm. [norm-lazy]"
        )
    new = group_norm(layer.num_features)
    if layer.running_mean is not None:
        new.to(layer.running_mean)
    if layer.affine:
        new.to(layer.weight).load_state_dict({"weight": layer.weight.detach(), "bias": layer.bias.detach()})
    behind = [getattr(layer, name) for name in _BEHIND if isinstance(getattr(layer, name, None), nn.Module)]
    return nn.Sequential(new, *behind) if behind else new


def layer_norm(channels: int) -> nn.GroupNorm:
    """Makes a LayerNorm (Ba et al. 2016) over all channels and positions of an image: a GroupNorm with one group."""
    return nn.GroupNorm(1, channels)


def norm_relu(
    x: Tensor, norm: nn.Module, relu: nn.Module, shortcut: Callable[[], Tensor] | None = None, **read: Tensor
) -> Tensor:
    """Computes ``relu(norm(x) + shortcut())``, in one call that a `TorchFunctionMode` may compute in its own way.

    Args:
        x: Feature maps, ``(n, channels, H, W)``.
        norm: Normalisation of the feature maps.
        relu: Activation after the sum.
        shortcut: Function that returns the addend, in the shape of `x`; ``None``: nothing is added.
        **read: Parameters of `norm`, passed only to show a `TorchFunctionMode` which parameters the call reads.
    """
    if isinstance(norm, nn.GroupNorm) and has_torch_function((x,)):
        return handle_torch_function(norm_relu, (x,), x, norm, relu, shortcut, weight=norm.weight, bias=norm.bias)
    return one_by_one(x, norm, relu, shortcut)


def one_by_one(x: Tensor, norm: nn.Module, relu: nn.Module, shortcut: Callable[[], Tensor] | None = None) -> Tensor:
    """Computes the same as `norm_relu`, module by module."""
    y = norm(x)
    if shortcut is not None:
        y += shortcut()
    return relu(y)


def mixes_records(layer: nn.Module) -> bool:
    """Returns whether any layer mixes the images of a forward pass (``mixes_one_group``); a pass must then hold one group."""
    return any(getattr(module, "mixes_one_group", False) for module in layer.modules())


def refuse_mixing(model: nn.Module, what: str) -> None:
    """Refuses a model that normalises records together, for methods and engines that pass records of several groups at once.

    In a pass over several groups, such a model would let one record change the gradients of other groups, which are clipped
    separately. The padding would be enough to do so: how much padding a group gets depends on the largest group in the pass.

    Args:
        model: Any module.
        what: The setting that is incompatible with such a model, such as ``bounding.engine = 'layerwise'``.

    Raises:
        UserError: If a layer of the model mixes records (`mixes_records`).
    """
    if mixes_records(model):
        raise UserError(
            f"BatchNorm over a group (model.normalisation = 'batch') needs bounding.method = 'group' and bounding.engine = "
            f"'loop', whose passes hold one group; {what} is not compatible: change this, or use GroupNorm. [norm-needs-loop]"
        )


class StandardisedWeight(nn.Module):
    """A parametrisation that gives each output's weights mean 0 and variance 1 (Qiao et al. 2019, equations 6 and 7).

    The plain weight is trained, clipped and noised; its standardisation is post-processing.
    """

    def forward(self, weight: Tensor) -> Tensor:
        """Returns the standardised weight, in the shape ``(out, ...)`` of the given one."""
        variance, mean = torch.var_mean(weight, tuple(range(1, weight.dim())), correction=0, keepdim=True)
        return (weight - mean) * torch.rsqrt(variance + 1e-5)


_BEHIND = ("drop", "act")  # modules of timm's BatchNormAct2d that follow the normalisation


class FixedBatchNorm(nn.Module):
    """A BatchNorm that normalises only by running statistics, also in training mode; scale and shift may be trained.

    The statistics belong to pretrained weights, so they are public, and no record enters them. All tensors have the names that
    they have in the BatchNorm layer, so each layer can load the other's weights.

    Args:
        layer: BatchNorm of torch, or of timm with an activation. The new layer takes over its tensors and its activation.

    Raises:
        UserError: For a BatchNorm that contains layers other than timm's dropout and activation, or has no running statistics.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, layer: _BatchNorm) -> None:
        super().__init__()
        behind = dict(layer.named_children())
        if layer.running_mean is None or layer.running_var is None:
            raise UserError(
                f"{type(layer).__name__} has no running statistics, so it can only normalise by those of a batch, which mixes "
                "records. Use another model. [norm-no-statistics]"
            )
        if further := sorted(behind.keys() - set(_BEHIND)):
            raise UserError(
                f"{type(layer).__name__} holds layers of its own ({', '.join(further)}), so a BatchNorm with fixed statistics "
                "cannot stand in for it. Use another model. [norm-layers-inside]"
            )
        self.eps = layer.eps
        self.weight, self.bias = layer.weight, layer.bias
        for name, statistic in layer.named_buffers(recurse=False):
            self.register_buffer(name, statistic)
        for name, child in behind.items():
            self.add_module(name, child)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the normalised input, in its shape ``(n, channels, ...)``."""
        x = F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, training=False, eps=self.eps)
        for name in _BEHIND:
            x = getattr(self, name)(x) if name in self._modules else x
        return x


def fix_batch_norm(net: nn.Module) -> int:
    """Replaces every BatchNorm inside a network by a `FixedBatchNorm`, in place.

    Args:
        net: Network with the weights and statistics that it starts from.

    Returns:
        The number of replaced layers.

    Raises:
        UserError: If a BatchNorm has no running statistics, or other layers inside (see `FixedBatchNorm`).
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
