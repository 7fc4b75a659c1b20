"""The loss of a group with its options, and what is left of it where some of the group's records are public.

Also here: embeddings without the centre of their kind, private or public, and how centres follow: `dpfed.models.centres` says
why.

Shapes: S records in the group, padding included; V views of a modality; D dimensions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from dpfed.objectives.objective import GroupLoss, Objective
from dpfed.schema.section import Section

if TYPE_CHECKING:
    from torch import Tensor


def loss_of(objective: Objective, options: Section, public: int = 0, centring: float = 0.0) -> GroupLoss:
    """The loss of one group, with its options.

    Args:
        objective: says which.
        options: of the kind that the objective has.
        public: so many records at the end of each group are public: the loss is then what the others add to it.
        centring: how much the centres of a model that has some are drawn to the embeddings; see `centred`.
    """
    loss = functools.partial(objective.loss, options=options)
    return functools.partial(_added, loss, objective, public, centring) if public else loss


def _added(
    loss: Callable[..., Tensor],
    objective: Objective,
    public: int,
    centring: float,
    embeddings: dict[str, Tensor],
    present: Tensor,
    temperature: Tensor,
    bias: Tensor | None,
) -> Tensor:
    """What the records of a group that stand before its public ones add to its loss; padding comes last.

    Their own terms, where the loss has such; otherwise the loss of the group without the loss of the public records alone.
    """
    import torch

    own = torch.arange(len(present), device=present.device) < present.sum() - public
    embeddings = dict(embeddings)
    following = torch.zeros((), device=present.device)
    if (centres := embeddings.pop("centres", None)) is not None:
        embeddings, distance = centred(embeddings, centres[:, 0], own, present, objective.unit_length)
        following = centring * distance
    if objective.own_terms:
        return loss(embeddings, present, temperature, bias, counted=own) + following
    rest = loss(embeddings, present & ~own, temperature, bias)
    return loss(embeddings, present, temperature, bias) - rest + following


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
