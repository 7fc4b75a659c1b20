"""VICReg inside one group (Bardes, Ponce and LeCun 2022, "VICReg: Variance-Invariance-Covariance Regularization").

Views of a record should agree (invariance), every dimension should vary over the group (variance), and dimensions should not
vary together (covariance). The latter two couple all records of the group, and of no other, so the group stays the unit that is
clipped.
Shapes: S records in the group (padding included), V image views, W text views, D embedding dimensions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from dpfed.objectives.objective import Objective
from dpfed.objectives.two_views import centred, first_two_views, off_diagonal_squares, sum_over_records
from dpfed.schema.section import Rule, Section

if TYPE_CHECKING:
    from torch import Tensor

_EPSILON = 1e-4  # inside the root (equation 1): a constant dimension has a finite gradient


class Options(Section):
    """Lambda, mu and nu of the paper, and gamma."""

    invariance: float = Field(25.0, ge=0, description="weight of the mean squared distance between the views of a record")
    variance: float = Field(25.0, ge=0, description="weight of the hinge on the standard deviations")
    covariance: float = Field(1.0, ge=0, description="weight of the squared covariances between dimensions")
    deviation: float = Field(1.0, gt=0, description="gamma, the standard deviation that every dimension should have")


def group_loss(
    embeddings: dict[str, Tensor],
    present: Tensor,
    temperature: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    options: Options,
) -> Tensor:
    """The loss of one group: equation 6, times the number of its records, like a sum over records.

    The distance between views is averaged over the dimensions, too, as in the paper's algorithm 1: the usual weights belong to
    that form.

    Args:
        embeddings: ``{"image": (S, V, D)}`` with V >= 2, or ``{"image": (S, V, D), "text": (S, W, D)}``; not normalised.
        present: ``(S,)`` bool, False for padding, which takes no part.
        temperature: ignored, as is `bias`: nothing is contrasted.
        bias: ignored.
        options: the three weights, and the standard deviation below which the hinge pulls.

    Returns:
        Scalar; exactly 0 for a group of one, which has no variance.
    """
    import torch

    first, second = (torch.where(present[:, None], view, 0.0) for view in first_two_views(embeddings))
    records, dimensions = present.sum(), first.shape[1]
    loss = options.invariance * (first - second).square().sum() / (records.clamp(min=1) * dimensions)
    for view in (first, second):
        residuals = centred(view, present)
        matrix = residuals.T @ residuals / (records - 1).clamp(min=1)
        spread = torch.sqrt(matrix.diagonal() + _EPSILON)
        loss = loss + options.variance * torch.relu(options.deviation - spread).mean()
        loss = loss + options.covariance * off_diagonal_squares(matrix) / dimensions
    return sum_over_records(loss, present)


OBJECTIVE = Objective(
    title="variance, distance and covariance of two views",
    loss=group_loss,
    options=Options,
    unit_length=False,
    enough=16,
    range=lambda options, records: options.invariance + 2 * options.variance * options.deviation,  # views that do not vary
    rules=(
        Rule(
            "objective.deviation", "objective.variance", lambda c: c.objective.variance > 0, "give objective.variance a weight"
        ),
    ),
)
