"""One group after the other: the oracle."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn

from dpfed.bounding.bounded_sum import clip_factors
from dpfed.bounding.engines.protocol import GroupBatch, LossOfViews, Precision, draws
from dpfed.models.parameters import TrainableVector, exact_type
from dpfed.objectives import GroupLoss
from dpfed.objectives.infonce import group_loss


class LoopEngine:
    """One forward and one backward pass per group, in as many lanes as there are cores.

    A group is too small to keep several cores busy, so each core takes groups of its own. Which lane takes which group is
    fixed, and lanes are added up in order: the sum is the same, bit for bit, in every run.
    """

    name = "loop"

    def __init__(self, model: nn.Module, precision: Precision = "fp32", loss: GroupLoss = group_loss) -> None:
        self._loss = LossOfViews(model, precision, loss)
        self._vector = TrainableVector(model)
        self._exact = exact_type(self._vector.device)
        # Random layers draw from one generator that lanes would take turns at in no fixed order.
        random = any(draws(module) for module in model.modules())
        lanes = 1 if random or self._vector.device.type != "cpu" else torch.get_num_threads()
        self._extra = [self._vector.zeros() for _ in range(lanes - 1)]
        self._pool = ThreadPoolExecutor(lanes, initializer=torch.set_num_threads, initargs=(1,)) if lanes > 1 else None

    def add_clipped(self, batch: GroupBatch, clip_norm: float, into: Tensor) -> Tensor:
        """See `Engine`."""
        if self._pool is None:
            return self._lane(batch, clip_norm, into, 0, 1)
        sums = [into, *(extra.zero_() for extra in self._extra)]
        lanes = [self._pool.submit(self._lane, batch, clip_norm, part, k, len(sums)) for k, part in enumerate(sums)]
        norms = torch.cat([lane.result() for lane in lanes])
        for extra in self._extra:
            into.add_(extra)
        return norms

    def zeros(self) -> Tensor:
        """See `Engine`."""
        return self._vector.zeros()

    def finish(self, into: Tensor) -> Tensor:
        """See `Engine`."""
        return into

    def _lane(self, batch: GroupBatch, clip_norm: float, into: Tensor, lane: int, lanes: int) -> Tensor:
        parts = self._vector.split(into)
        ranges = list(zip(batch.starts, batch.starts[1:], strict=False))
        norms = [into.new_zeros(0, dtype=self._exact)]
        for first, end in ranges[lane::lanes]:
            if end - first < 2:
                continue  # a group of one has nothing to contrast with: its gradient is exactly zero
            views = {name: view[first:end] for name, view in batch.views.items()}
            loss = self._loss(views, torch.ones(end - first, dtype=torch.bool, device=into.device))
            gradients = torch.autograd.grad(loss, self._vector.parameters)
            norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients, 2, self._exact)))
            factor = clip_factors(norm, clip_norm).item()
            if factor > 0:  # 0 * inf is not 0: leave the gradient out altogether
                torch._foreach_add_(parts, gradients, alpha=factor)
            norms.append(norm[None])
        return torch.cat(norms)
