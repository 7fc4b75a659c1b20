"""Computes linear heads from released noisy moments, in closed form. This is post-processing, and its results are public.

With linear heads, the contrast of all pairs of records (the spectral contrastive loss, HaoChen et al. 2021; regularised
canonical correlation, Hotelling 1936) depends on the records through their moments alone: the best score of an image x and a
text y is ``x' A^-1 M B^-1 y``, with the cross-moment M and the auto-moments A and B. A ridge is added to A and B. This ridge
follows from the number of records and from the size of the noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dpfed.models.moment_layout import MomentLayout, Moments

# Factors of `MomentNoise.ridge`. Aligned towers get a larger ridge, because their features are already alike.
_RIDGE = 0.15  # ridge without noise, relative to the average eigenvalue 1 / k
_RIDGE_OF_ALIGNED = 1.0  # the same for aligned towers
_RIDGE_OF_NOISE = 6.0  # ridge for the noise, relative to the size s of the noise
_HIDDEN = 10.0  # value of s k at which the ridge for the noise doubles, for aligned towers
_POWER = 0.5  # exponent of the singular values in a pair's score: a score is trusted, but only in part
# In a run on images alone, heads that are learnt from fewer images do not help, even without noise (docs/results.md).
FEWEST_IMAGES = 1000
_LEAST_ALIKE, _ALIKE = 0.05, 5.0  # see `MomentNoise.likeness`
_DEVIATIONS = 3.0  # standard deviations by which a noisy mean's squared norm must exceed that of noise alone


@dataclass(frozen=True)
class MomentNoise:
    """Size of the noise on released moments, and the quantities that follow from it.

    Args:
        records: N, number of records.
        std: sigma, standard deviation of the noise on each number of the released sum, whose sensitivity is 1.
        fewest: Smallest N for which an image-only run learns heads; with fewer records, heads leave features unchanged.
    """

    records: int
    std: float
    fewest: int = 0

    def leaves_public(self, towers: int) -> bool:
        """Returns whether heads leave features unchanged: in image-only runs (one tower) with fewer than `fewest` records."""
        return towers == 1 and self.records < self.fewest

    def ridge(self, dimensions: int, aligned: bool) -> float:
        """Computes the ridge that is added to averaged auto-moments.

        For k dimensions, the ridge is 0.15 / k + 6 s, where s = sigma sqrt(k) / N is the size of the noise. For aligned towers
        it is 1 / k + 6 s (1 + s k / 10): if the noise hides everything, heads hardly change the scores of pairs.
        """
        noise = self.std * math.sqrt(dimensions) / self.records
        if aligned:
            return _RIDGE_OF_ALIGNED / dimensions + _RIDGE_OF_NOISE * noise * (1 + noise * dimensions / _HIDDEN)
        return _RIDGE / dimensions + _RIDGE_OF_NOISE * noise

    def likeness(self, cross: Tensor, scale: float) -> float:
        """Computes the factor, from 0.05 to 1, by which the ridge is multiplied before `heads` adds it to the cross-moment.

        The factor is five times the mean inner product of a pair's features, within these limits. The mean is estimated by the
        trace of the released cross-moment, to which two standard deviations of the trace's noise are added.

        Args:
            cross: Released cross-moment, ``(k, k)``.
            scale: Factor of the cross-moment in the released vector (`MomentLayout.scales`).
        """
        known = cross.trace().item() + 2 * self.std / self.records / scale * math.sqrt(len(cross))
        return min(1.0, max(_LEAST_ALIKE, _ALIKE * known))

    def shrunk(self, mean: Tensor, scale: float) -> Tensor:
        """Scales a noisy mean ``(k,)`` down, by what the noise has added to its norm; returns zero if it could be noise alone.

        This is the estimator of James and Stein (1961), with its threshold three standard deviations above the expected squared
        norm of the noise.

        Args:
            mean: Released mean, ``(k,)``.
            scale: Factor of a mean in the released vector (`MomentLayout.scales`).
        """
        k = len(mean)
        of_noise = (self.std / self.records / scale) ** 2 * k * (1 + _DEVIATIONS * math.sqrt(2 / k))
        length = mean.square().sum().item()
        return mean * max(0.0, 1 - of_noise / length) if length else mean


def centres(layout: MomentLayout, noise: MomentNoise, moments: Moments) -> Tensor:
    """Computes the centres of n towers, ``(n, k)`` float64, from the released means.

    A head subtracts its tower's centre from features of unit length.
    """
    return torch.stack([noise.shrunk(mean.double(), layout.scales[0]) for mean in moments.means])


def heads(layout: MomentLayout, noise: MomentNoise, moments: Moments, aligned: bool) -> tuple[Tensor, Tensor]:
    """Computes the two linear heads, one for each tower. With one tower, both are the same.

    Args:
        layout: Layout of the release.
        noise: Noise of the release.
        moments: Released moments, as averages over N records.
        aligned: Whether the towers were aligned before the run, so that the features of a pair are alike. If so, the ridge of
            the auto-moments is also added to the cross-moment, times a factor (`MomentNoise.likeness`). It acts like further
            pairs in which image and text have equal features.

    Returns:
        The heads, two matrices ``(k, k)`` float64. The centred features of a tower, multiplied by its head, are embeddings;
        their length is not 1. Both heads are the identity as long as the cross-moment is not released (if `aligned`, up to a
        rotation that both share), and always if `MomentNoise.leaves_public` holds.
    """
    k = layout.dimensions
    ridge, eye = noise.ridge(k, aligned), torch.eye(k, dtype=torch.float64)
    cross = moments.cross.double().cpu()
    if noise.leaves_public(layout.towers):
        return eye, eye
    if aligned:
        cross = cross + noise.likeness(cross, layout.scales[1]) * ridge * eye
    elif not bool(cross.any()):  # the run has released nothing yet
        return eye, eye
    inverses = []
    for auto in moments.autos:  # noise can make eigenvalues negative; the true ones are not
        values, vectors = torch.linalg.eigh(auto.double().cpu())
        inverses.append((vectors / (values.clamp(min=0) + ridge)) @ vectors.T)
    if layout.towers == 1:  # symmetric: the true cross-moment of two views has no negative eigenvalues
        values, vectors = torch.linalg.eigh(inverses[0] @ cross @ inverses[0])
        head = vectors * values.clamp(min=0).div(values[-1]).pow(_POWER / 2)
        return head, head
    left, values, right = torch.linalg.svd(inverses[0] @ cross @ inverses[-1])
    scale = values.clamp(min=0).div(values[0]).pow(_POWER / 2)
    return left * scale, right.T * scale


def canonical_heads(
    layout: MomentLayout, noise: MomentNoise, moments: Moments, aligned: bool, components: int
) -> tuple[Tensor, Tensor]:
    """Computes heads that keep only the most correlated directions (regularised CCA, Hotelling 1936).

    The noisy auto-moments whiten both towers' features. The directions are those of the largest singular values of the whitened
    cross-moment. Each head is scaled by the square root of the singular values, so that the scores of pairs are the best that
    this number of directions can give.

    Args:
        layout: Layout of the release.
        noise: Noise of the release.
        moments: Released moments, as averages over N records.
        aligned: Whether the towers were aligned before the run; see `heads`.
        components: Number of directions.

    Returns:
        The heads, two matrices ``(k, components)`` float64.
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
