"""The loss of one group."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor

from dpfed.objectives import barlow_twins, byol, infonce, siglip, vicreg

if TYPE_CHECKING:
    from dpfed.config import ObjectiveConfig

# (embeddings of the views, present, temperature, bias) -> sum over the records of one group that are present.
GroupLoss = Callable[[dict[str, Tensor], Tensor, Tensor, Tensor | None], Tensor]

OBJECTIVES: dict[str, GroupLoss] = {
    "infonce": infonce.group_loss,
    "siglip": siglip.group_loss,
    "barlow_twins": barlow_twins.group_loss,
    "vicreg": vicreg.group_loss,
    "byol": byol.group_loss,
}

# The scale of embeddings matters to these, so models leave it alone; all others get embeddings of unit length.
UNNORMALISED = frozenset({"barlow_twins", "vicreg"})


def loss_of(objective: ObjectiveConfig) -> GroupLoss:
    """The loss of one group that a configuration names, with the options that it gives."""
    return functools.partial(OBJECTIVES[objective.name], **objective.options)
