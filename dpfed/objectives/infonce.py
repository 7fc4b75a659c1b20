"""InfoNCE inside one group, with intra-group sample augmentation (DP-GCL, equations 9, 12 and 15).

Shapes: S records in the group (padding included), V image views, W text views, D embedding dimensions.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dpfed.objectives.objective import ContrastOptions, Objective

if TYPE_CHECKING:
    from torch import Tensor

# Finite, so that a row without any negative gives a loss of exactly 0 and a gradient without NaN.
_ABSENT = -1e9


def infonce(anchors: Tensor, others: Tensor, present: Tensor, temperature: Tensor, counted: Tensor | None = None) -> Tensor:
    """Computes one direction of the contrast: each anchor against its own first view and the views of the other records.

    The denominator of record i has its positive (i's own first view) and, for every *other* record j of the group, j's first
    view and its N_a augmented views. These are (N_a + 1)(S - 1) negatives, the number that the paper states. The paper's
    equation 12 as printed would also include i's own augmented views, and so push a record away from itself. dpfed leaves those
    terms out.

    Args:
        anchors: L2-normalised embeddings ``(S, D)``.
        others: L2-normalised embeddings ``(S, 1 + N_a, D)``; view 0 is the positive of the anchor with the same index.
        present: Mask ``(S,)`` bool, False for padding, which is neither an anchor nor a negative.
        temperature: Divisor of the similarities, a scalar.
        counted: Mask ``(S,)`` bool of the anchors whose terms are added up; ``None``: all that are present.

    Returns:
        The sum of the anchors' losses; exactly 0 for a group of one record.
    """
    import torch

    size, views, _ = others.shape
    similarity = torch.einsum("sd,tvd->stv", anchors, others) / temperature
    same = torch.eye(size, dtype=torch.bool, device=anchors.device)[:, :, None]
    positive = torch.arange(views, device=anchors.device) == 0
    usable = (present[None, :, None] & ~same) | (same & positive)
    logits = similarity.masked_fill(~usable, _ABSENT).reshape(size, size * views)
    losses = torch.logsumexp(logits, dim=1) - similarity[:, :, 0].diagonal()
    return torch.where(present if counted is None else counted, losses, 0.0).sum()


def group_loss(
    embeddings: dict[str, Tensor],
    present: Tensor,
    temperature: Tensor,
    bias: Tensor | None = None,
    *,
    options: ContrastOptions | None = None,
    counted: Tensor | None = None,
) -> Tensor:
    """Computes the loss of one group, in both directions.

    For image records, the loss contrasts view 0 with view 1, and view 1 with view 0; views 2 onwards are the N_a augmentations.
    For image-text records, it contrasts image with text, and text with image (equation 15); views 1 onwards of each modality
    are its augmentations.

    Args:
        embeddings: Embeddings ``{"image": (S, V, D)}`` with V >= 2, or ``{"image": (S, V, D), "text": (S, W, D)}``.
        present: Mask ``(S,)`` bool, False for padding.
        temperature: Divisor of the similarities, a scalar.
        bias: Ignored, because a softmax is invariant to it.
        options: Options of the loss; ignored here, because they act on the model and the views.
        counted: Mask ``(S,)`` bool of the records whose terms are added up; ``None``: `present`.

    Returns:
        A scalar, the sum over both directions and the records in `counted`.
    """
    import torch

    def direction(anchors: Tensor, others: Tensor) -> Tensor:
        return infonce(anchors, others, present, temperature, counted)

    images = embeddings["image"]
    if "text" in embeddings:
        texts = embeddings["text"]
        return direction(images[:, 0], texts) + direction(texts[:, 0], images)
    back = torch.cat([images[:, :1], images[:, 2:]], dim=1)
    return direction(images[:, 0], images[:, 1:]) + direction(images[:, 1], back)


def _range(options: ContrastOptions, records: int) -> float:
    """Returns twice the loss of a record at chance level: a uniform guess among the positive and all negatives.

    The loss of a record has two directions.

    Args:
        options: Options of the loss.
        records: Number of records that are contrasted with each other.
    """
    return 4 * math.log(1 + (options.augmentations + 1) * (records - 1))


OBJECTIVE = Objective(title="softmax contrast", loss=group_loss, options=ContrastOptions, own_terms=True, range=_range, least=2)
