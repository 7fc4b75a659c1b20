"""What engines of sharded models have in common: ranks go in lockstep, in waves, since each gathers its parameters from all.

A rank that has no group left takes part with noise that is multiplied by zero. So every rank learns how many groups the longest
step has; ranks are one organisation's, on one side of the trust boundary.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
import torch.distributed as dist
from torch import Tensor, nn

from cluster.sharded_vector import ShardedVector
from dpfed.bounding.engines import Engine


class LockstepEngine(Engine):
    """An engine for a model that `shard_model` has cut up. It returns only when the other ranks have come as far.

    Args:
        model: sharded, the same on all ranks.

    Attributes:
        vector: this rank's part of the flat vector, and the way from and to the whole one.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.vector = ShardedVector(model)

    def zeros(self) -> Tensor:
        """An empty sum: the vector of this rank's shards, about P / W numbers, float64 where the device has it."""
        return self.vector.zeros()

    def finish(self, into: Tensor) -> Tensor:
        """Takes part until every rank is through; every rank calls it once per step, with or without groups.

        Args:
            into: what `add_clipped` added to, from `zeros` on.

        Returns:
            The sum over all ranks' groups, of this rank's shards.
        """
        while self._anyone_has_a_group(False):
            self._idle(into)
        for parameter, part in zip(self.vector.whole.parameters, self.vector.split(into), strict=True):
            if parameter.dim() == 0:
                dist.all_reduce(part, group=self.vector.group)
        return into

    @abstractmethod
    def _idle(self, into: Tensor) -> None:
        """Takes part in a wave without groups of its own: adds what the others' groups have for this rank's shards."""

    def _anyone_has_a_group(self, here: bool) -> bool:
        """Whether a wave begins: asked by every rank at once, and true as soon as one rank has a group."""
        groups = torch.tensor(int(here), device=self.vector.whole.device)
        dist.all_reduce(groups, group=self.vector.group)
        return here or bool(groups)  # a rank that has one need not wait for its device to know
