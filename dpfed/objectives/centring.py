"""Subtracts one centre from the embeddings of private records, and another from those of public records.

A further term of the loss draws the centres to the embeddings. `dpfed.models.centres` says why centres are needed.

Shapes: S records in the group, padding included; V image views; W text views; D dimensions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def centred(
    embeddings: dict[str, Tensor], centres: Tensor, private: Tensor, present: Tensor, unit_length: bool
) -> tuple[dict[str, Tensor], Tensor]:
    """Subtracts a centre from every embedding. In each modality, private records have one centre, and public records another.

    Args:
        embeddings: Embeddings ``{"image": (S, V, D)[, "text": (S, W, D)]}``.
        centres: Centres ``(S, 2 * modalities * D)``, the same in each row: first the private records' centre in each modality,
            in the order of `embeddings`, then the public records' centre in each modality.
        private: Mask ``(S,)`` bool of the private records.
        present: Mask ``(S,)`` bool, False for padding.
        unit_length: Whether to normalise the results to length 1.

    Returns:
        The centred embeddings, and a scalar that draws the centres to the embeddings. The gradients of the centred embeddings
        reach the model, but not the centres; the gradient of the scalar reaches only the centres. The scalar is a weighted sum
        over modalities and records. Its terms are half the squared distances of embeddings from their centre, averaged over a
        record's views. Private records have weight 1; the equal weights of public records add up to the number of private ones.
    """
    import torch
    from torch.nn.functional import normalize

    moved, distance = {}, centres.new_zeros(())
    shares = torch.where(private, 1.0, private.sum() / (present & ~private).sum().clamp(min=1)) * present
    halves = centres.chunk(2, dim=1)
    for name, mine, theirs in zip(embeddings, *(half.chunk(len(embeddings), dim=1) for half in halves), strict=True):
        centre = torch.where(private[:, None], mine, theirs)[:, None]
        z = embeddings[name] - centre.detach()
        moved[name] = normalize(z, dim=-1) if unit_length else z
        away = (embeddings[name].detach() - centre).square().sum(dim=2).mean(dim=1)
        distance = distance + 0.5 * (shares * away).sum()
    return moved, distance
