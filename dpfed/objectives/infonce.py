"""InfoNCE inside one group, with intra-group sample augmentation (DP-GCL, equations 9, 12 and 15).

Shapes: S records in the group (padding included), V image views, W text views, D embedding dimensions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpfed.objectives.objective import ContrastOptions, Objective

if TYPE_CHECKING:
    from torch import Tensor

# Finite, so that a row without any negative gives a loss of exactly 0 and a gradient without NaN.
_ABSENT = -1e9


def infonce(anchors: Tensor, others: Tensor, present: Tensor, temperature: Tensor) -> Tensor:
    """Each anchor finds its own first view among the group's: one direction of the contrast.

    The denominator of record i holds its positive and, for every *other* record j of the group, j's first view and its N_a
    augmented views: (N_a + 1)(S - 1) negatives, the number that the paper states. Its equation 12 as printed would also put
    i's own augmented views there, and so push a record away from itself; we leave those terms out.

    Args:
        anchors: ``(S, D)`` L2-normalised embeddings.
        others: ``(S, 1 + N_a, D)`` L2-normalised embeddings; view 0 is the positive of the anchor with the same index.
        present: ``(S,)`` bool, False for padding, which neither contrasts nor is contrasted with.
        temperature: scalar.

    Returns:
        Sum over the records that are present; exactly 0 for a group of one.
    """
    import torch

    size, views, _ = others.shape
    similarity = torch.einsum("sd,tvd->stv", anchors, others) / temperature
    own = torch.eye(size, dtype=torch.bool, device=anchors.device)[:, :, None]
    positive = torch.zeros(views, dtype=torch.bool, device=anchors.device)
    positive[0] = True
    usable = (present[None, :, None] & ~own) | (own & positive)
    logits = similarity.masked_fill(~usable, _ABSENT).reshape(size, size * views)
    losses = torch.logsumexp(logits, dim=1) - similarity[:, :, 0].diagonal()
    return torch.where(present, losses, 0.0).sum()


def group_loss(
    embeddings: dict[str, Tensor],
    present: Tensor,
    temperature: Tensor,
    bias: Tensor | None = None,
    *,
    options: ContrastOptions | None = None,
) -> Tensor:
    """The loss of one group, in both directions.

    Image records contrast view 0 with view 1 and back; views 2 onwards are the N_a augmentations. Image-text records contrast
    image with text and back (equation 15); views 1 onwards of each modality are its augmentations.

    Args:
        embeddings: ``{"image": (S, V, D)}`` with V >= 2, or ``{"image": (S, V, D), "text": (S, W, D)}``.
        present: ``(S,)`` bool.
        temperature: scalar.
        bias: ignored: a softmax does not see what is added to every logit.
        options: ignored: model and views have them.

    Returns:
        Scalar: the sum over both directions and all records that are present.
    """
    import torch

    images = embeddings["image"]
    if "text" in embeddings:
        texts = embeddings["text"]
        return infonce(images[:, 0], texts, present, temperature) + infonce(texts[:, 0], images, present, temperature)
    back = torch.cat([images[:, :1], images[:, 2:]], dim=1)
    return infonce(images[:, 0], images[:, 1:], present, temperature) + infonce(images[:, 1], back, present, temperature)


OBJECTIVE = Objective(title="softmax contrast", loss=group_loss, options=ContrastOptions)
