"""Which number of a run's two sums is which moment, and how much of the privacy each gets.

Shapes: k dimensions; n = 2 towers, image and text, or n = 1 where the views of an image are compared with each other.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

_ROUND = 16  # dimensions are a multiple of it
# k = factor (N / sigma)^power, at least and at most: of a random basis, and of the first components of public features.
_RANDOM = (8.0, 0.5, 128, 384)
_PUBLIC = (0.22, 1.0, 32, 256)
_WEIGHT_BITS = 8


def dimensions_for(records: int, noise_multiplier: float, widths: tuple[int, ...], public: bool = False) -> int:
    """k of a run: 8 sqrt(N / sigma), between 128 and 384, and no more than the records and the towers have; with a public basis
    0.22 N / sigma, between 32 and 256.

    More dimensions keep more of the features, and let in more noise. Between half and twice this number little changes
    (docs/moments.md).

    Args:
        records: N.
        noise_multiplier: sigma; 0: none.
        widths: of the towers' features, or of their bases.
        public: whether the basis is made of public features.
    """
    factor, power, least, most = _PUBLIC if public else _RANDOM
    wanted = factor * (records / noise_multiplier) ** power if noise_multiplier else float(most)
    rounded = _ROUND * round(min(max(wanted, least), most) / _ROUND)
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

    Sums are exact (`dpfed.privacy.sum_grid`): unit vectors have whole numbers of steps 2^-g, products of them of steps 2^-2g.
    What scales them is a whole number, too, rounded down.

    Args:
        dimensions: k.
        towers: n.
        mean_share: of 1 / sigma^2, for the means together.
        cross_share: for the cross-moment; the rest is the auto-moments'.
        radius: R, steps of the longest part of both sums together.
        views: V, of an image, where these are compared with each other (n = 1).
        length: C, of the longest part.
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
    def bits(self) -> int:
        """g, so many that the factors of the moments have about 8 binary digits."""
        return math.floor((math.log2(self.radius / self._pairs) - _WEIGHT_BITS) / 2)

    @property
    def _pairs(self) -> int:
        """How long the sum of products of a record's different views may be, over that of one view with itself."""
        return 1 if self.towers == 2 else self.views - 1

    @functools.cached_property
    def weights(self) -> tuple[Tensor, Tensor]:
        """By step, the factor of each number, int64: what is on a diagonal, and all else, is rounded down by itself."""
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
        """By step, what each number of `Moments` is multiplied by, float64."""
        step = self.length / self.radius
        means, moments = (weights.double() for weights in self.weights)
        steps = torch.full_like(moments, 4.0**self.bits)
        steps[: self.lengths[1]] *= self._pairs
        return means * (2.0**self.bits * step), moments * steps * step

    @property
    def scales(self) -> tuple[float, float, float]:
        """By how much a mean, a cross-moment and an auto-moment are multiplied; off a triangle's diagonal by sqrt(2) more."""
        means, moments = self._factors
        return means[0].item(), moments[0].item(), moments[self.lengths[1]].item()

    def whole(self, step: int, *sums: Tensor) -> Tensor:
        """A step's part of the vector, int64, in grid steps.

        Args:
            step: 0 or 1.
            sums: float64 whole numbers: the means ``(n, k)`` in 2^-g; or the products of an image with a text, or of different
                views, ``(k, k)``, and those of each tower's vectors with themselves ``(n, k, k)``, in 2^-2g.
        """
        flat = self._flat(step, *sums)
        return flat.long() * self.weights[step].to(flat.device)

    def encoded(self, step: int, moments: Moments) -> Tensor:
        """Moments as a step's part of the vector."""
        flat = self._flat(step, moments.means) if step == 0 else self._flat(step, moments.cross, moments.autos)
        return flat * self._factors[step].to(flat)

    def decoded(self, vector: Tensor) -> Moments:
        """The moments of a whole vector ``(numel,)``."""
        vector = vector / torch.cat(self._factors).to(vector)
        means, cross, autos = vector.split(list(self.lengths))
        k = self.dimensions
        return Moments(
            means.view(self.towers, k),
            cross.view(k, k) if self.towers == 2 else self._symmetric(cross),
            torch.stack([self._symmetric(own) for own in autos.chunk(self.towers)]),
        )

    def _flat(self, step: int, *sums: Tensor) -> Tensor:
        if step == 0:
            return sums[0].reshape(-1)
        cross, autos = sums
        across = cross.reshape(-1) if self.towers == 2 else cross[self._upper]
        return torch.cat([across, *(own[self._upper] for own in autos)])

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
