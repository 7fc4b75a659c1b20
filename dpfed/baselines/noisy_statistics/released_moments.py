"""Noisy moments of a batch: what one record's Barlow Twins loss may know of all others.

The loss (Zbontar et al. 2021) is a function of five averages over the batch: both views' means and mean squares, and the mean
of their outer products. With phi_i what record i adds to these sums, the gradient of the loss is the sum of the gradients of
<G, phi_i> over the records, where G is the loss's slope in the averages. G is taken at *noisy* averages, so each of these terms
depends on one record alone. `dpfed.baselines.methods.released` has the proof. Shapes: n records, two views each, D dimensions.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import normalize

from dpfed.baselines.noisy_statistics.record_gradients import Cotangents
from dpfed.baselines.noisy_statistics.released_embeddings import bounded
from dpfed.models.parameters import exact_type
from dpfed.objectives.two_views import off_diagonal_squares
from dpfed.privacy.noise import KeyedNoise

_LEAST_VARIANCE = 0.1  # of a dimension, over the average one: noise can make a variance tiny or negative


def moments(embeddings: Tensor) -> Tensor:
    """Sums over the batch: both means, both mean squares, the outer products.

    Args:
        embeddings: ``(n, 2, D)``, each within the unit ball.

    Returns:
        ``(D + 4, D)``. One record adds a vector of norm at most sqrt(5): with a and b its embeddings,
        |a|^2 + |b|^2 + |a*a|^2 + |b*b|^2 + |a|^2 |b|^2, each at most 1.
    """
    first, second = embeddings.unbind(dim=1)
    return torch.cat([embeddings.sum(dim=0), embeddings.square().sum(dim=0), first.T @ second])


def barlow_twins(averages: Tensor, least_variance: float, redundancy: float) -> Tensor:
    """The loss as a function of the averages, see `moments`; variances are at least `least_variance`.

    `redundancy` weighs the terms off the diagonal.
    """
    mean, square, cross = averages.split([2, 2, averages.shape[1]])
    deviation = (square - mean.square()).clamp(min=least_variance).sqrt()
    correlation = (cross - torch.outer(mean[0], mean[1])) / torch.outer(deviation[0], deviation[1])
    return (1 - correlation.diagonal()).square().sum() + redundancy * off_diagonal_squares(correlation)


class ReleasedMoments:
    """Releases the noisy moments of a batch; embeddings are normalised to unit length.

    Args:
        batch: B, the public divisor of all sums.
        noise: of standard deviation noise multiplier times sensitivity.
        redundancy: weight of the terms off the diagonal.
    """

    SENSITIVITY = math.sqrt(5)

    def __init__(self, batch: int, noise: KeyedNoise, redundancy: float = 5e-3) -> None:
        self._batch, self._noise, self._redundancy = batch, noise, redundancy

    def slopes(self, embeddings: Tensor, temperature: Tensor, step: int) -> Cotangents:
        """See `dpfed.baselines.noisy_statistics.record_gradients.Statistics`; the loss has no temperature."""
        units = torch.cat([normalize(own, dim=2) for own in embeddings.split(1)])
        slope = self.slope(self.release(units, step))

        def of_record(own: Tensor, _: int) -> tuple[Tensor, Tensor]:
            (found,) = torch.autograd.grad((slope * moments(normalize(own, dim=2))).sum(), own)
            return found, own.new_zeros(1)

        return Cotangents.of_each(of_record, embeddings)

    def release(self, units: Tensor, step: int) -> Tensor:
        """The noisy sums of a step, ``(D + 4, D)``."""
        # A sum that is rounded would go by who else is in it.
        exact = torch.cat([bounded(own) for own in units.split(1)]).to(exact_type(units.device))
        return self._noise.add_(moments(exact), step).to(units.dtype)

    def slope(self, noisy: Tensor) -> Tensor:
        """G, the slope of the loss in the averages, ``(D + 4, D)``."""
        averages = (noisy / self._batch).requires_grad_()
        dimensions = noisy.shape[1]
        (slope,) = torch.autograd.grad(barlow_twins(averages, _LEAST_VARIANCE / dimensions, self._redundancy), averages)
        return slope
