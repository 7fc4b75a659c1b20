"""Clipped group gradients of a model whose parameters are sharded over the ranks: exact clipping under FSDP2.

Sharded training adds the ranks' gradients together while they are computed, block by block, before the norm of any of them is
known. So a group takes one forward and two backward passes. The first backward pass only measures: where FSDP2 would add up,
it sums the squares of this rank's own gradient, and sends nothing. The second one computes that gradient again, multiplies it
by its clip factor at the same place, and then adds up. A rank holds whole gradients of one block at a time, and of what lies
outside the blocks (embeddings), never of all.

The clip norm holds whatever the second pass computes: should a block's gradient come out longer than it was measured (some
kernels' results depend on the order of threads), it is scaled down to that.

The ranks go in lockstep (`cluster.lockstep`), in waves of one group per rank.

This takes any model. One whose layers have rules goes faster layer by layer (`cluster.sharded_layers`).

Not here: activations are kept for both passes, not computed again; under bf16, and with adapters, they include the cast or
merged weights of every block, 2 or 4 bytes per such weight that are not sharded.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from cluster.fsdp_internals import BlockGradient, squares
from cluster.lockstep import LockstepEngine
from dpfed.bounding import foreach
from dpfed.bounding.bounded_sum import Clip, clip_factors
from dpfed.bounding.engines import GroupBatch, LossOfViews, Precision, Views
from dpfed.bounding.engines.engine import shared_out
from dpfed.objectives import GroupLoss
from dpfed.objectives.infonce import group_loss


class ShardedEngine(LockstepEngine):
    """One forward and two backward passes per group: for any model that `shard_model` has cut up.

    Args:
        model: sharded, the same on all ranks.
        precision: of the forward pass.
        loss: of one group.
        dummy_batch: noise in the shape of the groups, never private; its first group is what a rank without groups computes.
    """

    name = "loop"

    def __init__(
        self, model: nn.Module, precision: Precision = "fp32", loss: GroupLoss = group_loss, *, dummy_batch: GroupBatch
    ) -> None:
        super().__init__(model)
        self._loss = LossOfViews(model, precision, loss)
        ranks = self.vector.group.size()
        self._blocks = [BlockGradient(module, ranks) for module in model.modules() if isinstance(module, FSDPModule)]
        self._dummy_batch = dummy_batch.first(1).views

    def add_clipped(
        self, batch: GroupBatch, clip_norm: float | Clip, into: Tensor, losses: list[Tensor] | None = None
    ) -> Tensor:
        """Adds the clipped gradients of one group of each rank at a time, of this rank's shards, to a flat vector.

        Returns only when the other ranks, too, have called it or `finish` as often as this rank has groups.

        Args:
            batch: this rank's groups.
            clip_norm: C, or another `Clip`.
            into: see `zeros`; added to in place.
            losses: see `Engine`; of this rank's groups.

        Returns:
            Gradient norms before clipping, of this rank's groups that have at least two records: private.
        """
        figures = [into.new_zeros(3, 0, dtype=torch.float64)]
        for views in batch.groups():
            self._anyone_has_a_group(True)
            norm, loss = self._wave(views, clip_norm, into)
            records = torch.full_like(norm, len(next(iter(views.values()))))
            figures.append(torch.stack([norm, loss.to(norm), records])[:, None].double())
        return shared_out(torch.cat(figures, dim=1), losses)

    def _idle(self, into: Tensor) -> None:
        self._wave(self._dummy_batch, 0.0, into)  # clipped to zero

    def _wave(self, views: Views, clip_norm: float | Clip, into: Tensor) -> tuple[Tensor, Tensor]:
        """One group of every rank: adds the sum of their clipped gradients, and returns this rank's own norm and loss."""
        records = len(next(iter(views.values())))
        loss = self._loss(views, torch.ones(records, dtype=torch.bool, device=into.device))
        for block in self._blocks:
            block.measure()
        loss.backward(retain_graph=True)
        # Scalars are not sharded, and so never leave this rank: the first pass is enough for them.
        scalars = {p: p.grad for p in self.vector.scalars if p.grad is not None}
        measured = [block.squares for block in self._blocks if block.squares is not None]
        measured += [squares(gradient) for gradient in scalars.values()]
        norm = torch.stack(measured).sum().sqrt()
        factor = clip_factors(norm, clip_norm)
        self._drop_gradients()
        for block in self._blocks:
            block.release(factor)
        loss.backward()
        for parameter, part in zip(self.vector.whole.parameters, self.vector.split(into), strict=True):
            if parameter in scalars:
                part.add_(scalars[parameter].nan_to_num(0.0, 0.0, 0.0) * factor.to(part.dtype))
            elif parameter.grad is not None:
                foreach.add_([part], [cast(DTensor, parameter.grad).to_local()])
        self._drop_gradients()
        return norm, loss.detach()

    def _drop_gradients(self) -> None:
        for parameter in self.vector.whole.parameters:
            parameter.grad = None
