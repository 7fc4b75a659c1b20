"""Convolutions: the norm from Gram matrices of the positions' patches, or the library's own weight gradient of each group."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dpfed.bounding import foreach
from dpfed.bounding.layer_rules.grouping import Grouping
from dpfed.bounding.layer_rules.standardised import StandardisedWeight
from dpfed.bounding.layer_rules.term import Materialised, Target, Term, gram_is_cheaper, gram_squares

if TYPE_CHECKING:
    from dpfed.bounding.layer_rules.recorder import Recorder


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
    """``F.conv2d`` on ``(n k, C, H, W)``."""
    if isinstance(padding, str):
        return NotImplemented
    output = func(input, weight.detach(), None if bias is None else bias.detach(), stride, padding, dilation, groups)
    geometry = Geometry(_pair(weight.shape[2:]), _pair(stride), _pair(padding), _pair(dilation), groups)
    weights, biases, x = recorder.source(weight), recorder.target(bias), input.detach()
    if not isinstance(weights, StandardisedWeight):
        weights = recorder.target(weight)

    def terms(gradient: Tensor) -> Iterator[Term]:
        if isinstance(weights, StandardisedWeight):
            kernels = geometry.weight_gradients(x.float(), gradient, weight.detach(), recorder.grouping)
            yield Materialised(weights.plain, weights.pulled_back(torch.stack(kernels)), recorder.grouping)
        elif weights is not None:
            yield ConvolutionWeight(weights, x.float(), gradient, weight.detach(), geometry, recorder.grouping)
        if biases is not None:
            yield Materialised(biases, recorder.grouping.sums(gradient.sum((2, 3), dtype=torch.float32)), recorder.grouping)

    return recorder.collect(output, x, terms)


def _pair(value: int | Sequence[int]) -> tuple[int, int]:
    first, second = (value, value) if isinstance(value, int) else value
    return first, second


@dataclass(frozen=True)
class Geometry:
    """How a two-dimensional convolution moves: pairs for height and width."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int

    def weight_gradient(self, inputs: Tensor, gradients: Tensor, weight: Tensor) -> Tensor:
        """Of the sum over all images, by the library: ``(n, C, H, W)`` and ``(n, O, H', W')`` -> the weight's shape."""
        backward = torch.ops.aten.convolution_backward
        only_weight = [False, True, False]
        moves = (list(self.stride), list(self.padding), list(self.dilation), False, [0, 0], self.groups)
        return backward(gradients, inputs, weight, None, *moves, only_weight)[1]

    def weight_gradients(self, inputs: Tensor, gradients: Tensor, weight: Tensor, grouping: Grouping) -> list[Tensor]:
        """The same of every group by itself."""
        ranges = grouping.ranges(inputs)
        return [self.weight_gradient(inputs[first:end], gradients[first:end], weight) for first, end in ranges]

    def taps(self, size: tuple[int, int], positions: tuple[int, int]) -> list[tuple[int, int]]:
        """The places of the kernel that meet the image somewhere, and not padding alone.

        Args:
            size: height and width of the input.
            positions: of the output.
        """
        rows, columns = (
            [tap for tap in range(self.kernel[axis]) if self._meets(axis, tap, size[axis], positions[axis])] for axis in (0, 1)
        )
        return [(row, column) for row in rows for column in columns]

    def _meets(self, axis: int, tap: int, size: int, positions: int) -> bool:
        first = tap * self.dilation[axis] - self.padding[axis]
        return any(0 <= first + self.stride[axis] * position < size for position in range(positions))

    def residues(self, axis: int, taps: Iterable[int]) -> dict[int, list[int]]:
        """Which pixels of a line position p sees: those of each residue by the stride, so many strides further than p."""
        seen: dict[int, list[int]] = {}
        for tap in taps:
            offset, residue = divmod(tap * self.dilation[axis] - self.padding[axis], self.stride[axis])
            seen.setdefault(residue, []).append(offset)
        return seen

    def patches(self, inputs: Tensor, positions: tuple[int, int]) -> Iterator[tuple[tuple[int, int], Tensor]]:
        """For each tap what it sees: ``(n, C, H, W)`` -> ``(n, H', W', C)``, a view."""
        vertical, horizontal = self.padding
        padded = F.pad(inputs.permute(0, 2, 3, 1), (0, 0, horizontal, horizontal, vertical, vertical))
        for tap in self.taps(_pair(inputs.shape[2:]), positions):
            spans = (
                slice(first, first + stride * (count - 1) + 1, stride)
                for first, stride, count in zip(
                    (t * d for t, d in zip(tap, self.dilation, strict=True)), self.stride, positions, strict=True
                )
            )
            yield tap, padded[:, *spans]


_MOST_TAPS = 9  # of a 3x3 kernel, not of a patch embedding
_MULTIPLICATIONS_PER_SUM = 200  # to add the taps' inner products up costs about as much time as so many multiplications each


