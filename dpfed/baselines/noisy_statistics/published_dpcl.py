"""DPCL as published (Li et al. 2022): noisy similarity for SimCLR, noisy mean and variance for Barlow Twins. Unsound.

The noisy statistics are differentially private, as the paper states; the paper's conclusion about the gradients is wrong. It
assumes that the gradients of the other views are fixed once the noisy statistics are (sections 3.2.2 and 3.3.2), but they still
contain the other records' clean embeddings: ``d s_ij / d z_i = z_j``, and the cross-correlation of Barlow Twins is not released
at all. docs/methods.md has the details; ``tests/baselines/noisy_statistics/test_dpcl.py`` has an example. Shapes: n records,
two views each, D dimensions.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from dpfed.baselines.noisy_statistics.record_gradients import Cotangents
from dpfed.objectives.barlow_twins import off_diagonal_squares
from dpfed.privacy.noise import KeyedNoise

_LEAST_VARIANCE = 1e-5  # added to variances, as in batch normalisation: noisy variances are often zero


class PublishedSimilarity:
    """Releases a noisy matrix of similarities (the paper's theorem 1), and computes the loss's gradients given this matrix.

    For image records, the matrix compares all 2n views with each other, as in SimCLR. Two rows and two columns belong to a
    record, and each entry moves by at most 2, so the paper's sensitivity is 4 sqrt(2n - 1). For image-text records, which the
    paper does not treat, the matrix compares n images with n texts. One row and one column belong to a record, and the same
    count gives 2 sqrt(2n - 1).

    Args:
        two_towers: Whether the two views of a record are image and text.
        noise: Noise whose standard deviation is the noise multiplier times `sensitivity`.
    """

    def __init__(self, two_towers: bool, noise: KeyedNoise) -> None:
        self._two_towers, self._noise = two_towers, noise

    @staticmethod
    def sensitivity(batch: int, two_towers: bool) -> float:
        """Returns the sensitivity of the similarities of `batch` records to the replacement of one record."""
        return (2 if two_towers else 4) * math.sqrt(2 * batch - 1)

    def slopes(self, embeddings: Tensor, temperature: Tensor, step: int) -> Cotangents:
        """Releases the similarities, and returns the cotangents; see `record_gradients.Statistics`."""
        rows, columns = self._sides(embeddings)
        noisy = self.release(rows @ columns.T, step)
        return self.given(noisy, embeddings, temperature)

    def release(self, similarity: Tensor, step: int) -> Tensor:
        """Adds the noise of a step to similarities ``(2n, 2n)`` or ``(n, n)``, in place, and returns them."""
        return self._noise.add_(similarity, step)

    def given(self, noisy: Tensor, embeddings: Tensor, temperature: Tensor) -> Cotangents:
        """Returns the cotangents at given noisy similarities. A cotangent contains *clean* embeddings of other records."""
        noisy = noisy.detach().requires_grad_()
        temperature = temperature.detach().requires_grad_()
        weights, of_temperature = torch.autograd.grad(self._loss(noisy / temperature), (noisy, temperature))
        embeddings = embeddings.detach().requires_grad_()
        rows, columns = self._sides(embeddings)
        (slopes,) = torch.autograd.grad((weights * (rows @ columns.T)).sum(), embeddings)
        return Cotangents(slopes, (of_temperature / len(embeddings)).expand(len(embeddings)))

    def _sides(self, embeddings: Tensor) -> tuple[Tensor, Tensor]:
        if self._two_towers:
            return embeddings[:, 0], embeddings[:, 1]
        every = embeddings.transpose(0, 1).flatten(0, 1)  # all first views, then all second views
        return every, every

    def _loss(self, logits: Tensor) -> Tensor:
        """Computes equations 3 and 4 of the paper, as a sum; for image-text records, both directions."""
        count = len(logits)
        places = torch.arange(count, device=logits.device)
        if self._two_towers:
            return cross_entropy(logits, places, reduction="sum") + cross_entropy(logits.T, places, reduction="sum")
        diagonal = torch.eye(count, dtype=torch.bool, device=logits.device)
        partner = (places + count // 2) % count
        return cross_entropy(logits.masked_fill(diagonal, -torch.inf), partner, reduction="sum")


class PublishedMoments:
    """Releases noisy means and variances of both views (theorems 2 and 3), and computes the gradients of the Barlow Twins loss.

    Args:
        mean_noise: Noise whose standard deviation is the noise multiplier times 2/n.
        scatter_noise: Noise whose standard deviation is the noise multiplier times 6, for sums of squares around the mean.
        redundancy: Weight of the squared correlations between different dimensions.
    """

    SCATTER_SENSITIVITY = 6.0

    def __init__(self, mean_noise: KeyedNoise, scatter_noise: KeyedNoise, redundancy: float = 5e-3) -> None:
        self._mean_noise, self._scatter_noise, self._redundancy = mean_noise, scatter_noise, redundancy

    @staticmethod
    def mean_sensitivity(batch: int) -> float:
        """Returns the sensitivity of one view's mean over `batch` records to the replacement of one record."""
        return 2 / batch

    def slopes(self, embeddings: Tensor, temperature: Tensor, step: int) -> Cotangents:
        """Releases means and variances, and returns the cotangents; see `record_gradients.Statistics`.

        `temperature` is ignored.
        """
        return self.given(*self.release(normalize(embeddings, dim=2), step), embeddings)

    def release(self, units: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Releases the means and variances of each view's embeddings over the records, with the noise of a step.

        Args:
            units: Embeddings of unit length, ``(n, 2, D)``.
            step: Training step, a part of the noise's key.

        Returns:
            Noisy means and noisy variances, each ``(2, D)``; a variance that the noise would make negative is 0.
        """
        mean = units.mean(dim=0)
        scatter = (units - mean).square().sum(dim=0)
        noisy = self._scatter_noise.add_(scatter, step).clamp(min=0) / max(1, len(units) - 1)
        return self._mean_noise.add_(mean, step), noisy

    def given(self, mean: Tensor, variance: Tensor, embeddings: Tensor) -> Cotangents:
        """Returns the cotangents at given means and variances.

        The cross-correlation in the loss is that of all records' *clean* embeddings.
        """
        embeddings = embeddings.detach().requires_grad_()
        features = (normalize(embeddings, dim=2) - mean) / (variance + _LEAST_VARIANCE).sqrt()
        correlation = features[:, 0].T @ features[:, 1] / len(features)
        loss = (1 - correlation.diagonal()).square().sum() + self._redundancy * off_diagonal_squares(correlation)
        (slopes,) = torch.autograd.grad(loss, embeddings)
        return Cotangents(len(embeddings) * slopes, torch.zeros_like(embeddings[:, 0, 0]))
