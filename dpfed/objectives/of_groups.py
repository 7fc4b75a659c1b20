"""Computes the loss of a group; if the group has public records, only what the private records add to the loss."""

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
    """Returns a function that computes the loss of one group with the given options.

    Args:
        objective: Declaration of the loss.
        options: Options of the loss, an instance of `objective.options`.
        public: Number of public records at the end of each group. Unless it is 0, the function computes the contribution of the
            other, private records to the loss.
        centring: Weight of the term that pulls a model's centres, if the model has any, towards the embeddings; see `centred`.
            It is not used if `public` is 0.
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
    """Computes the contribution of a group's private records to its loss.

    In the group, private records come first, then public records, then padding. If `Objective.own_terms` is set, the
    contribution is the sum of the private records' terms. Otherwise it is the loss of the group minus the loss of its public
    records alone. For a model with centres, the embeddings are centred first, and the term that moves the centres is added.
    """
    import torch

    private = torch.arange(len(present), device=present.device) < present.sum() - public
    embeddings = dict(embeddings)
    following = torch.zeros((), device=present.device)
    if (centres := embeddings.pop("centres", None)) is not None:
        embeddings, distance = centred(embeddings, centres[:, 0], private, present, objective.unit_length)
        following = centring * distance
    if objective.own_terms:
        return loss(embeddings, present, temperature, bias, counted=private) + following
    rest = loss(embeddings, present & ~private, temperature, bias)
    return loss(embeddings, present, temperature, bias) - rest + following
