"""The loss of a group with its options, and what is left of it where some of the group's records are public."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from dpfed.objectives.centring import centred
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
