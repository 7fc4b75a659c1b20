"""Layout of the moments in a run's two sums, and the fraction of 1 / sigma^2 that each moment gets.

Shapes: k dimensions; n = 2 towers, image and text, or n = 1 tower where the views of an image are compared with each other.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

_ROUND = 16  # k is rounded to a multiple of this number
# k = factor (N / sigma)^power, smallest and largest k: for a random basis, and for the first components of public features.
_RANDOM = (8.0, 0.5, 128, 384)
_PUBLIC = (0.22, 1.0, 32, 256)
_WEIGHT_BITS = 8


def dimensions_for(records: int, noise_multiplier: float, widths: tuple[int, ...], public: bool = False) -> int:
    """Chooses k, the number of dimensions of a run.

    With a random basis k is 8 sqrt(N / sigma), between 128 and 384; with a public basis it is 0.22 N / sigma, between 32 and
    256. k is rounded to a multiple of 16, and is never more than N or a width. More dimensions keep more of the features, and
    let in more noise. Results hardly change between half and twice this number (docs/moments.md).

    Args:
        records: N, number of records.
        noise_multiplier: Noise multiplier sigma; 0: no noise, so k is the largest number that these limits permit.
        widths: Widths of the towers' features, or numbers of rows of their public bases; empty: k has no such limit.
        public: Whether the basis is made of public features.
    """
    factor, power, least, most = _PUBLIC if public else _RANDOM
    wanted = factor * (records / noise_multiplier) ** power if noise_multiplier else float(most)
    rounded = _ROUND * round(min(max(wanted, least), most) / _ROUND)
    return min(rounded, records, *widths)


@dataclass(frozen=True)
class Moments:
    """Moments of the records' features, as averages over records.

    Attributes:
        means: Means of features of unit length, ``(n, k)``.
        cross: Cross-moment of centred features, ``(k, k)``: of images with texts or, with one tower, of different views of an
            image. With one tower it is symmetric.
        autos: Auto-moments, ``(n, k, k)``: of each tower's centred features with themselves.
    """

    means: Tensor
    cross: Tensor
    autos: Tensor


@dataclass(frozen=True)
class MomentLayout:
    """Layout of the flat vector that a run releases: means in its first step, cross-moment and auto-moments in its second.

    All numbers of the vector get noise of the same size. So that each moment gets its fraction of 1 / sigma^2, a record's
    contributions are scaled: a unit vector enters with norm sqrt(w), where w is the fraction of its moment. A symmetric
    matrix enters as its upper triangle, with the numbers off the diagonal times sqrt(2). The L2 norm of this triangle as a
    vector is the Frobenius norm of the matrix, and the noise is that of a full matrix whose two halves are averaged.

    Sums are exact (`dpfed.privacy.sum_grid`): with g = `bits`, the numbers in a feature vector of norm 1 are multiples of
    2^-g, and their products are multiples of 2^-2g. The factors (`weights`) that scale them are rounded down to whole numbers.

    Args:
        dimensions: k, number of dimensions.
        towers: n, number of towers.
        mean_share: Fraction of 1 / sigma^2 for all means together.
        cross_share: Fraction of 1 / sigma^2 for the cross-moment; the auto-moments get the rest.
        radius: R, largest L2 norm of a record's contributions to both sums together, in steps of the grid of exact sums.
        views: V, number of views of an image, where views are compared with each other (n = 1).
        length: C, the same largest norm as a real number; a grid step is C / R.
    """

    dimensions: int
    towers: int
    mean_share: float
    cross_share: float
    radius: float = 2.0**46
    views: int = 2
    length: float = 1.0

    @property
    def shares(self) -> tuple[float, float]:
        """Fraction of 1 / sigma^2 that each step gets, as in `Mechanism.shares`."""
        return self.mean_share, 1 - self.mean_share

    @functools.cached_property
    def lengths(self) -> tuple[int, int, int]:
        """Count of numbers in the means, in the cross-moment, and in all auto-moments."""
        k, triangle = self.dimensions, self.dimensions * (self.dimensions + 1) // 2
        return self.towers * k, k * k if self.towers == 2 else triangle, self.towers * triangle

    @property
    def numel(self) -> int:
        """Count of numbers in the vector."""
        return sum(self.lengths)

    def place(self, step: int) -> slice:
        """Returns the slice of the vector that a step (0 or 1) releases."""
        first = self.lengths[0]
        return slice(0, first) if step == 0 else slice(first, self.numel)

    @property
    def bits(self) -> int:
        """Exponent g: features are rounded to multiples of 2^-g. It leaves about 8 bits for the `weights` of step 1."""
        return math.floor((math.log2(self.radius / self._pairs) - _WEIGHT_BITS) / 2)

    @property
    def _pairs(self) -> int:
        """How many times as large a record's part of the cross-moment can be as its part of an auto-moment (Frobenius norms).

        With one tower, the cross-moment has the products of different views; with two towers, those of image and text. The
        sizes are those before multiplication by `weights`.
        """
        return 1 if self.towers == 2 else self.views - 1

    @functools.cached_property
    def weights(self) -> tuple[Tensor, Tensor]:
        """Whole numbers by which `whole` multiplies the sums of step 0 and of step 1, int64.

        In a triangle, the factor of the diagonal and that of the other numbers are rounded down separately.
        """
        auto = 1 - self.mean_share - self.cross_share
        of_means = math.floor(self.radius * math.sqrt(self.mean_share / self.towers) / 2.0**self.bits)
        finest = self.radius / 4.0**self.bits
        row, column = self._upper

        def triangle(scale: float) -> Tensor:
            on, off = math.floor(finest * scale), math.floor(finest * scale * math.sqrt(2))
            return torch.where(row == column, on, off)

        cross = math.sqrt(self.cross_share) / self._pairs
        across = triangle(cross) if self.towers == 1 else torch.full((self.lengths[1],), math.floor(finest * cross))
        autos = [triangle(math.sqrt(auto / self.towers))] * self.towers
        return torch.full((self.lengths[0],), of_means), torch.cat([across, *autos])

    @functools.cached_property
    def _factors(self) -> tuple[Tensor, Tensor]:
        """Factors by which the numbers of `Moments` are multiplied, float64: one tensor for step 0, and one for step 1."""
        step = self.length / self.radius
        means, moments = (weights.double() for weights in self.weights)
        steps = torch.full_like(moments, 4.0**self.bits)
        steps[: self.lengths[1]] *= self._pairs
        return means * (2.0**self.bits * step), moments * steps * step

    @property
    def scales(self) -> tuple[float, float, float]:
        """Factors of means, cross-moment and auto-moments in the vector; sqrt(2) times larger off a triangle's diagonal."""
        means, moments = self._factors
        return means[0].item(), moments[0].item(), moments[self.lengths[1]].item()

    def whole(self, step: int, *sums: Tensor) -> Tensor:
        """Multiplies a step's sums by their factors (`weights`); returns the step's slice (`place`), int64, in grid steps.

        Args:
            step: Number of the step, 0 or 1.
            sums: Sums as whole numbers, float64. Step 0: the means ``(n, k)``, in units of 2^-g. Step 1: the products of an
                image with a text, or of different views, ``(k, k)``, and those of each tower's vectors with themselves,
                ``(n, k, k)``, in units of 2^-2g.
        """
        flat = self._flat(step, *sums)
        return flat.long() * self.weights[step].to(flat.device)

    def encoded(self, step: int, moments: Moments) -> Tensor:
        """Returns the slice of the vector that a step (0 or 1) would release for given moments without noise."""
        flat = self._flat(step, moments.means) if step == 0 else self._flat(step, moments.cross, moments.autos)
        return flat * self._factors[step].to(flat)

    def decoded(self, vector: Tensor) -> Moments:
        """Returns the moments in a vector of both steps, ``(numel,)``."""
        vector = vector / torch.cat(self._factors).to(vector)
        means, cross, autos = vector.split(list(self.lengths))
        k = self.dimensions
        return Moments(
            means.view(self.towers, k),
            cross.view(k, k) if self.towers == 2 else self._symmetric(cross),
            torch.stack([self._symmetric(triangle) for triangle in autos.chunk(self.towers)]),
        )

    def _flat(self, step: int, *sums: Tensor) -> Tensor:
        if step == 0:
            return sums[0].reshape(-1)
        cross, autos = sums
        across = cross.reshape(-1) if self.towers == 2 else cross[self._upper]
        return torch.cat([across, *(auto[self._upper] for auto in autos)])

    @functools.cached_property
    def _upper(self) -> tuple[Tensor, Tensor]:
        row, column = torch.triu_indices(self.dimensions, self.dimensions)
        return row, column

    def _symmetric(self, triangle: Tensor) -> Tensor:
        row, column = self._upper
        matrix = triangle.new_zeros(self.dimensions, self.dimensions)
        matrix[row, column] = triangle
        matrix[column, row] = triangle
        return matrix
