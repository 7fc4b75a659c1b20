"""Noisy embeddings, released in slots: what one record's InfoNCE loss may know of all others.

Every record of a batch draws one of M slots. A slot holds the sum of its members' embeddings, both views side by side. All
slots get Gaussian noise, empty ones too, and from then on are constants: the loss of a record contrasts its own embeddings with
the other slots. `dpfed.baselines.methods.released` has the proof. Shapes: n records, two views each, M slots, D dimensions.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from dpfed.baselines.noisy_statistics.record_gradients import Cotangents
from dpfed.bounding.bounded_sum import clip_factors
from dpfed.models.parameters import exact_type
from dpfed.privacy.noise import GaussianNoise, KeyedNoise
from dpfed.privacy.randomness import Randomness


def release_noise(randomness: Randomness, std: float, owner: int, context: str) -> KeyedNoise:
    """The owner's Gaussian noise on released statistics.

    Args:
        randomness: the owner's secret.
        std: standard deviation of the noise on each number.
        owner: the owner's number.
        context: public, such as the fingerprint of the plan.
    """
    return KeyedNoise(GaussianNoise(std), randomness, "statistics", context, owner, letters=64)


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
        randomness: the owner's secret, for the slots.
    """

    SENSITIVITY = math.sqrt(2)  # two unit embeddings more or less, in one slot

    def __init__(self, slots: int, batch: int, noise: KeyedNoise, randomness: Randomness) -> None:
        self._slots, self._batch, self._noise, self._randomness = slots, batch, noise, randomness

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
