"""From noisy moments to linear heads, in closed form: all of it is post-processing, and all of its numbers are public.

With linear heads, the contrast of all pairs of records (the spectral contrastive loss, HaoChen et al. 2021; regularised
canonical correlation, Hotelling 1936) depends on the records through their moments alone: the best score of an image x and a
text y is ``x' A^-1 M B^-1 y``. The ridge follows from the number of records and from the size of the noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dpfed.models.moment_layout import MomentLayout, Moments

# The ridge: of an average eigenvalue where there is no noise (aligned towers have more to lose), and over the noise.
_RIDGE = 0.15
_RIDGE_OF_ALIGNED = 1.0
_RIDGE_OF_NOISE = 6.0
_HIDDEN = 10.0
_POWER = 0.5  # of the singular values: their score is worth trusting, and not all of it
FEWEST_IMAGES = 1000  # of images alone: views of fewer teach nothing, even without noise (docs/results.md)
_LEAST_ALIKE, _ALIKE = 0.05, 5.0
_DEVIATIONS = 3.0  # by which a noisy mean must be longer than noise alone


@dataclass(frozen=True)
class MomentNoise:
    """How noisy released moments are.

    Args:
        records: N.
        std: of the noise on each number of the released sum, whose sensitivity is 1.
        fewest: of one tower's features: with fewer records, heads leave features as they are.
    """

    records: int
    std: float
    fewest: int = 0

    def leaves_public(self, towers: int) -> bool:
        """Whether heads leave features as they are: of images alone, where these are too few."""
        return towers == 1 and self.records < self.fewest

    def ridge(self, dimensions: int, aligned: bool) -> float:
        """What is added to the auto-moments, of averages: 0.15 / k + 6 s, where s = sigma sqrt(k) / N is the size of the noise.

        Of aligned towers 1 / k + 6 s (1 + s k / 10): where noise hides all, their heads are exactly the identity.
        """
        noise = self.std * math.sqrt(dimensions) / self.records
        if aligned:
            return _RIDGE_OF_ALIGNED / dimensions + _RIDGE_OF_NOISE * noise * (1 + noise * dimensions / _HIDDEN)
        return _RIDGE / dimensions + _RIDGE_OF_NOISE * noise

    def likeness(self, cross: Tensor, scale: float) -> float:
        """How much the ridge counts as pairs, from 0.05 to 1: five times the mean product of a pair's features, which may be
        as large as twice its noise makes it."""
        known = cross.trace().item() + 2 * self.std / self.records / scale * math.sqrt(len(cross))
        return min(1.0, max(_LEAST_ALIKE, _ALIKE * known))

    def shrunk(self, mean: Tensor, scale: float) -> Tensor:
        """A noisy mean ``(k,)``, shortened by what noise has added to its length; zero if it could be noise alone.

        James and Stein (1961), with an edge a few standard deviations above the length of the noise.
        """
        k = len(mean)
        of_noise = (self.std / self.records / scale) ** 2 * k * (1 + _DEVIATIONS * math.sqrt(2 / k))
        length = mean.square().sum().item()
        return mean * max(0.0, 1 - of_noise / length) if length else mean


def centres(layout: MomentLayout, noise: MomentNoise, moments: Moments) -> Tensor:
    """What is subtracted from unit features, ``(n, k)`` float64, of the released means."""
    return torch.stack([noise.shrunk(mean.double(), layout.scales[0]) for mean in moments.means])


def heads(layout: MomentLayout, noise: MomentNoise, moments: Moments, aligned: bool) -> tuple[Tensor, Tensor]:
    """The two linear heads ``(k, k)`` float64: centred features times their head are embeddings, before unit length.

    Args:
        layout: of the release.
        noise: of the release.
        moments: released, as averages over N records.
        aligned: whether features of a pair are alike before anything is learnt. Then the ridge counts as records whose image
            and text agree: where nothing is known, the heads leave features as they are.
    """
    k = layout.dimensions
    ridge, eye = noise.ridge(k, aligned), torch.eye(k, dtype=torch.float64)
    cross = moments.cross.double().cpu()
    if noise.leaves_public(layout.towers):
        return eye, eye
    if aligned:
        cross = cross + noise.likeness(cross, layout.scales[1]) * ridge * eye
    elif not bool(cross.any()):  # nothing was released yet
        return eye, eye
    inverses = []
    for auto in moments.autos:  # noisy; true eigenvalues are not negative
        values, vectors = torch.linalg.eigh(auto.double().cpu())
        inverses.append((vectors / (values.clamp(min=0) + ridge)) @ vectors.T)
    if layout.towers == 1:  # symmetric: what two views have in common is never negative
        values, vectors = torch.linalg.eigh(inverses[0] @ cross @ inverses[0])
        head = vectors * values.clamp(min=0).div(values[-1]).pow(_POWER / 2)
        return head, head
    left, values, right = torch.linalg.svd(inverses[0] @ cross @ inverses[-1])
    scale = values.clamp(min=0).div(values[0]).pow(_POWER / 2)
    return left * scale, right.T * scale


def canonical_heads(
    layout: MomentLayout, noise: MomentNoise, moments: Moments, aligned: bool, components: int
) -> tuple[Tensor, Tensor]:
    """Heads onto the most correlated directions alone, ``(k, components)`` float64 (regularised CCA, Hotelling 1936).

    Both towers' features are whitened by their noisy auto-moments, and the directions are those of the largest singular values
    of what is left of the cross-moment. Each side is scaled by a root of these, so that a pair's score is the best that so many
    directions give.

    Args:
        layout: see `heads`.
        noise: see `heads`.
        moments: see `heads`.
        aligned: see `heads`.
        components: how many directions.
    """
    k = layout.dimensions
    ridge, cross = noise.ridge(k, aligned), moments.cross.double().cpu()
    if aligned:
        cross = cross + noise.likeness(cross, layout.scales[1]) * ridge * torch.eye(k, dtype=torch.float64)
    whitening = []
    for auto in moments.autos:
        values, vectors = torch.linalg.eigh(auto.double().cpu())
        whitening.append((vectors / (values.clamp(min=0) + ridge).sqrt()) @ vectors.T)
    if layout.towers == 1:
        values, vectors = torch.linalg.eigh(whitening[0] @ cross @ whitening[0])
        head = whitening[0] @ (vectors * values.clamp(min=0).sqrt()).flip(1)[:, :components]
        return head, head
    left, values, right = torch.linalg.svd(whitening[0] @ cross @ whitening[1])
    scale = values.sqrt()[:components]
    return whitening[0] @ (left[:, :components] * scale), whitening[1] @ (right.T[:, :components] * scale)
