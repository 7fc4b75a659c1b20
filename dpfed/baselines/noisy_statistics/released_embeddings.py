"""Noisy embeddings, released in slots: what one record's InfoNCE loss may know of all others.

Every record of a batch draws one of M slots. A slot holds the sum of its members' embeddings, both views side by side. All
slots get Gaussian noise, empty ones too, and from then on are constants: the loss of a record contrasts its own embeddings with
the other slots. `dpfed.baselines.methods.released` has the proof. Shapes: n records, two views each, M slots, D dimensions.

Also here: noisy moments of a batch: what one record's Barlow Twins loss may know of all others.

The loss (Zbontar et al. 2021) is a function of five averages over the batch: both views' means and mean squares, and the mean
of their outer products. With phi_i what record i adds to these sums, the gradient of the loss is the sum of the gradients of
<G, phi_i> over the records, where G is the loss's slope in the averages. G is taken at *noisy* averages, so each of these terms
depends on one record alone. `dpfed.baselines.methods.released` has the proof. Shapes: n records, two views each, D dimensions.
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
    """The owner's Gaussian noise on released statistics.

    Args:
        randomness: the workers' secret.
        std: standard deviation of the noise on each number.
        rank: the worker's number.
        context: public, such as the fingerprint of the plan.
    """
    return KeyedNoise(GaussianNoise(std), randomness, "statistics", context, rank, letters=64)


def bounded(embeddings: Tensor) -> Tensor:
    """Embeddings within the unit ball, last dimension; one that is not finite becomes zero.

    The release rests on it, and a model may be told not to normalise, or overflow.
    """
    norms = torch.linalg.vector_norm(embeddings, dim=-1, dtype=exact_type(embeddings.device))
    within = embeddings * clip_factors(norms, 1.0).unsqueeze(-1).to(embeddings.dtype)
    return torch.where(torch.isfinite(norms).unsqueeze(-1), within, 0.0)


class ReleasedEmbeddings:
    """Releases the embeddings of a batch in noisy slots and contrasts every record with them.

    Args:
        slots: M, public.
        batch: B, expected records in a step.
        noise: of standard deviation noise multiplier times sensitivity.
        randomness: the workers' secret, for the slots.
    """

    SENSITIVITY = math.sqrt(2)  # two unit embeddings more or less, in one slot

    def __init__(self, slots: int, batch: int, noise: KeyedNoise, randomness: Randomness) -> None:
        self._slots = slots
        self._batch = batch
        self._noise = noise
        self._randomness = randomness

    def slopes(self, embeddings: Tensor, temperature: Tensor, step: int) -> Cotangents:
        """See `dpfed.baselines.noisy_statistics.record_gradients.Statistics`."""
        slot = self.draw_slots(len(embeddings), step).to(embeddings.device)
        negatives = self.denoised(self.release(embeddings, slot, step))

        def of_record(own: Tensor, record: int) -> tuple[Tensor, Tensor]:
            divisor = temperature.detach().view(1).clone().requires_grad_()
            embeddings_slope, temperature_slope = torch.autograd.grad(
                contrast(own, negatives, slot[record : record + 1], divisor).sum(), (own, divisor)
            )
            return embeddings_slope, temperature_slope

        return Cotangents.of_each(of_record, embeddings)

    def draw_slots(self, count: int, step: int) -> Tensor:
        """A slot for each of `count` records: ``(count,)`` int64, independent and uniform.

        By place in the batch: whatever the order of the records is, they get independent slots.
        """
        places = np.arange(count, dtype=np.uint64)
        uniforms = self._randomness.per_record("slot", step, places, 1)[:, 0]
        return torch.from_numpy(np.minimum((uniforms * self._slots).astype(np.int64), self._slots - 1))

    def release(self, embeddings: Tensor, slot: Tensor, step: int) -> Tensor:
        """The noisy slots of a step, ``(M, 2, D)``."""
        # A sum that is rounded would go by who else is in it.
        members = torch.cat([bounded(own) for own in embeddings.split(1)]).to(exact_type(embeddings.device))
        member = one_hot(slot, self._slots).to(members.dtype)  # a product: index_add_ sums in no fixed order on a GPU
        return self._noise.add_(torch.einsum("nm,nvd->mvd", member, members).contiguous(), step).to(embeddings.dtype)

    def denoised(self, noisy: Tensor) -> Tensor:
        """What the slots say of single embeddings, ``(M, 2, D)``: post-processing with public numbers, free of charge.

        The mean over all slots is known well, and keeps embeddings from collapsing into one point. What is left of a slot is
        mostly noise: it is shrunk like a Gaussian of the variance that the expected B/M members of unit length have, and
        scaled to that of one embedding.
        """
        members = self._batch / self._slots
        mean = noisy.mean(dim=0)
        variance = members / noisy.shape[-1]
        shrink = variance / (variance + self._noise.noise.std**2)
        return mean / members + shrink / math.sqrt(members) * (noisy - mean)


def contrast(embeddings: Tensor, negatives: Tensor, slot: Tensor, temperatures: Tensor) -> Tensor:
    """InfoNCE in both directions, every record against the slots of others.

    Args:
        embeddings: ``(n, 2, D)``.
        negatives: ``(M, 2, D)``, constants.
        slot: ``(n,)`` each record's own slot, which is left out.
        temperatures: ``(n,)``.

    Returns:
        ``(n,)`` losses; each depends on the record's own embeddings and the negatives alone.
    """
    positive = (embeddings[:, 0] * embeddings[:, 1]).sum(dim=1) / temperatures
    losses = torch.zeros_like(positive)
    for anchor in (0, 1):
        logits = embeddings[:, anchor] @ negatives[:, 1 - anchor].T / temperatures[:, None]
        others = logits.scatter(1, slot[:, None], -torch.inf)
        losses = losses + torch.logsumexp(torch.cat([positive[:, None], others], dim=1), dim=1) - positive
    return losses


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
