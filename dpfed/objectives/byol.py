"""BYOL inside one group (Grill et al. 2020, "Bootstrap Your Own Latent").

From one view of a record, a predictor guesses what a slowly moving copy of the network, the target, says of the other view. The
target's weights are a moving average of released weights (`dpfed.models.byol`), so they cost no privacy, and no gradient passes
through them. Records do not meet in this loss: the clipped group is one only because several records share a clip norm. So a
record that is alone in its group would have a gradient, too; engines leave such groups out, as of every objective, which is
sound but wasteful: with groups of S = 4 it happens to one record in fifty, with S = 1 to one in three.
Shapes: S records in the group (padding included), V views, D embedding dimensions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from dpfed.objectives.objective import Objective
from dpfed.schema.section import Section

if TYPE_CHECKING:
    from torch import Tensor


class Options(Section):
    """Of the target network."""

    momentum: float = Field(0.99, ge=0, lt=1, description="decay of the target network's moving average")


def group_loss(
    embeddings: dict[str, Tensor],
    present: Tensor,
    temperature: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    options: Options | None = None,
) -> Tensor:
    """The loss of one group: equation 2 in both directions.

    Args:
        embeddings: ``{"image": (S, V, D), "target": (S, V, D)}`` with V = 2, of unit length: predictions, and what the target
            network says of the same views.
        present: ``(S,)`` bool, False for padding.
        temperature: ignored, as is `bias`: nothing is contrasted.
        bias: ignored.
        options: ignored: the model moves its target network.

    Returns:
        Scalar: the sum over the records that are present of ``4 - 2 cos - 2 cos``.
    """
    import torch

    predicted, target = embeddings["image"], embeddings["target"].detach()
    agreement = (predicted[:, 0] * target[:, 1] + predicted[:, 1] * target[:, 0]).sum(dim=1)
    return torch.where(present, 4 - 2 * agreement, 0.0).sum()


OBJECTIVE = Objective(
    title="what a slower copy says of the other view",
    loss=group_loss,
    options=Options,
    target_network=True,
    range=lambda options, records: 8.0,  # there is no larger one
    images_only=True,
)
