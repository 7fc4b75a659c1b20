"""The loss of one group: a file for each, found by its name.

Also here: embeddings without the centre of their kind, private or public, and how centres follow: `dpfed.models.centres` says
why.

Shapes: S records in the group, padding included; V views of a modality; D dimensions.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable
from typing import TYPE_CHECKING

from dpfed.objectives.objective import GroupLoss, Objective

if TYPE_CHECKING:
    from torch import Tensor

    from dpfed.config import ObjectiveConfig


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


__all__ = ["OBJECTIVES", "GroupLoss", "Objective", "keys_of_losses", "loss_of"]


def _found() -> dict[str, Objective]:
    files = {file.name: importlib.import_module(f"{__name__}.{file.name}") for file in pkgutil.iter_modules(__path__)}
    return {name: file.OBJECTIVE for name, file in files.items() if hasattr(file, "OBJECTIVE")}


OBJECTIVES: dict[str, Objective] = _found()


def loss_of(objective: ObjectiveConfig, public: int = 0, centring: float = 0.0) -> GroupLoss:
    """The loss of one group that a configuration names, with the options that it gives.

    Args:
        objective: of a configuration.
        public: so many records at the end of each group are public: the loss is then what the others add to it.
        centring: how much the centres of a model that has some are drawn to the embeddings; see `dpfed.objectives`.
    """
    loss = functools.partial(objective.loss.loss, options=objective.options)
    return functools.partial(_added, loss, objective.loss, public, centring) if public else loss


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


def keys_of_losses() -> dict[str, tuple[str, ...]]:
    """Every key that a loss has in ``[objective]``, with the names of the losses that have it; the most common ones first.

    Raises:
        ValueError: if two losses mean different things by a key.
    """
    found: dict[str, tuple[str, ...]] = {}
    for name, loss in OBJECTIVES.items():
        for key, field in loss.options.model_fields.items():
            others = found.get(key, ())
            if others and repr(OBJECTIVES[others[0]].options.model_fields[key]) != repr(field):
                raise ValueError(f"the losses '{others[0]}' and '{name}' mean different things by 'objective.{key}'")
            found[key] = (*others, name)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))
