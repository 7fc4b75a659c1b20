"""Barlow Twins inside one group (Zbontar et al. 2021, "Barlow Twins: Self-Supervised Learning via Redundancy Reduction").

The cross-correlation between the two views' embeddings, over the records of one group, should be the identity: each dimension
says the same of both views, and no two dimensions say the same. It couples all records of the group, and of no other, so the
group stays the unit that is clipped. A correlation over few records is mostly chance (over two it is always 1 or -1): groups
of 16 and more serve better than the smallest.
Shapes: S records in the group (padding included), V image views, W text views, D embedding dimensions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from dpfed.objectives.objective import Objective
from dpfed.schema.section import Section

if TYPE_CHECKING:
    from torch import Tensor

_EPSILON = 1e-5  # added to variances, as in the batch normalisation of the paper: a constant dimension has a finite gradient


class Options(Section):
    """Weights."""

    redundancy: float = Field(5e-3, ge=0, le=1000, description="lambda, weight of the correlations between dimensions")


def group_loss(
    embeddings: dict[str, Tensor],
    present: Tensor,
    temperature: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    options: Options,
) -> Tensor:
    """The loss of one group: equation 1, times the number of its records, like a sum over records.

    Args:
        embeddings: ``{"image": (S, V, D)}`` with V >= 2, or ``{"image": (S, V, D), "text": (S, W, D)}``; not normalised.
        present: ``(S,)`` bool, False for padding, which takes no part.
        temperature: ignored, as is `bias`: nothing is contrasted.
        bias: ignored.
        options: the weight of the terms off the diagonal.

    Returns:
        Scalar; exactly 0 for a group of one, whose correlation does not exist.
    """
    import torch

    images, records = embeddings["image"], present.sum()
    views = images[:, 0], embeddings["text"][:, 0] if "text" in embeddings else images[:, 1]
    first, second = (_standardised(view, present) for view in views)
    correlation = first.T @ second / records.clamp(min=1)
    loss = (1 - correlation.diagonal()).square().sum() + options.redundancy * off_diagonal_squares(correlation)
    return torch.where(records > 1, records * loss, 0.0)


def _standardised(view: Tensor, present: Tensor) -> Tensor:
    """Mean 0 and variance 1 in each dimension, over the records that are present; zeros elsewhere."""
    import torch

    records = present.sum().clamp(min=1)
    mean = torch.where(present[:, None], view, 0.0).sum(dim=0) / records
    residuals = torch.where(present[:, None], view - mean, 0.0)
    variance = residuals.square().sum(dim=0) / records
    return residuals * torch.rsqrt(variance + _EPSILON)


def off_diagonal_squares(matrix: Tensor) -> Tensor:
    """Sum of the squares off the diagonal of a square matrix."""
    import torch

    off = ~torch.eye(len(matrix), dtype=torch.bool, device=matrix.device)
    return torch.where(off, matrix, 0.0).square().sum()


OBJECTIVE = Objective(title="correlations of two views", loss=group_loss, options=Options, unit_length=False, least=3)
