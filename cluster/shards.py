"""A cluster whose workers share one copy of the model: each holds a part of every parameter."""

from __future__ import annotations

import copy

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from cluster.sharded_vector import ShardedVector, shard_model
from cluster.sharding import ShardedEngine
from dpfed.models.parameters import TrainableVector
from dpfed.runs.assembly import Components
from dpfed.runs.resolution import pick_device


class Shards:
    """The `Exchange` of sharded models: every rank gets its part of the parameters and brings in its part of the sum.

    Args:
        whole: rank 0's model on the CPU, which the coordinator updates; not used elsewhere.
        vector: this rank's part of the sharded model.
    """

    def __init__(self, whole: nn.Module, vector: ShardedVector) -> None:
        self._whole, self._vector = TrainableVector(whole), vector

    def hand_out(self) -> None:
        """See `Exchange`."""
        self._vector.scatter_parameters(self._whole.gather() if dist.get_rank() == 0 else None)

    def bring_in(self, own: Tensor) -> Tensor:
        """See `Exchange`; the ranks' sums of gradients were added up while they were computed.

        Statistics behind them, if there are any, are whole on every rank.
        """
        shards = self._vector.numel
        statistics = own[shards:]
        if len(statistics):
            dist.reduce(statistics, 0)
        total = self._vector.gather_sum(own[:shards])
        return own if total is None else torch.cat([total, statistics.cpu()])

    def checksum(self) -> int:
        """See `Exchange`: no two ranks hold the same parameters, so nothing is compared; trained ones are sent in each step."""
        return 0


def shard(parts: Components) -> tuple[Shards, nn.Module, ShardedEngine]:
    """Divides a model, the same on all ranks, among them.

    Args:
        parts: of the run, with the model on the CPU; on the ranks but 0 that very model is cut up.

    Returns:
        The exchange, and the sharded model with its engine.

    Raises:
        UserError: if the model cannot be sharded.
    """
    device = pick_device(parts.config.training.device)
    model = copy.deepcopy(parts.model) if dist.get_rank() == 0 else parts.model
    shard_model(model, init_device_mesh(device.type, (dist.get_world_size(),)))
    config = parts.config
    engine = ShardedEngine(
        model, config.training.precision, parts.plan.method.loss(config), dummy_batch=parts.dummy_batch(device)
    )
    return Shards(parts.model, engine.vector), model, engine
