"""A cluster whose workers share one copy of the model: each holds a part of every parameter."""

from __future__ import annotations

import copy
import math

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from cluster.lockstep import LockstepEngine
from cluster.sharded_layers import ShardedLayerwiseEngine
from cluster.sharded_vector import ShardedVector, shard_model
from cluster.sharding import ShardedEngine
from dpfed.bounding.bounded_sum import Clip
from dpfed.bounding.engines import GroupBatch
from dpfed.errors import UserError
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


def shard(parts: Components) -> tuple[Shards, nn.Module, LockstepEngine]:
    """Divides a model, the same on all ranks, among them.

    Args:
        parts: of the run, with the model on the CPU; on the ranks but 0 that very model is cut up.

    Returns:
        The exchange, and the sharded model with the engine that the configuration names.

    Raises:
        UserError: on all ranks, if the model cannot be sharded, or the engine does not fit it.
    """
    device = pick_device(parts.config.training.device)
    model = copy.deepcopy(parts.model) if dist.get_rank() == 0 else parts.model
    shard_model(model, init_device_mesh(device.type, (dist.get_world_size(),)))
    config, loss, dummy_batch = parts.config, parts.plan.method.loss(parts.config), parts.dummy_batch(device)
    engine: LockstepEngine = ShardedEngine(model, config.training.precision, loss, dummy_batch=dummy_batch)
    if config.bounding.engine == "layerwise":
        two_pass, few = engine, parts.dummy_batch(device, few=True)
        size = parts.plan.method.contrasted(config)
        engine = ShardedLayerwiseEngine(model, loss, group_size=size, dummy_batch=dummy_batch)
        require_alike(engine, two_pass, few)
    return Shards(parts.model, engine.vector), model, engine


_DIFFERENCE = 1e-3  # relative, between engines that compute the same


def require_alike(engine: LockstepEngine, oracle: LockstepEngine, batch: GroupBatch) -> None:
    """Refuses an engine that does not come to another one's sum; all ranks call it, and come to the same answer.

    Args:
        engine: in question.
        oracle: of the same model.
        batch: a few groups of noise, the same on all ranks.

    Raises:
        UserError: saying which to use.
    """
    sums = []
    for one in (oracle, engine):
        into = one.zeros()
        one.add_clipped(batch, Clip(1.0, math.inf), into)  # of one length: a group that is taken for another shows
        sums.append(one.finish(into))
    lengths = torch.stack([(sums[1] - sums[0]).square().sum(), sums[0].square().sum()])
    dist.all_reduce(lengths, group=engine.vector.group)
    if not lengths[0] <= _DIFFERENCE**2 * lengths[1]:
        raise UserError(
            f"bounding.engine = '{engine.name}' does not come to the gradients of this sharded model: set bounding.engine = "
            f"'{oracle.name}'."
        )
