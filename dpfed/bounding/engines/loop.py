"""One group after the other: the oracle."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dpfed.bounding import foreach
from dpfed.bounding.bounded_sum import Clip, clip_factors
from dpfed.bounding.engines.engine import Engine, GroupBatch, LossOfViews, Precision, shared_out
from dpfed.bounding.engines.lanes import Lanes
from dpfed.objectives import GroupLoss
from dpfed.objectives.infonce import group_loss


class LoopEngine(Engine):
    """One forward and one backward pass per group, in as many lanes as there are cores."""

    name = "loop"

    def __init__(self, model: nn.Module, precision: Precision = "fp32", loss: GroupLoss = group_loss) -> None:
        super().__init__(model)
        self._loss = LossOfViews(model, precision, loss)
        self._lanes = Lanes(model, self._vector)

    def add_clipped(
        self, batch: GroupBatch, clip_norm: float | Clip, into: Tensor, losses: list[Tensor] | None = None
    ) -> Tensor:
        """See `Engine`."""
        return shared_out(self._lanes.add(lambda lane, part: self._lane(batch, lane, clip_norm, part), into), losses)

    def _lane(self, batch: GroupBatch, lane: int, clip_norm: float | Clip, into: Tensor) -> Tensor:
        """Adds a lane's groups; returns ``(3, g)``: norms, losses and numbers of records."""
        parts = self._vector.split(into)
        figures = [into.new_zeros(3, 0, dtype=self._exact)]
        for views in batch.groups(lane, self._lanes.count):
            records = len(next(iter(views.values())))
            loss = self._loss(views, torch.ones(records, dtype=torch.bool, device=into.device))
            gradients = torch.autograd.grad(loss, self._vector.parameters)
            norm = torch.linalg.vector_norm(foreach.norms(gradients, self._exact))
            factor = clip_factors(norm, clip_norm).item()
            if factor > 0:  # 0 * inf is not 0: leave the gradient out altogether
                foreach.add_(parts, gradients, factor)
            figures.append(torch.stack([norm, loss.detach().to(norm), torch.full_like(norm, records)])[:, None])
        return torch.cat(figures, dim=1)
