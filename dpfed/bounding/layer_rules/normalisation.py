"""Covers GroupNorm, LayerNorm, and BatchNorm with fixed statistics.

The gradients of scale and shift are materialised, that is, computed and kept in memory. Shapes: n records, k rows for each
record.

On a GPU, one kernel computes a GroupNorm with the addition and the ReLU after it, if the model calls `norm_relu`.

This module also covers standardised weights (Qiao et al. 2019): the plain kernel is trained, and the layer uses it scaled to
mean 0 and variance 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpfed.bounding.layer_rules.grouping import Grouping, precise
from dpfed.bounding.layer_rules.indirect import StandardisedWeight
from dpfed.bounding.layer_rules.row_sums import RowSums
from dpfed.bounding.layer_rules.term import Target, Term
from dpfed.models.norm import one_by_one

if TYPE_CHECKING:
    from dpfed.bounding.layer_rules.recorder import Recorder


def group_norm(
    recorder: Recorder, _: Any, input: Tensor, num_groups: int, weight: Tensor, bias: Tensor, eps: float = 1e-5
) -> Tensor:
    """Computes and records ``F.group_norm`` on ``(n k, C, ...)``."""
    if input.dim() == 4 and recorder.grouping.has_kernels_for(input):
        return _in_one_kernel(recorder, input, num_groups, weight, bias, eps)
    x = input.to(weight.dtype).contiguous()
    rows, channels = x.shape[:2]
    output, mean, inverse = torch.native_group_norm(
        x, weight.detach(), bias.detach(), rows, channels, x[0, 0].numel(), num_groups, eps
    )
    targets = recorder.target(weight), recorder.target(bias)
    return recorder.collect(output, x, lambda g: group_norm_terms(targets, x, g, (mean, inverse), recorder.grouping))


def norm_relu(
    recorder: Recorder,
    _: Any,
    x: Tensor,
    norm: nn.GroupNorm,
    relu: nn.Module,
    shortcut: Callable[[], Tensor] | None,
    weight: Tensor,
    bias: Tensor,
) -> Tensor:
    """Computes and records `dpfed.models.norm.norm_relu`: a GroupNorm, the addition of an optional shortcut, and a ReLU."""
    with recorder:
        if not (x.dim() == 4 and recorder.grouping.has_kernels_for(x)):
            return one_by_one(x, norm, relu, shortcut)
        added = None if shortcut is None else shortcut()
    return _in_one_kernel(recorder, x, norm.num_groups, weight, bias, norm.eps, True, added)


def _in_one_kernel(
    recorder: Recorder,
    images: Tensor,
    groups: int,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    relu: bool = False,
    added: Tensor | None = None,
) -> Tensor:
    targets, grouping = (recorder.target(weight), recorder.target(bias)), recorder.grouping

    def keep(by_image: Tensor) -> None:
        pairs = zip(targets, by_image.unbind(1), strict=True)
        recorder.terms += [RowSums.of(target, rows, grouping) for target, rows in pairs if target is not None]

    recorder.rows.append(len(images))
    # Without `start`, autograd would compute no gradients for a first layer.
    start = None if images.requires_grad else torch.zeros((), requires_grad=True)
    return _GroupNorm.apply(images, added, start, weight.detach(), bias.detach(), groups, eps, relu, keep)


class _GroupNorm(torch.autograd.Function):
    """Computes GroupNorm, addition and ReLU in one kernel; the gradients of scale and shift go to the callback `keep`."""

    @staticmethod
    def forward(
        ctx: Any,
        images: Tensor,
        added: Tensor | None,
        _: Tensor | None,
        scale: Tensor,
        shift: Tensor,
        groups: int,
        eps: float,
        relu: bool,
        keep: Callable[[Tensor], None],
    ) -> Tensor:
        """Computes the output in one kernel, see `dpfed.bounding.kernels.group_norm.normalise`."""
        from dpfed.bounding.kernels import normalise

        out, means, inverses = normalise(images, scale, shift, groups, eps, relu, added)
        ctx.save_for_backward(images, out, scale, means, inverses)
        ctx.relu, ctx.added, ctx.keep = relu, None if added is None else added.dtype, keep
        return out

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Computes the gradients in one kernel, see `dpfed.bounding.kernels.group_norm.pull_back`."""
        from dpfed.bounding.kernels import pull_back

        images, out, scale, means, inverses = ctx.saved_tensors
        adds = ctx.added is not None
        of_images, of_added, by_image = pull_back(gradient[0], images, out, scale, means, inverses, ctx.relu, adds)
        ctx.keep(by_image)
        return of_images, None if of_added is None else of_added.to(ctx.added), *[None] * 7