class ConvolutionWeight:
    """The gradients of a kernel ``(O, C / groups, kH, kW)``.

    Args:
        target: the kernel.
        inputs: ``(n k, C, H, W)``.
        gradients: ``(n k, O, H', W')`` of the output.
        weight: the kernel itself.
        geometry: of the convolution.
        grouping: of the records.
    """

    def __init__(
        self, target: Target, inputs: Tensor, gradients: Tensor, weight: Tensor, geometry: Geometry, grouping: Grouping
    ) -> None:
        self.target, self._inputs, self._gradients = target, inputs, gradients
        self._weight, self._geometry, self._grouping = weight, geometry, grouping
        self._positions = _pair(gradients.shape[2:])
        self._kernels: list[Tensor] = []
        self.slack: Tensor | float = 0.0
        rows = grouping.typical * grouping.per_record(inputs) * math.prod(self._positions)
        self._taps = geometry.taps(_pair(inputs.shape[2:]), self._positions)
        entries = len(self._taps) * weight.shape[1]
        cheap = gram_is_cheaper(rows, entries, weight.shape[0], self._multiplications())
        if geometry.groups == 1 and len(self._taps) <= _MOST_TAPS and cheap:
            self.squares, self.slack = gram_squares(
                self._input_gram(), self._gradient_gram(), (entries, weight.shape[0]), grouping.exact
            )
        else:
            self._kernels = geometry.weight_gradients(inputs, gradients, weight, grouping)
            self.squares = foreach.norms(self._kernels, grouping.exact).square()
            self._inputs = self._gradients = inputs.new_empty(0)  # their memory is for the next layer

    def drop(self, groups: Tensor) -> None:
        """See `Term`."""
        if self._kernels:
            for group in groups.nonzero().flatten().tolist():
                self._kernels[group].zero_()
        else:
            rows = groups[self._grouping.of_rows(self._inputs)]
            self._inputs, self._gradients = self._inputs.clone(), self._gradients.clone()
            self._inputs[rows], self._gradients[rows] = 0.0, 0.0

    def add_weighted(self, factors: Tensor, into: Tensor) -> None:
        """See `Term`."""
        if self._kernels:
            for factor, kernel in zip(factors.tolist(), self._kernels, strict=True):
                into.add_(kernel, alpha=factor)
            return
        gradients = self._grouping.scaled(self._gradients, factors)
        if self._geometry.groups > 1 or math.prod(self._positions) > 1 and len(self._taps) > 1:
            into.add_(self._geometry.weight_gradient(self._inputs, gradients, self._weight))
            return
        by_row = gradients.permute(1, 0, 2, 3).flatten(1)
        for (row, column), seen in self._geometry.patches(self._inputs, self._positions):
            into[:, :, row, column].addmm_(by_row, seen.flatten(0, 2))

    def _multiplications(self) -> float:
        """What each of the T^2 pairs of positions costs by Gram matrices, about."""
        strides, kernel = self._geometry.stride, self._geometry.kernel
        classes = math.prod(min(stride, size) for stride, size in zip(strides, kernel, strict=True))
        pixels = math.prod(self._inputs.shape[2:]) / math.prod(strides) / math.prod(self._positions)  # of a class, over T
        return classes * (self._inputs.shape[1] * pixels**2 + _MULTIPLICATIONS_PER_SUM) + len(self._weight)

    def _input_gram(self) -> Tensor:
        """``(G, T, T)`` inner products of patches: those of pixels, added up over the taps that see them. Nothing is unfolded.

        With strides, each position sees pixels of its own residues by the stride only.
        """
        images, count = self._images(self._inputs, pad=False), self._grouping.count
        rows, columns = (self._geometry.residues(axis, {tap[axis] for tap in self._taps}) for axis in (0, 1))
        (vertical, horizontal), (height, width) = self._geometry.stride, self._positions
        total: Tensor | None = None
        for (row, down), (column, right) in itertools.product(rows.items(), columns.items()):
            pixels = images[..., row::vertical, column::horizontal, :]
            h, w, n = pixels.shape[2:]
            flat = pixels.flatten(2)
            gram = (flat.mT @ flat).view(count, h, w * n, h, w * n)
            gram = _along_diagonal(gram, down, height).view(count * height, w, n * height, w, n)
            gram = _along_diagonal(gram, right, width).view(count, height * width * n, -1)
            total = gram if total is None else total.add_(gram)
        assert total is not None, "some tap always meets the image"
        return total

    def _gradient_gram(self) -> Tensor:
        rows = self._images(self._gradients).flatten(2)
        return rows.mT @ rows

    def _images(self, images: Tensor, pad: bool = True) -> Tensor:
        """``(n k, C, H, W)`` -> ``(G, C, H, W, I)``, the I images of the longest group side by side."""
        stacked = self._grouping.stacked(images.flatten(1), pad)
        return stacked.view(self._grouping.count, -1, *images.shape[1:]).permute(0, 2, 3, 4, 1).contiguous()


def _along_diagonal(gram: Tensor, offsets: list[int], positions: int) -> Tensor:
    """Adds inner products up along the diagonal of two axes: ``(a, h, b, h, c)`` -> ``(a, positions, b, positions, c)``.

    Args:
        gram: inner products, in which two axes go over the pixels of a line.
        offsets: where on the line a position looks, from its own place on. There is nothing beyond the line's ends.
        positions: how many there are.
    """
    before, line, between, _, behind = gram.shape
    total = gram.new_zeros(before, positions, between, positions, behind)
    for offset in offsets:
        first, end = max(0, -offset), min(positions, line - offset)
        if first < end:
            total[:, first:end, :, first:end] += gram[:, first + offset : end + offset, :, first + offset : end + offset]
    return total
