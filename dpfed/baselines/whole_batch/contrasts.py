"""Who is contrasted with whom in a whole batch, and how the loss depends on each similarity.

All embeddings of a batch of n records stand in one matrix ``(R, D)``: the image views of record 0, of record 1, ..., then the
texts in the same way. A `Contrast` is one direction of the loss of `dpfed.objectives.infonce`: an anchor for each record, and m
candidates of each record, the first of which is the positive of its own record's anchor.

Shapes: n records, R embedding rows, D dimensions, m candidates of a record.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Contrast:
    """One direction of the contrast.

    Attributes:
        anchors: ``(n,)`` rows of the anchors.
        candidates: ``(n, m)`` rows of the candidates.
        towers: what embeds the anchors and what embeds the candidates, ``image`` or ``text``.
    """

    anchors: Tensor
    candidates: Tensor
    towers: tuple[str, str]

    def similarities(self, rows: Tensor) -> Tensor:
        """``(n, n, m)``: cosine of each anchor with each candidate, of embeddings ``(R, D)`` of unit length."""
        return (rows[self.anchors] @ rows[self.candidates.reshape(-1)].T).unflatten(1, self.candidates.shape)

    def cotangents(self, rows: Tensor, weights: Tensor) -> Tensor:
        """``(R, D)``: derivative of the weighted sum of similarities with respect to the embeddings.

        Args:
            rows: ``(R, D)`` embeddings.
            weights: ``(n, n, m)`` of the similarities.
        """
        flat, others = weights.flatten(1), self.candidates.reshape(-1)
        result = torch.zeros_like(rows).index_add_(0, self.anchors, flat @ rows[others])
        return result.index_add_(0, others, flat.T @ rows[self.anchors])


def contrasts(shape: dict[str, tuple[int, int]], device: torch.device) -> list[Contrast]:
    """Both directions of the contrast.

    Args:
        shape: ``{"image": (n, V)}``, V >= 2, or ``{"image": (n, V), "text": (n, W)}``.
        device: of the row numbers.
    """
    n, views = shape["image"]
    images = torch.arange(n * views, device=device).view(n, views)
    if "text" in shape:
        texts = n * views + torch.arange(n * shape["text"][1], device=device).view(n, -1)
        return [Contrast(images[:, 0], texts, ("image", "text")), Contrast(texts[:, 0], images, ("text", "image"))]
    back = torch.cat([images[:, :1], images[:, 2:]], dim=1)
    return [Contrast(images[:, 0], images[:, 1:], ("image", "image")), Contrast(images[:, 1], back, ("image", "image"))]


def contrastive_derivatives(similarities: Tensor, temperature: float) -> Tensor:
    """Derivatives of the InfoNCE loss with respect to the similarities.

    The loss of anchor i is the negative logarithm of the softmax, at its positive, over its positive and all candidates of
    other records; its own further candidates take no part.

    Args:
        similarities: ``(n, n, m)`` cosines.
        temperature: divides them.

    Returns:
        ``(n, n, m)``; row i is the derivative of the loss of anchor i.
    """
    n, _, m = similarities.shape
    own = torch.arange(n, device=similarities.device)
    logits = similarities / temperature
    logits[own, own, 1:] = -torch.inf
    weights = logits.view(n, n * m).softmax(1).view(n, n, m)
    weights[own, own, 0] -= 1
    return weights / temperature


def spread_out_derivatives(similarities: Tensor) -> Tensor:
    """Derivatives of the spread-out regulariser (Zhang et al. 2017): the mean squared cosine with candidates of other records.

    Args:
        similarities: ``(n, n, m)`` cosines, n >= 2.

    Returns:
        ``(n, n, m)``; row i is the derivative of the term of anchor i.
    """
    n, _, m = similarities.shape
    weights = 2 * similarities / ((n - 1) * m)
    own = torch.arange(n, device=similarities.device)
    weights[own, own] = 0
    return weights
