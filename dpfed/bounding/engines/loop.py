"""Contains the reference engine, which computes one group after the other."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dpfed.bounding import foreach
from dpfed.bounding.clipping import Clip, clip_factors
from dpfed.bounding.engines.engine import Engine, GroupBatch, LossOfViews, Precision, shared_out
from dpfed.bounding.engines.threads import Threads
from dpfed.objectives import GroupLoss
from dpfed.objectives.infonce import group_loss


def add_clipped(gradients: Sequence[Tensor], clip_norm: float | Clip, parts: list[Tensor], exact: torch.dtype) -> Tensor:
    """Clips one group's gradient, and adds it to a sum.

    Args:
        gradients: Gradients of all trainable parameters.
        clip_norm: Norm C, or another `Clip`.
        parts: Views of the sum, one for each trainable parameter, which are changed in place.
        exact: Dtype in which norms are computed.

    Returns:
        The norm before clipping, a scalar; private.
    """
    norm = torch.linalg.vector_norm(foreach.norms(tuple(gradients), exact))
    factor = clip_factors(norm, clip_norm).item()
    if factor > 0:  # 0 * inf is not 0: leave the gradient out altogether
        foreach.add_(parts, tuple(gradients), factor)
    return norm


class LoopEngine(Engine):
    """Engine that makes one forward and one backward pass per group; on CPUs in several threads, see `Threads`."""

    name = "loop"

    def __init__(self, model: nn.Module, precision: Precision = "fp32", loss: GroupLoss = group_loss) -> None:
        super().__init__(model)
        self._loss = LossOfViews(model, precision, loss)
        self._threads = Threads(model, self._vector)

    def add_clipped(
        self, batch: GroupBatch, clip_norm: float | Clip, into: Tensor, losses: list[Tensor] | None = None
    ) -> Tensor:
        """Adds every group's clipped gradient to a flat vector, see `Engine.add_clipped`."""
        with self._loss.kernels():
            return shared_out(
                self._threads.add(lambda thread, part: self._of_thread(batch, thread, clip_norm, part), into), losses
            )

    def _of_thread(self, batch: GroupBatch, thread: int, clip_norm: float | Clip, into: Tensor) -> Tensor:
        """Adds the clipped gradients of one thread's g groups; returns ``(3, g)``: norms, losses and numbers of records."""
        parts = self._vector.split(into)
        figures = [into.new_zeros(3, 0, dtype=self._exact)]
        for views in batch.groups(thread, self._threads.count):
            records = len(next(iter(views.values())))
            loss = self._loss(views, torch.ones(records, dtype=torch.bool, device=into.device))
            norm = add_clipped(torch.autograd.grad(loss, self._vector.parameters), clip_norm, parts, self._exact)
            figures.append(torch.stack([norm, loss.detach().to(norm), torch.full_like(norm, records)])[:, None])
        return torch.cat(figures, dim=1)
