"""Which number of a run's two sums is which moment, and how much of the privacy each gets.

Shapes: k dimensions; n = 2 towers, image and text, or n = 1 where the views of an image are compared with each other.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

_LEAST, _MOST, _ROUND = 128, 384, 16  # dimensions
_PER_ROOT = 8.0


def dimensions_for(records: int, noise_multiplier: float, widths: tuple[int, ...]) -> int:
    """k of a run: 8 sqrt(N / sigma), between 128 and 384, and no more than the records and the towers have.

    More dimensions keep more of the features, and let in more noise. Between half and twice this number little changes
    (docs/moments.md).

    Args:
        records: N.
        noise_multiplier: sigma; 0: none.
        widths: of the towers' features.
    """
    wanted = _PER_ROOT * math.sqrt(records / noise_multiplier) if noise_multiplier else float(_MOST)
    rounded = _ROUND * round(min(max(wanted, _LEAST), _MOST) / _ROUND)
    return min(rounded, records, *widths)


@dataclass(frozen=True)
class Moments:
    """Moments of the records' features, as averages over records.

    Attributes:
        means: ``(n, k)`` of unit features.
        cross: ``(k, k)`` of image with text; or of one view with another, symmetric.
        autos: ``(n, k, k)`` of each tower's centred features with themselves.
    """

    means: Tensor
    cross: Tensor
    autos: Tensor


@dataclass(frozen=True)
class MomentLayout:
    """The flat vector that a run releases: means in its first step, then cross-moment and auto-moments in its second.

    A record's part of each is scaled so that one uniform noise gives each its share of 1 / sigma^2: a vector of unit length
    with share w enters with length sqrt(w). A symmetric matrix enters as its upper triangle, with what is off the diagonal
    times sqrt(2): its length as a vector is then its Frobenius norm, and the noise is that of a full matrix after its two
    halves are averaged.

    Args:
        dimensions: k.
        towers: n.
        mean_share: of 1 / sigma^2, for the means together.
        cross_share: for the cross-moment; the rest is the auto-moments'.
    """

    dimensions: int
    towers: int
    mean_share: float
    cross_share: float

    @property
    def shares(self) -> tuple[float, float]:
        """Of each step."""
        return self.mean_share, 1 - self.mean_share

    @functools.cached_property
    def lengths(self) -> tuple[int, int, int]:
        """Numbers of the means, of the cross-moment, and of all auto-moments."""
        k, triangle = self.dimensions, self.dimensions * (self.dimensions + 1) // 2
        return self.towers * k, k * k if self.towers == 2 else triangle, self.towers * triangle

    @property
    def numel(self) -> int:
        """Of the vector."""
        return sum(self.lengths)

    def place(self, step: int) -> slice:
        """What a step releases."""
        first = self.lengths[0]
        return slice(0, first) if step == 0 else slice(first, self.numel)

    @property
    def scales(self) -> tuple[float, float, float]:
        """By how much a mean, a cross-moment and an auto-moment are multiplied."""
        auto = 1 - self.mean_share - self.cross_share
        return math.sqrt(self.mean_share / self.towers), math.sqrt(self.cross_share), math.sqrt(auto / self.towers)

    def encoded(self, step: int, moments: Moments) -> Tensor:
        """Moments as a step's part of the vector."""
        mean, cross, auto = self.scales
        if step == 0:
            return mean * moments.means.reshape(-1)
        across = moments.cross.reshape(-1) if self.towers == 2 else self._triangle(moments.cross)
        return torch.cat([cross * across, *(auto * self._triangle(own) for own in moments.autos)])

    def decoded(self, vector: Tensor) -> Moments:
        """The moments of a whole vector ``(numel,)``."""
        means, cross, autos = vector.split(list(self.lengths))
        k, (of_mean, of_cross, of_auto) = self.dimensions, self.scales
        across = cross.view(k, k) if self.towers == 2 else self._symmetric(cross)
        return Moments(
            means.view(self.towers, k) / of_mean,
            across / of_cross,
            torch.stack([self._symmetric(own) / of_auto for own in autos.chunk(self.towers)]),
        )

    @functools.cached_property
    def _upper(self) -> tuple[Tensor, Tensor]:
        row, column = torch.triu_indices(self.dimensions, self.dimensions)
        return row, column

    def _triangle(self, matrix: Tensor) -> Tensor:
        row, column = self._upper
        return matrix[row, column] * torch.where(row == column, 1.0, math.sqrt(2)).to(matrix)

    def _symmetric(self, triangle: Tensor) -> Tensor:
        row, column = self._upper
        values = triangle / torch.where(row == column, 1.0, math.sqrt(2)).to(triangle)
        matrix = triangle.new_zeros(self.dimensions, self.dimensions)
        matrix[row, column] = values
        matrix[column, row] = values
        return matrix