def layer_norm(
    recorder: Recorder,
    func: Callable,
    input: Tensor,
    normalized_shape: tuple[int, ...],
    weight: Tensor,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Computes and records ``F.layer_norm`` on ``(n k, ..., *normalized_shape)``."""
    output = func(input, normalized_shape, weight.detach(), None if bias is None else bias.detach(), eps)
    targets = recorder.target(weight), recorder.target(bias)
    return recorder.collect(
        output, input, lambda g: layer_norm_terms(targets, input, g, tuple(normalized_shape), eps, recorder.grouping)
    )


def batch_norm(
    recorder: Recorder,
    func: Callable,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """Computes and records ``F.batch_norm`` of activations with running statistics, or of a kernel with its own statistics.

    Activations are ``(n k, C, ...)``. The second case is weight standardisation, as timm computes it for the kernels of
    convolutions. For all other calls the function returns ``NotImplemented``; statistics of a batch, for example, would mix
    records.
    """
    if recorder.source(input) is not None:
        bare = training and all(value is None for value in (running_mean, running_var, weight, bias))
        return _standardise(recorder, func, input, momentum, eps) if bare else NotImplemented
    if training or running_mean is None or running_var is None:
        return NotImplemented
    statistics = running_mean, running_var
    scale, shift = (None if part is None else part.detach() for part in (weight, bias))
    output = func(input, *statistics, scale, shift, training=False, eps=eps)
    scales, shifts = recorder.target(weight), recorder.target(bias)
    seen, grouping = input.detach(), recorder.grouping

    def terms(gradient: Tensor) -> list[Term]:
        parts = []
        if scales is not None:
            mean, variance = map(precise, statistics)
            normalised = F.batch_norm(precise(seen), mean, variance, training=False, eps=eps)
            parts.append((scales, gradient * normalised))
        if shifts is not None:
            parts.append((shifts, gradient))
        by_row = ((target, part.flatten(2).sum(2) if part.dim() > 2 else part) for target, part in parts)
        return [RowSums.of(target, part, grouping) for target, part in by_row]

    return recorder.collect(output, seen, terms)


def group_norm_terms(
    targets: tuple[Target | None, Target | None],
    inputs: Tensor,
    gradients: Tensor,
    statistics: tuple[Tensor, Tensor],
    grouping: Grouping,
) -> list[RowSums]:
    """Returns the terms of scale and shift of a GroupNorm.

    Args:
        targets: Destinations of the gradients of scale and shift; ``None`` if the parameter is not trained.
        inputs: Inputs ``(n k, C, ...)`` contiguous.
        gradients: Gradients of the output.
        statistics: Mean and inverse standard deviation, each ``(n k, groups)``.
        grouping: Grouping of the records.
    """
    rows, channels = inputs.shape[:2]
    mean, inverse = (statistic.reshape(1, -1) for statistic in statistics)
    # The library adds up over images. With every image's channels as channels of one image there is nothing left to add up.
    # Scales matter only for the gradient of the input, which is not computed; torch 2.11 requires them all the same.
    scales = inputs.new_ones(rows * channels)
    _, *by_image = torch.ops.aten.native_group_norm_backward(
        gradients.contiguous(), inputs, mean, inverse, scales, 1, rows * channels, inputs[0, 0].numel(), mean.shape[1],
        [False, targets[0] is not None, targets[1] is not None],
    )  # fmt: skip
    return [
        RowSums.of(target, part.view(rows, channels), grouping)
        for target, part in zip(targets, by_image, strict=True)
        if target is not None
    ]


def layer_norm_terms(
    targets: tuple[Target | None, Target | None],
    inputs: Tensor,
    gradients: Tensor,
    shape: tuple[int, ...],
    epsilon: float,
    grouping: Grouping,
) -> list[RowSums]:
    """Returns the terms of scale and shift of a LayerNorm over the last dimensions of ``(n k, ..., *shape)``."""
    parts = []
    if targets[0] is not None:
        parts.append((targets[0], gradients * F.layer_norm(precise(inputs), shape, eps=epsilon)))
    if targets[1] is not None:
        parts.append((targets[1], gradients))
    middle = tuple(range(1, inputs.dim() - len(shape)))
    return [RowSums.of(target, part.sum(middle) if middle else part, grouping) for target, part in parts]


def _standardise(recorder: Recorder, func: Callable, kernel: Tensor, momentum: float, eps: float) -> Any:
    """Computes and records ``F.batch_norm`` on a kernel ``(1, O, d)``, with which timm standardises a convolution's weights."""
    plain = recorder.target(kernel)
    if plain is None or kernel.dim() != 3 or len(kernel) > 1:
        return NotImplemented
    standardised = func(kernel.detach(), None, None, training=True, momentum=momentum, eps=eps)
    inverse = torch.rsqrt(kernel.detach().var(-1, correction=0, keepdim=True) + eps)
    return recorder.watch(standardised, StandardisedWeight(plain, standardised, inverse))
