"""The transport of a cluster: it broadcasts the parameters and reduces the workers' bounded sums.

A step has one broadcast of the trained parameters, in float32, and one reduction of the clipped sums to rank 0, as 64-bit
integers, whose sum is exact in any order (in runs without privacy, float32). Small messages precede the broadcast and the
reduction (`dpfed.cluster.link`). After the reduction, the coordinator on rank 0 adds the noise, charges the ledger and takes
the optimizer's step. So exactly one process adds noise to a sum, however many processes there are. Only rank 0 holds the
optimizer's state. All ranks have bit for bit the parameters that rank 0 sent. Sending parts of a sum earlier would gain
nothing: a group's clip factor needs the norm over all layers, so any element may change until the last group has been added.

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
    """Transport that adds up the sums of all ranks' workers. Rank 0 uses it as its `Transport`; other ranks call `follow`.

    Args:
        link: Messages to the other ranks.
        model: Complete model of this rank; the same on all ranks.
        worker: Worker that computes this rank's sums.
    """

    def __init__(self, link: Link, model: nn.Module, worker: Worker) -> None:
        self._link, self._vector, self._worker = link, TrainableVector(model), worker

    def set_clip_threshold(self, threshold: float) -> None:
        """Sets the clipping threshold on rank 0; see `Transport`.

        If the plan releases statistics of the groups, each step sends the threshold to the other ranks. Otherwise, the
        threshold has no effect.
        """
        self._worker.threshold = threshold

    def aggregate(self, step: int) -> BoundedSum:
        """Returns the sum of all workers in a step, on rank 0. See `Transport`.

        Raises:
            UserError: If a worker could not compute its sum.
        """
        self._link.announce(step)
        return self._take_part(step)

    def follow(self) -> None:
        """Takes part in the steps that rank 0 announces, until rank 0 announces the end. Only ranks above 0 call it."""
        while (step := self._link.announce(None)) is not None:
            with contextlib.suppress(UserError):  # rank 0 reports the error as well, and announces the end
                self._take_part(step)

    def _take_part(self, step: int) -> BoundedSum:
        """Computes and sends this rank's sum; returns the sum of all workers on rank 0, and an unused sum on other ranks.

        Raises:
            UserError: If a worker could not compute its sum. Every rank raises the error.
        """
        parameters = self._vector.gather()  # trained ones only; frozen ones are not sent
        dist.broadcast(parameters, 0)
        if self._link.rank:
            self._vector.assign(parameters)
        if self._worker.asks_about_norms:
            self._worker.threshold = self._link.broadcast_number(self._worker.threshold)
        try:
            bounded = self._worker.bounded_sum(step)
        except UserError:  # the other ranks must not wait for this sum; the reason may name a record, so it is not sent
            bounded = None
        reports = self._link.gather([0, 0] if bounded is None else [1, bounded.groups])
        failed = [self._link.worker(rank) for rank, (there, _) in enumerate(reports) if not there]
        if bounded is None or failed:
            raise UserError(
                f"step {step}: {', '.join(failed)} could not compute the sum of its records. Check the store on that "
                "machine; the reason is not shown, because it may name a record. [worker-store]"
            )
        dist.reduce(bounded.values, 0)
        return BoundedSum(bounded.values, bounded.sensitivity, sum(groups for _, groups in reports), unit=bounded.unit)
