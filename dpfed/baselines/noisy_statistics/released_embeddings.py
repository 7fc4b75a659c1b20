"""Noisy statistics of a batch: embeddings in slots for InfoNCE, moments for Barlow Twins.

A record's loss uses the other records only through these statistics; `dpfed.baselines.methods.released` has the proof. Shapes:
n records, two views each, M slots, D dimensions.

**Slots.** Every record of a batch draws one of M slots. A slot holds the sum of its members' embeddings, both views side by
side. Gaussian noise is added to all slots, also to empty ones. From then on slots are constants: the loss of a record
contrasts its embeddings with the slots that it did not draw.

**Moments.** The loss (Zbontar et al. 2021) is a function of five averages over the batch: both views' means and mean squares,
and the mean of their outer products. With phi_i the vector of record i that enters these averages, the gradient of the loss is
the mean of the gradients of <G, phi_i> over the records, where G is the derivative of the loss with respect to the averages. G
is evaluated at *noisy* averages, so each <G, phi_i> depends on one record alone.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from dpfed.baselines.noisy_statistics.record_gradients import Cotangents
from dpfed.bounding.clipping import clip_factors
from dpfed.models.parameters import exact_type
from dpfed.objectives.barlow_twins import off_diagonal_squares
from dpfed.privacy.noise import GaussianNoise, KeyedNoise
from dpfed.privacy.randomness import Randomness


def release_noise(randomness: Randomness, std: float, rank: int, context: str) -> KeyedNoise:
    """Returns the worker's Gaussian noise on released statistics.

    Args:
        randomness: Secret randomness of the workers.
        std: Standard deviation of the noise on each number.
        rank: Number of the worker, from 0.
        context: Public context, such as the fingerprint of the plan.
    """
    return KeyedNoise(GaussianNoise(std), randomness, "statistics", context, rank, letters=64)


def bounded(embeddings: Tensor) -> Tensor:
    """Clips embeddings to the unit ball, along the last dimension; an embedding that is not finite becomes zero.

    The sensitivity of the release assumes this bound, and a model alone does not ensure it: a model may be configured not to
    normalise its embeddings, or may overflow.
    """
    norms = torch.linalg.vector_norm(embeddings, dim=-1, dtype=exact_type(embeddings.device))
    within = embeddings * clip_factors(norms, 1.0).unsqueeze(-1).to(embeddings.dtype)
    return torch.where(torch.isfinite(norms).unsqueeze(-1), within, 0.0)


class ReleasedEmbeddings:
    """Releases the embeddings of a batch in noisy slots and contrasts every record with them.

    Args:
        slots: M, the public number of slots.
        batch: B, the expected number of records in a step.
        noise: Noise whose standard deviation is the release's noise multiplier times `SENSITIVITY`.
        randomness: Secret randomness of the workers, for the slots.
    """

    SENSITIVITY = math.sqrt(2)  # a record adds two embeddings of at most unit length to one slot

    def __init__(self, slots: int, batch: int, noise: KeyedNoise, randomness: Randomness) -> None:
        self._slots = slots
        self._batch = batch
        self._noise = noise
        self._randomness = randomness

    def slopes(self, embeddings: Tensor, temperature: Tensor, step: int) -> Cotangents:
        """Releases the slots, and returns the cotangents; see `record_gradients.Statistics`."""
        slot = self.draw_slots(len(embeddings), step).to(embeddings.device)
        negatives = self.denoised(self.release(embeddings, slot, step))

        def of_record(pair: Tensor, record: int) -> tuple[Tensor, Tensor]:
            divisor = temperature.detach().view(1).clone().requires_grad_()
            embeddings_slope, temperature_slope = torch.autograd.grad(
                contrast(pair, negatives, slot[record : record + 1], divisor).sum(), (pair, divisor)
            )
            return embeddings_slope, temperature_slope

        return Cotangents.of_each(of_record, embeddings)

    def draw_slots(self, count: int, step: int) -> Tensor:
        """Draws a slot for each of `count` records: ``(count,)`` int64, independent and uniform.

        The draws belong to positions in the batch, so the records get independent slots in whatever order they come.
        """
        places = np.arange(count, dtype=np.uint64)
        uniforms = self._randomness.per_record("slot", step, places, 1)[:, 0]
        return torch.from_numpy(np.minimum((uniforms * self._slots).astype(np.int64), self._slots - 1))

    def release(self, embeddings: Tensor, slot: Tensor, step: int) -> Tensor:
        """Adds up the embeddings of each slot, clipped to the unit ball, and adds the noise of a step.

        Args:
            embeddings: Embeddings ``(n, 2, D)``.
            slot: Slot of each record, ``(n,)`` int64.
            step: Training step, a part of the noise's key.

        Returns:
            The noisy slots, ``(M, 2, D)``.
        """
        # In a rounded sum, a record's contribution would depend on the others.
        members = torch.cat([bounded(pair) for pair in embeddings.split(1)]).to(exact_type(embeddings.device))
        member = one_hot(slot, self._slots).to(members.dtype)  # a product: index_add_ sums in no fixed order on a GPU
        return self._noise.add_(torch.einsum("nm,nvd->mvd", member, members).contiguous(), step).to(embeddings.dtype)

    def denoised(self, noisy: Tensor) -> Tensor:
        """Estimates a single embedding from each of the noisy slots ``(M, 2, D)``. Post-processing costs no privacy.

        The mean over all slots is accurate, and keeps embeddings from collapsing into one point. A slot's difference from the
        mean is mostly noise. So this difference is shrunk, by the best factor for a Gaussian with the variance of B/M
        embeddings of unit length, and then scaled to the variance of one embedding.
        """
        members = self._batch / self._slots
        mean = noisy.mean(dim=0)
        variance = members / noisy.shape[-1]
        shrink = variance / (variance + self._noise.noise.std**2)
        return mean / members + shrink / math.sqrt(members) * (noisy - mean)


def contrast(embeddings: Tensor, negatives: Tensor, slot: Tensor, temperatures: Tensor) -> Tensor:
    """Computes InfoNCE in both directions. Each record drew one slot; the estimates of all other slots are its negatives.

    Args:
        embeddings: Embeddings ``(n, 2, D)``.
        negatives: Estimates of the slots, ``(M, 2, D)``, without gradient.
        slot: Slot that each record drew, ``(n,)``; its loss leaves this slot out.
        temperatures: Temperatures ``(n,)``.

    Returns:
        Losses ``(n,)``; each depends only on the record's own embeddings and the negatives.
    """
    positive = (embeddings[:, 0] * embeddings[:, 1]).sum(dim=1) / temperatures
    losses = torch.zeros_like(positive)
    for anchor in (0, 1):
        logits = embeddings[:, anchor] @ negatives[:, 1 - anchor].T / temperatures[:, None]
        others = logits.scatter(1, slot[:, None], -torch.inf)
        losses = losses + torch.logsumexp(torch.cat([positive[:, None], others], dim=1), dim=1) - positive
    return losses


_LEAST_VARIANCE = 0.1  # least variance of a dimension, relative to the average: noise can make it tiny or negative


def moments(embeddings: Tensor) -> Tensor:
    """Computes the sums over the batch of both views' embeddings, of their squares, and of the views' outer products.

    Args:
        embeddings: Embeddings ``(n, 2, D)``, each within the unit ball.

    Returns:
        The sums ``(D + 4, D)``. One record adds a vector of norm at most sqrt(5): with a and b its embeddings, the squared
        norm is |a|^2 + |b|^2 + |a*a|^2 + |b*b|^2 + |a|^2 |b|^2, each term at most 1.
    """
    first, second = embeddings.unbind(dim=1)
    return torch.cat([embeddings.sum(dim=0), embeddings.square().sum(dim=0), first.T @ second])


def barlow_twins(averages: Tensor, least_variance: float, redundancy: float) -> Tensor:
    """Computes the Barlow Twins loss from the averages of `moments`.

    Args:
        averages: Averages ``(D + 4, D)``.
        least_variance: Lower bound of the variances.
        redundancy: Weight of the squared correlations between different dimensions.
    """
    mean, square, cross = averages.split([2, 2, averages.shape[1]])
    deviation = (square - mean.square()).clamp(min=least_variance).sqrt()
    correlation = (cross - torch.outer(mean[0], mean[1])) / torch.outer(deviation[0], deviation[1])
    return (1 - correlation.diagonal()).square().sum() + redundancy * off_diagonal_squares(correlation)


class ReleasedMoments:
    """Releases the noisy moments of a batch, after normalising its embeddings to unit length.

    Args:
        batch: B, the public divisor of all sums.
        noise: Noise whose standard deviation is the release's noise multiplier times `SENSITIVITY`.
        redundancy: Weight of the squared correlations between different dimensions.
    """

    SENSITIVITY = math.sqrt(5)

    def __init__(self, batch: int, noise: KeyedNoise, redundancy: float = 5e-3) -> None:
        self._batch, self._noise, self._redundancy = batch, noise, redundancy

    def slopes(self, embeddings: Tensor, temperature: Tensor, step: int) -> Cotangents:
        """Releases the moments, and returns the cotangents; see `record_gradients.Statistics`. Ignores `temperature`."""
        units = torch.cat([normalize(pair, dim=2) for pair in embeddings.split(1)])
        slope = self.slope(self.release(units, step))

        def of_record(pair: Tensor, _: int) -> tuple[Tensor, Tensor]:
            (pair_slope,) = torch.autograd.grad((slope * moments(normalize(pair, dim=2))).sum(), pair)
            return pair_slope, pair.new_zeros(1)

        return Cotangents.of_each(of_record, embeddings)

    def release(self, units: Tensor, step: int) -> Tensor:
        """Computes the sums of `moments` over the records, and adds the noise of a step.

        Args:
            units: Embeddings of unit length, ``(n, 2, D)``.
            step: Training step, a part of the noise's key.

        Returns:
            The noisy sums, ``(D + 4, D)``.
        """
        # In a rounded sum, a record's contribution would depend on the others.
        exact = torch.cat([bounded(pair) for pair in units.split(1)]).to(exact_type(units.device))
        return self._noise.add_(moments(exact), step).to(units.dtype)

    def slope(self, noisy: Tensor) -> Tensor:
        """Computes G, the derivative of the loss with respect to the averages, from noisy sums; both are ``(D + 4, D)``."""
        averages = (noisy / self._batch).requires_grad_()
        dimensions = noisy.shape[1]
        (slope,) = torch.autograd.grad(barlow_twins(averages, _LEAST_VARIANCE / dimensions, self._redundancy), averages)
        return slope
