"""Groups side by side, by torch.func."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dpfed.bounding.bounded_sum import Clip
from dpfed.bounding.engines.engine import Engine, GroupBatch, LossOfViews, Precision, Views, require_fp32
from dpfed.bounding.engines.per_example import PerExampleGradients
from dpfed.models.norm import refuse_mixing
from dpfed.objectives import GroupLoss
from dpfed.objectives.infonce import group_loss


class VmapEngine(Engine):
    """All groups of a chunk at once through ``torch.func.vmap(grad)``; groups are padded to the chunk's largest.

    Args:
        model: must be traceable by torch.func, see `PerExampleGradients`.
        precision: of the forward pass; "fp32", see `require_fp32`.
        loss: of one group.
        gradient_bytes: see `PerExampleGradients`.

    Attributes:
        chunk: groups at a time.
    """

    name = "vmap"

    def __init__(
        self,
        model: nn.Module,
        precision: Precision = "fp32",
        loss: GroupLoss = group_loss,
        gradient_bytes: int | None = None,
    ) -> None:
        refuse_mixing(model, "bounding.engine = 'vmap'")
        require_fp32(self.name, precision)
        super().__init__(model)
        self._gradients = PerExampleGradients(self._vector, LossOfViews(model, precision, loss), gradient_bytes)
        self.chunk = self._gradients.chunk

    def add_clipped(
        self, batch: GroupBatch, clip_norm: float | Clip, into: Tensor, losses: list[Tensor] | None = None
    ) -> Tensor:
        """See `Engine`."""
        order = batch.by_size()  # alike sizes share a chunk, so that little is padded
        chunks = (_padded(batch, order[start : start + self.chunk]) for start in range(0, len(order), self.chunk))
        found = None if losses is None else [into.new_zeros(0, dtype=self._exact)]
        norms = self._gradients.add_clipped(chunks, clip_norm, into, found)
        if losses is not None and found is not None:
            sizes = batch.sizes
            losses.append(torch.stack([torch.cat(found), norms.new_tensor([sizes[group] for group in order])]))
        return norms


def _padded(batch: GroupBatch, chosen: list[int]) -> tuple[Views, Tensor]:
    """Views ``(G, S, ...)`` of some groups, S records of the largest, and ``(G, S)`` which of them are not padding."""
    sizes = batch.sizes
    longest = max(sizes[g] for g in chosen)
    device = next(iter(batch.views.values())).device
    slots = torch.arange(longest)
    counts = torch.tensor([sizes[g] for g in chosen])[:, None]
    first = torch.tensor([batch.starts[g] for g in chosen])[:, None]
    present = (slots < counts).to(device)
    # Padding repeats the group's first record: finite values that the mask then hides.
    rows = torch.where(slots < counts, first + slots, first).to(device)
    return {name: view[rows] for name, view in batch.views.items()}, present
