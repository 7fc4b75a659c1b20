"""Normalisation of image encoders, and of their weights, under group clipping.

GroupNorm and LayerNorm stay within one image. BatchNorm mixes images, so the records that it mixes must be clipped as one: here
its statistics come from the records of ONE group and from M public anchor images (`AnchoredEncoder`). A record then touches the
clipped gradient of its own group and of no other, and the sensitivity of the sum stays 2C (docs/methods.md). Nothing is
averaged over steps; at inference the statistics come from the anchors alone, so an image is embedded by itself.

The idea of public images in the batch is Davody et al.'s (2020). Their own version is not sound: they take statistics over the
whole private batch but clip per example, and one example more changes the statistics, and so the clipped gradient, of all.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.overrides import handle_torch_function, has_torch_function

from dpfed.errors import UserError

Norm = Callable[[int], nn.Module]  # from the number of channels to a layer


def group_norm(channels: int, groups: int = 32) -> nn.GroupNorm:
    """GroupNorm (Wu and He 2018) for any number of channels.

    Args:
        channels: channels of the input.
        groups: channel groups wanted; fewer where they would not divide `channels` or would hold a single channel, which
            would normalise every channel's contrast away.
    """
    limit = max(1, min(groups, channels // 2))
    return nn.GroupNorm(max(count for count in range(1, limit + 1) if channels % count == 0), channels)


def layer_norm(channels: int) -> nn.GroupNorm:
    """LayerNorm (Ba et al. 2016) of feature maps: over all channels and positions of an image, a GroupNorm with one group."""
    return nn.GroupNorm(1, channels)


def norm_relu(
    x: Tensor, norm: nn.Module, relu: nn.Module, shortcut: Callable[[], Tensor] | None = None, **read: Tensor
) -> Tensor:
    """``relu(norm(x) + shortcut())``, in one call that a `TorchFunctionMode` may compute in its own way.

    Args:
        x: ``(n, channels, H, W)``.
        norm: of such images.
        relu: behind it.
        shortcut: gives what is added, in the shape of `x`.
        **read: the parameters that the call reads, for such a mode.
    """
    if isinstance(norm, nn.GroupNorm) and has_torch_function((x,)):
        return handle_torch_function(norm_relu, (x,), x, norm, relu, shortcut, weight=norm.weight, bias=norm.bias)
    return one_by_one(x, norm, relu, shortcut)


def one_by_one(x: Tensor, norm: nn.Module, relu: nn.Module, shortcut: Callable[[], Tensor] | None = None) -> Tensor:
    """As `norm_relu`, module by module."""
    y = norm(x)
    if shortcut is not None:
        y += shortcut()
    return relu(y)


class AnchoredBatchNorm(nn.Module):
    """BatchNorm (Ioffe and Szegedy 2015) without running statistics; the last rows of its input are public anchors.

    In training mode, statistics come from all rows: a group's and the anchors'. In evaluation mode they come from the anchors
    alone. It works inside an `AnchoredEncoder`, which appends the anchors.

    Args:
        channels: channels of the input.
        eps: added to the variance.

    Attributes:
        anchors: how many of the last rows are anchors; set by the `AnchoredEncoder`, 0 outside of one.
    """

    def __init__(self, channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.eps, self.anchors = eps, 0

    def forward(self, x: Tensor) -> Tensor:
        """``(n + M, channels, H, W)`` -> the same shape, normalised per channel."""
        if self.training:
            return F.batch_norm(x, None, None, self.weight, self.bias, training=True, eps=self.eps)
        anchors = x[len(x) - self.anchors :].to(self.weight.dtype)
        # Detached, as running statistics are: torch has no derivative in them.
        variance, mean = torch.var_mean(anchors.detach(), (0, 2, 3), correction=0)
        return F.batch_norm(x, mean, variance, self.weight, self.bias, training=False, eps=self.eps)


class AnchoredEncoder(nn.Module):
    """Runs an encoder on images together with M public anchors, for the sake of its `AnchoredBatchNorm` layers.

    In training mode all images of a call are normalised together, so a call must hold the views of one group and no others. The
    anchors are a buffer: they are saved with the weights, and a loaded model gives the same features.

    Args:
        encoder: normalised images ``(n, 3, H, W)`` -> features ``(n, F)``, with an attribute ``features_dim``.
        anchors: uint8 ``(M, 3, H, W)``, M >= 2; anyone may see them.
    """

    anchors: Tensor
    features_dim: int

    def __init__(self, encoder: nn.Module, anchors: Tensor) -> None:
        super().__init__()
        self.encoder, self.features_dim = encoder, getattr(encoder, "features_dim")  # noqa: B009
        self.register_buffer("anchors", anchors)
        for layer in encoder.modules():
            if isinstance(layer, AnchoredBatchNorm):
                layer.anchors = len(anchors)

    def forward(self, images: Tensor) -> Tensor:
        """Normalised images ``(n, 3, H, W)`` -> ``(n, features_dim)``."""
        anchors = self.anchors.to(images.dtype) / 127.5 - 1  # as the default `Preprocessing`, which all our encoders expect
        return self.encoder(torch.cat([images, anchors]))[: len(images)]


def mixes_records(model: nn.Module) -> bool:
    """Whether the records of one forward pass are normalised together, so that each pass must hold one clipped group."""
    return any(isinstance(layer, AnchoredBatchNorm) for layer in model.modules())


def refuse_mixing(model: nn.Module, what: str) -> None:
    """Refuses a model that normalises records together, for methods and engines that pass records of several groups at once.

    There one record would change the contributions of groups, or records, that are clipped apart from it. Padding is enough for
    that: how much of it a group gets depends on the largest group beside it.

    Args:
        model: any module.
        what: the setting that does not go with it, such as ``bounding.engine = 'layerwise'``.

    Raises:
        UserError: if `mixes_records`.
    """
    if mixes_records(model):
        raise UserError(
            f"BatchNorm over a group (model.normalisation = 'batch') needs bounding.method = 'group' and bounding.engine = "
            f"'loop', where each pass holds one clipped group; {what} does not go with it: change that, or use GroupNorm."
        )


class StandardisedWeight(nn.Module):
    """A parametrisation: every output's weights get mean 0 and variance 1 (Qiao et al. 2019, equations 6 and 7).

    What is trained, clipped and noised is the plain weight; standardising it is post-processing.
    """

    def forward(self, weight: Tensor) -> Tensor:
        """``(out, ...)`` -> the same shape."""
        variance, mean = torch.var_mean(weight, tuple(range(1, weight.dim())), correction=0, keepdim=True)
        return (weight - mean) * torch.rsqrt(variance + 1e-5)


def standardise_weights(encoder: nn.Module) -> None:
    """Standardises the weights of all convolutions of an encoder from now on, in place."""
    for layer in list(encoder.modules()):
        if isinstance(layer, nn.Conv2d):
            parametrize.register_parametrization(layer, "weight", StandardisedWeight())
