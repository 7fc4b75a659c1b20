"""Barlow Twins inside one group (Zbontar et al. 2021, "Barlow Twins: Self-Supervised Learning via Redundancy Reduction").

The cross-correlation between the two views' embeddings, over the records of one group, should be the identity: each dimension
is the same for both views, and different dimensions are uncorrelated. The loss couples all records of a group, and no others,
so each group's gradient is clipped as for other losses. A correlation over few records is mostly noise (over two records, it is
always 1 or -1). So groups of 16 or more records work better than smaller groups.
Shapes: S records in the group (padding included), V image views, W text views, D embedding dimensions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from dpfed.objectives.objective import Objective
from dpfed.schema.section import Section

if TYPE_CHECKING:
    from torch import Tensor

_EPSILON = 1e-5  # added to variances, as in the paper's batch normalisation: a constant dimension then has a finite gradient


class Options(Section):
    """Options of the loss: the weight of its second term, the squared correlations between different dimensions."""

    redundancy: float = Field(
        5e-3, ge=0, le=1000, description="lambda, weight of the squared correlations between different dimensions"
    )


def group_loss(
    embeddings: dict[str, Tensor],
    present: Tensor,
    temperature: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    options: Options,
) -> Tensor:
    """Computes the loss of one group: equation 1 of the paper, times the number of records.

    The factor makes the loss comparable with other losses, which are sums over records.

    Args:
        embeddings: Embeddings ``{"image": (S, V, D)}`` with V >= 2, or ``{"image": (S, V, D), "text": (S, W, D)}``; not
            normalised. The loss compares a record's first two image views, or its first image view and first text.
        present: Mask ``(S,)`` bool, False for padding, which is ignored.
        temperature: Ignored, because nothing is contrasted.
        bias: Ignored, because nothing is contrasted.
        options: Weight of the squared correlations between different dimensions.

    Returns:
        A scalar; exactly 0 for a group of one record, for which no correlation exists.
    """
    import torch

    images, records = embeddings["image"], present.sum()
    views = images[:, 0], embeddings["text"][:, 0] if "text" in embeddings else images[:, 1]
    first, second = (_standardised(view, present) for view in views)
    correlation = first.T @ second / records.clamp(min=1)
    loss = (1 - correlation.diagonal()).square().sum() + options.redundancy * off_diagonal_squares(correlation)
    return torch.where(records > 1, records * loss, 0.0)


def _standardised(view: Tensor, present: Tensor) -> Tensor:
    """Scales each dimension to mean 0 and variance 1 over the records that are present. Rows of padding become zeros.

    Args:
        view: Embeddings of one view of each record, ``(S, D)``.
        present: Mask ``(S,)`` bool, False for padding.
    """
    import torch

    records = present.sum().clamp(min=1)
    mean = torch.where(present[:, None], view, 0.0).sum(dim=0) / records
    residuals = torch.where(present[:, None], view - mean, 0.0)
    variance = residuals.square().sum(dim=0) / records
    return residuals * torch.rsqrt(variance + _EPSILON)


def off_diagonal_squares(matrix: Tensor) -> Tensor:
    """Returns the sum of the squares of a square matrix's entries outside of the diagonal."""
    import torch

    off = ~torch.eye(len(matrix), dtype=torch.bool, device=matrix.device)
    return torch.where(off, matrix, 0.0).square().sum()


OBJECTIVE = Objective(title="correlations of two views", loss=group_loss, options=Options, unit_length=False, least=3)
