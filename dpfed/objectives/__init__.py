"""The loss of one group."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from dpfed.objectives import infonce, siglip

# (embeddings of the views, present, temperature, bias) -> sum over the records of one group that are present.
GroupLoss = Callable[[dict[str, Tensor], Tensor, Tensor, Tensor | None], Tensor]

OBJECTIVES: dict[str, GroupLoss] = {"infonce": infonce.group_loss, "siglip": siglip.group_loss}
