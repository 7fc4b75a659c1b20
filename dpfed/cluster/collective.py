"""The transport of a cluster: parameters out, bounded sums in.

A step is one broadcast of the trained parameters, in float32, and one reduction of the clipped sums onto rank 0, as whole
numbers of 64 bits: exact in any order. Small messages go before them and between them (`dpfed.cluster.link`). After the
reduction, on rank 0 alone, the coordinator adds the noise, pays and takes the optimizer's step: so exactly one process adds
noise, however many there are, one holds the optimizer's state, and all hold the very bits that rank 0 sent. Sending parts of a
sum earlier would gain nothing: a group's clip factor needs the norm over all its layers, so any element may change until the
last group is in.

The sums travel without noise: the network between the workers lies inside the trust boundary.
"""

from __future__ import annotations

import contextlib

import torch.distributed as dist
from torch import nn

from dpfed.bounding.bounded_sum import BoundedSum
from dpfed.cluster.link import Link
from dpfed.errors import UserError
from dpfed.models.parameters import TrainableVector
from dpfed.training.worker import Worker


class Collective:
    """Joins the workers of all ranks; rank 0 uses it as its `Transport`, the others `follow`.

    Args:
        link: to the other ranks.
        model: this rank's, whole, and the same on all.
        worker: computes this rank's sums.
    """

    def __init__(self, link: Link, model: nn.Module, worker: Worker) -> None:
        self._link, self._vector, self._worker = link, TrainableVector(model), worker

    def set_clip_threshold(self, threshold: float) -> None:
        """See `Transport`; on rank 0, and each step hands it out."""
        self._worker.threshold = threshold

    def aggregate(self, step: int) -> BoundedSum:
        """See `Transport`; on rank 0.

        Raises:
            UserError: if a worker could not compute its sum.
        """
        self._link.announce(step)
        return self._take_part(step)

    def follow(self) -> None:
        """Takes part in the steps that rank 0 announces, until it announces the end; on the other ranks."""
        while (step := self._link.announce(None)) is not None:
            with contextlib.suppress(UserError):  # rank 0 says it, too, and announces the end
                self._take_part(step)

    def _take_part(self, step: int) -> BoundedSum:
        parameters = self._vector.gather()  # frozen ones stay where they are
        dist.broadcast(parameters, 0)
        if self._link.rank:
            self._vector.assign(parameters)
        if self._worker.asks_about_norms:
            self._worker.threshold = self._link.broadcast_number(self._worker.threshold)
        try:
            own = self._worker.bounded_sum(step)
        except UserError:  # the others must not wait for a sum that never comes; the reason may name a record
            own = None
        reports = self._link.gather([0, 0] if own is None else [1, own.groups])
        failed = [self._link.worker(rank) for rank, (there, _) in enumerate(reports) if not there]
        if own is None or failed:
            raise UserError(f"step {step}: {', '.join(failed)} cannot read the records: check the store there. [worker-store]")
        dist.reduce(own.values, 0)
        return BoundedSum(own.values, own.sensitivity, sum(groups for _, groups in reports), unit=own.unit)
