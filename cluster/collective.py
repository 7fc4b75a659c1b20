"""The transport of a cluster: parameters out, bounded sums in.

A step is one broadcast of the trained parameters and one reduction of the clipped sums onto rank 0, in float32. Together they
move what one all-reduce moves. Between the two, on rank 0 alone, the coordinator adds the noise, pays and takes the optimizer's
step: so exactly one process adds noise, however many there are, one holds the optimizer's state, and all hold the very bits
that rank 0 sent. Sending parts of a sum earlier would gain nothing: a group's clip factor needs the norm over all its layers,
so any element may change until the last group is in, and what is sent then is as long as the whole.

The sums travel without noise: the network between the workers lies inside the trust boundary.
"""

from __future__ import annotations

import contextlib
import hashlib
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from cluster.link import Link
from dpfed.bounding.bounded_sum import BoundedSum
from dpfed.errors import UserError
from dpfed.models.parameters import BroadcastVector
from dpfed.training.worker import Worker

CHECK_EVERY = 50  # steps between comparisons of all ranks' weights


class Exchange(Protocol):
    """How parameters and sums travel."""

    def hand_out(self) -> None:
        """Gives every rank what it needs of rank 0's trained parameters."""

    def bring_in(self, own: Tensor) -> Tensor:
        """Adds all ranks' sums up on rank 0: ``(P,)`` float32 there, nothing of use elsewhere. May overwrite `own`."""

    def checksum(self) -> int:
        """A number that must be the same on all ranks."""


class Replicas:
    """Every rank holds the whole model.

    Args:
        model: this rank's, the same on all.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model, self._vector = model, BroadcastVector(model)

    def hand_out(self) -> None:
        """See `Exchange`: frozen parameters stay where they are."""
        parameters = self._vector.gather()
        dist.broadcast(parameters, 0)
        if dist.get_rank():
            self._vector.assign(parameters)

    def bring_in(self, own: Tensor) -> Tensor:
        """See `Exchange`."""
        dist.reduce(own, 0)
        return own

    def checksum(self) -> int:
        """See `Exchange`: a 64-bit hash of all weights and buffers."""
        digest = hashlib.blake2b(digest_size=8)
        for value in self._model.state_dict().values():
            digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
        return int.from_bytes(digest.digest(), "little", signed=True)


class Collective:
    """Joins the workers of all ranks; rank 0 uses it as its `Transport`, the others `serve`.

    Args:
        link: to the other ranks.
        exchange: carries parameters and sums.
        worker: computes this rank's sums.
    """

    def __init__(self, link: Link, exchange: Exchange, worker: Worker) -> None:
        self._link, self._exchange, self._worker, self._steps = link, exchange, worker, 0

    def tell(self, threshold: float) -> None:
        """See `Transport`; on rank 0, and each step hands it out."""
        self._worker.threshold = threshold

    def collect(self, step: int) -> BoundedSum:
        """See `Transport`; on rank 0.

        Raises:
            UserError: if a worker could not compute its sum, or holds other weights.
        """
        self._link.announce(step)
        return self._take_part(step)

    def serve(self) -> None:
        """Takes part in each step that rank 0 announces, until it announces the end; on the other ranks."""
        while (step := self._link.announce(None)) is not None:
            with contextlib.suppress(UserError):  # rank 0 says it, too, and announces the end
                self._take_part(step)

    def _take_part(self, step: int) -> BoundedSum:
        self._exchange.hand_out()
        if self._worker.asks_about_norms:
            self._worker.threshold = self._link.share(self._worker.threshold)
        if self._steps % CHECK_EVERY == 0:
            self._compare(step)
        self._steps += 1
        try:
            own = self._worker.bounded_sum(step)
        except UserError:  # the others must not wait for a sum that never comes; the reason may name a record
            own = None
        reports = self._link.gather([0, 0] if own is None else [1, own.groups])
        failed = [str(rank) for rank, (there, _) in enumerate(reports) if not there]
        if own is None or failed:
            raise UserError(f"step {step}: worker {', '.join(failed)} cannot read its records any more: check the store.")
        total = self._exchange.bring_in(own.values)
        return BoundedSum(total, own.sensitivity, sum(groups for _, groups in reports))

    def _compare(self, step: int) -> None:
        """Compares all ranks' weights, bit for bit."""
        sums = [row[0] for row in self._link.gather([self._exchange.checksum()])]
        different = [str(rank) for rank, value in enumerate(sums) if value != sums[0]]
        if different:
            raise UserError(
                f"step {step}: the weights of worker {', '.join(different)} are not those of worker 0: resume the run on other "
                "machines (memory may be faulty). The guarantee holds; the model may have learnt from wrong gradients."
            )
