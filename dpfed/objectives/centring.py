"""Embeddings centred by kind, private or public, and the loss that moves the centres (reason: `dpfed.models.centres`).

Shapes: S records in the group, padding included; V views of a modality; D dimensions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def centred(
    embeddings: dict[str, Tensor], centres: Tensor, private: Tensor, present: Tensor, unit_length: bool
) -> tuple[dict[str, Tensor], Tensor]:
    """Subtracts a centre from every embedding: that of the private records, or that of the public records.

    Args:
        embeddings: Embeddings ``{"image": (S, V, D)[, "text": (S, W, D)]}``.
        centres: Centres ``(S, 2 * modalities * D)``: those of private records for each modality, in the order of `embeddings`,
            then those of public records.
        private: Mask ``(S,)`` bool of the private records.
        present: Mask ``(S,)`` bool, False for padding.
        unit_length: Whether to normalise the results to length 1.

    Returns:
        The centred embeddings, whose gradients reach the model but not the centres; and a scalar whose gradient reaches the
        centres alone: half the squared distance of the private records' embeddings from their centre, summed over the records,
        plus the same for the public records, with the same total weight.
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
