"""Supervised contrast inside one group (Khosla et al. 2020, "Supervised Contrastive Learning", the loss L_out).

Views of records of one class attract each other; views of different classes repel each other. The loss reads which records of a
group share a class, and nothing else about the labels (`dpfed.objectives.classes`).
Shapes: S records in the group (padding included), V image views, D embedding dimensions.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pydantic import Field

from dpfed.objectives.objective import ContrastOptions, Objective

if TYPE_CHECKING:
    from torch import Tensor

_ABSENT = -1e9  # finite, as for InfoNCE


class Options(ContrastOptions):
    """Options of the loss, including the name of the label."""

    label: str | None = Field(None, description="name of the label that holds the class; default: the only label")


def group_loss(
    embeddings: dict[str, Tensor],
    present: Tensor,
    temperature: Tensor,
    bias: Tensor | None = None,
    *,
    options: Options | None = None,
) -> Tensor:
    """Computes the loss of one group.

    Args:
        embeddings: Embeddings ``{"image": (S, V, D)}``, L2-normalised, and ``"label": (S,)`` int64, equal where two records
            share a class.
        present: Mask ``(S,)`` bool, False for padding.
        temperature: Divisor of the similarities, a scalar.
        bias: Ignored, because a softmax is invariant to it.
        options: Options of the loss; ignored here, because they act on the model and the views.

    Returns:
        A scalar: the mean of the loss over a record's views, summed over the records that are present. It is 0 for a group of
        one record if V is 1 or 2.
    """
    import torch

    images, label = embeddings["image"], embeddings["label"]
    views = images.shape[1]
    z, there = images.flatten(0, 1), present.repeat_interleave(views)
    alike = (label[:, None] == label[None]).repeat_interleave(views, 0).repeat_interleave(views, 1)
    itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
    others = there[None] & ~itself
    similarity = z @ z.T / temperature
    logits = similarity.masked_fill(~others, _ABSENT)
    positive = alike & others
    attraction = torch.where(positive, similarity, 0.0).sum(1) / positive.sum(1).clamp(min=1)
    losses = torch.logsumexp(logits, 1) - attraction
    return torch.where(there & others.any(1), losses, 0.0).sum() / views  # a view without others has no contrast


def _range(options: Options, records: int) -> float:
    """Returns twice the loss at chance level: of a uniform guess among all other views in the group.

    Args:
        options: Options of the loss.
        records: Number of records that are contrasted with each other.
    """
    return 2 * math.log(max(2, (options.augmentations + 2) * records - 1))


OBJECTIVE = Objective(
    title="softmax contrast by classes",
    loss=group_loss,
    options=Options,
    range=_range,
    images_only=True,
    least=2,
    reads_labels=True,
)
