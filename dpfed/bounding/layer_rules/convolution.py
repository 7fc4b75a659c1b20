"""Covers convolutions, by outer products of patches or by torch's own weight gradient for each group.

Shapes: n records, k images for each record. A place holds one group of a pass (`dpfed.bounding.layer_rules.grouping`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dpfed.bounding.layer_rules.grouping import Gradients, Grouping, precise, precise_type
from dpfed.bounding.layer_rules.indirect import StandardisedWeight
from dpfed.bounding.layer_rules.row_sums import RowSums
from dpfed.bounding.layer_rules.term import Materialised, OuterProducts, Target, Term, gram_is_cheaper

if TYPE_CHECKING:
    from dpfed.bounding.layer_rules.recorder import Recorder

# With fewer channels, patches are copied: otherwise a GPU kernel would read the output's gradients for each entry of the
# convolution's kernel.
_FEW_CHANNELS = 16


def convolution(
    recorder: Recorder,
    func: Callable,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = (1, 1),
    padding: Any = (0, 0),
    dilation: Any = (1, 1),
    groups: int = 1,
) -> Any:
    """Computes and records ``F.conv2d`` on n k images of C channels, ``(n k, C, H, W)``."""
    if isinstance(padding, str):
        return NotImplemented
    if recorder.grouping.has_kernels_for(input):  # the memory format that the kernels read
        input = input.contiguous(memory_format=torch.channels_last)
    output = func(input, weight.detach(), None if bias is None else bias.detach(), stride, padding, dilation, groups)
    geometry = Geometry(_pair(weight.shape[2:]), _pair(stride), _pair(padding), _pair(dilation), groups)
    weights, biases, x = recorder.source(weight), recorder.target(bias), input.detach()
    if not isinstance(weights, StandardisedWeight):
        weights = recorder.target(weight)

    def seen(grouping: Grouping) -> Tensor:
        return x.to(output.dtype) if grouping.has_kernels_for(x) else precise(x)

    def terms(gradient: Tensor) -> Iterator[Term]:
        grouping = recorder.grouping
        if isinstance(weights, StandardisedWeight):
            kernels = geometry.weight_gradients(seen(grouping), gradient, weight.detach(), grouping)
            yield Materialised(weights.plain, grouping.each(kernels, weights.pulled_back), grouping)
        elif weights is not None:
            yield _of_kernel(weights, seen(grouping), gradient, weight.detach(), geometry, grouping)
        if biases is not None:
            yield RowSums.of(biases, gradient.sum((2, 3), dtype=precise_type(gradient)), grouping)

    return recorder.collect(output, x, terms, rounded=True)


def _pair(value: int | Sequence[int]) -> tuple[int, int]:
    first, second = (value, value) if isinstance(value, int) else value
    return first, second


def _of_kernel(
    target: Target, inputs: Tensor, gradients: Tensor, weight: Tensor, geometry: Geometry, grouping: Grouping
) -> Term:
    """Returns the term of a kernel ``(O, C / groups, kH, kW)``, with the kernel's gradient for each group of records.

    Args:
        target: Destination of the kernel's gradient.
        inputs: Inputs ``(n k, C, H, W)``.
        gradients: Gradients of the output, ``(n k, O, H', W')``.
        weight: The kernel itself.
        geometry: Geometry of the convolution.
        grouping: Grouping of the records.
    """
    positions = _pair(gradients.shape[2:])
    rows, columns = geometry.taps(_pair(inputs.shape[2:]), positions)
    entries = len(rows) * len(columns) * weight.shape[1]
    usual = grouping.typical * grouping.per_record(inputs) * math.prod(positions)
    if inputs.device.type == "cpu" and geometry.groups == 1 and gram_is_cheaper(usual, entries, len(weight)):
        patches = geometry.patches(inputs, rows, columns, positions)
        slopes = gradients.permute(0, 2, 3, 1).flatten(1, 2)
        met = slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1)
        return OuterProducts(target, patches, slopes, grouping, lambda whole: whole[:, :, *met].permute(0, 2, 3, 1))
    if grouping.has_kernels_for(inputs):
        return Materialised(target, geometry.of_places(inputs, gradients, grouping), grouping, lambda w: w.permute(0, 2, 3, 1))
    return Materialised(target, geometry.weight_gradients(inputs, gradients, weight, grouping), grouping)


@dataclass(frozen=True)
class Geometry:
    """Geometry of a two-dimensional convolution, as pairs for height and width, and its number of channel groups."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int

    def weight_gradients(self, inputs: Tensor, gradients: Tensor, weight: Tensor, grouping: Grouping) -> Gradients:
        """Computes each group's gradient of the kernel from inputs and output gradients.

        Args:
            inputs: Inputs ``(n k, C, H, W)``.
            gradients: Gradients of the output, ``(n k, O, H', W')``.
            weight: The kernel itself.
            grouping: Grouping of the records.
        """
        if grouping.has_kernels_for(inputs):
            return self.of_places(inputs, gradients, grouping).permute(0, 1, 4, 2, 3)
        backward, only_weight = torch.ops.aten.convolution_backward, [False, True, False]
        moves = (list(self.stride), list(self.padding), list(self.dilation), False, [0, 0], self.groups)
        sides = zip(grouping.split(gradients), grouping.split(inputs), strict=True)
        return [backward(g, x, weight, None, *moves, only_weight)[1] for g, x in sides]

    def of_places(self, inputs: Tensor, gradients: Tensor, grouping: Grouping) -> Tensor:
        """Computes the kernel's gradients for all places of a pass at once, ``(places, O, kH, kW, C / groups)``."""
        from dpfed.bounding.kernels import grouped_convolution, outer_products

        x, g = (images.permute(0, 2, 3, 1).contiguous() for images in (inputs, gradients.to(inputs.dtype)))
        if self.groups > 1:
            moves = self.kernel, self.stride, self.padding, self.dilation
            sums = grouping.sums(grouped_convolution(g, x, self.groups, *moves))
            assert isinstance(sums, Tensor)
            return sums.permute(0, 1, 3, 4, 2)
        offsets = grouping.offsets * grouping.per_record(inputs)
        if x.shape[3] < _FEW_CHANNELS and math.prod(self.kernel) > 1 and self.dilation == (1, 1):
            seen = *self.kernel, x.shape[3]
            return outer_products(g, self._aligned(x), offsets)[:, :, 0, 0, : math.prod(seen)].unflatten(2, seen)
        return outer_products(g, x, offsets, self.kernel, self.stride, self.padding, self.dilation)

    def _aligned(self, images: Tensor) -> Tensor:
        """Copies patches of images, ``(n k, H, W, C)`` -> ``(n k, H', W', N)``.

        N is the number of a patch's entries, ``kH kW C``, rounded up to a multiple of 16; zeros fill the rest.
        """
        vertical, horizontal = self.padding
        padded = F.pad(images, (0, 0, horizontal, horizontal, vertical, vertical))
        views = (
            padded.unfold(1, self.kernel[0], self.stride[0]).unfold(2, self.kernel[1], self.stride[1]).permute(0, 1, 2, 4, 5, 3)
        )
        padded = images.new_zeros(*views.shape[:3], 16 * math.ceil(math.prod(views.shape[3:]) / 16))
        padded[..., : math.prod(views.shape[3:])].unflatten(3, views.shape[3:]).copy_(views)
        return padded

    def taps(self, size: tuple[int, int], positions: tuple[int, int]) -> tuple[range, range]:
        """Returns the rows and the columns of the kernel that ever lie over the image.

        The other rows and columns lie over padding at every position, and so have a gradient of 0.

        Args:
            size: Height and width of the input.
            positions: Height and width of the output.
        """
        rows, columns = (
            [tap for tap in range(self.kernel[axis]) if self._meets(axis, tap, size[axis], positions[axis])] for axis in (0, 1)
        )
        return range(rows[0], rows[-1] + 1), range(columns[0], columns[-1] + 1)

    def _meets(self, axis: int, tap: int, size: int, positions: int) -> bool:
        first = tap * self.dilation[axis] - self.padding[axis]
        return any(0 <= first + self.stride[axis] * position < size for position in range(positions))

    def patches(self, inputs: Tensor, rows: range, columns: range, positions: tuple[int, int]) -> Tensor:
        """Copies the patches at rows and columns of the kernel: ``(n k, C, H, W)`` to ``(n k, H' W', rows * columns * C)``."""
        vertical, horizontal = self.padding
        padded = F.pad(inputs.permute(0, 2, 3, 1), (0, 0, horizontal, horizontal, vertical, vertical))

        def along(axis: int, tap: int) -> slice:
            first = tap * self.dilation[axis]
            return slice(first, first + self.stride[axis] * (positions[axis] - 1) + 1, self.stride[axis])

        seen = [padded[:, along(0, row), along(1, column)] for row in rows for column in columns]
        return torch.stack(seen, dim=3).flatten(3).flatten(1, 2)
