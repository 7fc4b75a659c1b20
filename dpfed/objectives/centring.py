"""Embeddings without the centre of their kind, private or public, and how centres follow: `dpfed.models.centres` says why.

Shapes: S records in the group, padding included; V views of a modality; D dimensions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def centred(
    embeddings: dict[str, Tensor], centres: Tensor, own: Tensor, present: Tensor, unit_length: bool
) -> tuple[dict[str, Tensor], Tensor]:
    """Takes the centre of its kind away from every embedding.

    Args:
        embeddings: ``{"image": (S, V, D)[, "text": (S, W, D)]}``.
        centres: ``(S, 2 * modalities * D)``, the own ones of each modality in the order of `embeddings`, then the public ones.
        own: ``(S,)`` bool, the records that are not public.
        present: ``(S,)`` bool, False for padding.
        unit_length: whether the results are to have length 1.

    Returns:
        The embeddings, through which gradients reach the model but not the centres; and a scalar whose gradient reaches the
        centres alone: half the squared distance of the own records' embeddings from their centre, summed over the records, and
        of the public ones' from theirs, with as much weight.
    """
    import torch
    from torch.nn.functional import normalize

    found, distance = {}, centres.new_zeros(())
    shares = torch.where(own, 1.0, own.sum() / (present & ~own).sum().clamp(min=1)) * present
    halves = centres.chunk(2, dim=1)
    for name, mine, theirs in zip(embeddings, *(half.chunk(len(embeddings), dim=1) for half in halves), strict=True):
        centre = torch.where(own[:, None], mine, theirs)[:, None]
        z = embeddings[name] - centre.detach()
        found[name] = normalize(z, dim=-1) if unit_length else z
        away = (embeddings[name].detach() - centre).square().sum(dim=2).mean(dim=1)
        distance = distance + 0.5 * (shares * away).sum()
    return found, distance
