"""Pairwise sigmoid loss inside one group (Zhai et al. 2023, "Sigmoid Loss for Language Image Pre-Training").

For every pair of an image and a text (or of two views), the loss is that of one binary decision: whether the two belong
together. Nothing is normalised over the group.
Shapes: S records in the group (padding included), V image views, W text views, D embedding dimensions.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pydantic import Field

from dpfed.errors import UserError
from dpfed.objectives.objective import ContrastOptions, Objective

if TYPE_CHECKING:
    from torch import Tensor


class Options(ContrastOptions):
    """Options of the loss, including its bias."""

    bias: float | None = Field(
        None,
        ge=-1000,
        le=1000,
        description="added to every logit; default -ln(S - 1) for groups of S records, the log odds that two views match",
    )


def _start(records: int) -> float:
    """Returns the initial bias: minus the logarithm of the number of a record's negatives.

    So the many negative pairs do not outweigh the positive pairs in the first steps.

    Args:
        records: Number of records that are contrasted with each other.
    """
    return -math.log(max(1, records - 1))


def repulsion(
    anchors: Tensor, others: Tensor, present: Tensor, temperature: Tensor, bias: Tensor, counted: Tensor | None = None
) -> Tensor:
    """Computes the loss of the negative decisions: each anchor against all views of every *other* record.

    Args:
        anchors: L2-normalised embeddings ``(S, D)``.
        others: L2-normalised embeddings ``(S, N, D)``; N may be 0.
        present: Mask ``(S,)`` bool, False for padding.
        temperature: Divisor of the similarities, a scalar.
        bias: Term added to every logit, a scalar.
        counted: Mask ``(S,)`` bool; a pair is left out if neither of its records is counted. ``None``: no pair is left out.

    Returns:
        The sum over the ordered pairs of records that are present; a record is never pushed away from its own views.
    """
    import torch
    from torch.nn.functional import logsigmoid

    logits = torch.einsum("sd,tnd->stn", anchors, others) / temperature + bias
    same = torch.eye(len(anchors), dtype=torch.bool, device=anchors.device)
    pairs = present[:, None] & present[None, :] & ~same
    if counted is not None:
        pairs = pairs & (counted[:, None] | counted[None, :])
    return torch.where(pairs[:, :, None], -logsigmoid(-logits), 0.0).sum()


def group_loss(
    embeddings: dict[str, Tensor],
    present: Tensor,
    temperature: Tensor,
    bias: Tensor | None,
    *,
    options: Options | None = None,
    counted: Tensor | None = None,
) -> Tensor:
    """Computes the loss of one group.

    Image-text records: image i and text j are a positive pair for i = j and a negative one otherwise, each pair counted once.
    The augmented views of either modality are further negatives of the other modality's first views.

    Image records: view 0 is contrasted with view 1 in the same way. Views 2 onwards are the augmentations, and serve as further
    negatives of both.

    Args:
        embeddings: Embeddings ``{"image": (S, V, D)}`` with V >= 2, or ``{"image": (S, V, D), "text": (S, W, D)}``.
        present: Mask ``(S,)`` bool, False for padding, which takes part in no pair.
        temperature: Divisor of the cosine similarities, a scalar.
        bias: Term added to every logit, a scalar; -ln(S - 1) at the start, unless `Options.bias` is given.
        options: Options of the loss; ignored here, because they act on the model and the views.
        counted: Mask ``(S,)`` bool; pairs are added up if at least one of their records is in the mask. ``None``: all pairs.

    Returns:
        A scalar, the sum over all pairs of records that are present; exactly 0 for a group of one record, which has no
        negatives.

    Raises:
        UserError: If the model has no bias.
    """
    import torch
    from torch.nn.functional import logsigmoid

    if bias is None:
        raise UserError("the loss 'siglip' needs a model with an attribute 'bias', a scalar tensor. [loss-no-bias]")
    images = embeddings["image"]
    if "text" in embeddings:
        texts = embeddings["text"]
        first = images[:, 0]
        second = texts[:, 0]
        more_first = images[:, 1:]
        more_second = texts[:, 1:]
    else:
        first = images[:, 0]
        second = images[:, 1]
        more_first = images[:, 2:]
        more_second = images[:, 2:]
    positives = -logsigmoid((first * second).sum(dim=1) / temperature + bias)
    attraction = torch.where(present if counted is None else counted, positives, 0.0).sum()
    candidates = torch.cat([second[:, None], more_second], dim=1)
    negatives = repulsion(first, candidates, present, temperature, bias, counted)
    negatives = negatives + repulsion(second, more_first, present, temperature, bias, counted)
    # Without negatives, the model would learn to call every pair positive.
    return torch.where(present.sum() > 1, attraction + negatives, 0.0)


def _range(options: Options, records: int) -> float:
    """Returns twice the loss of a record at chance level: the loss of its positive pair plus that of all its negatives.

    Args:
        options: Options of the loss.
        records: Number of records that are contrasted with each other. The bias is as `_start` gives it for this number.
    """
    return 2 * (math.log(records) + 2 * options.augmentations + 1)


OBJECTIVE = Objective(
    title="sigmoid contrast, pair by pair", loss=group_loss, options=Options, bias=_start, own_terms=True, range=_range, least=2
)
