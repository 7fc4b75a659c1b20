"""The transport of a cluster: parameters out, bounded sums in.

A step is one broadcast of the trained parameters and one reduction of the clipped sums onto rank 0, in float32. Together they
move what one all-reduce moves. Between the two, on rank 0 alone, the coordinator adds the noise, pays and takes the optimizer's
step: so exactly one process adds noise, however many there are, one holds the optimizer's state, and all hold the very bits
that rank 0 sent. Sending parts of a sum earlier would gain nothing: a group's clip factor needs the norm over all its layers,
so any element may change until the last group is in, and what is sent then is as long as the whole.

Where sums are long, all ranks hold a slice of each instead, and share the coordinator's work (`slices.py`): which way
it is follows from the number of trained parameters, not from the number of ranks, and what is released has the same bits.

The sums travel without noise: the network between the workers lies inside the trust boundary.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dpfed.bounding.bounded_sum import BoundedSum
from dpfed.cluster.link import Link
from dpfed.cluster.orders import Order
from dpfed.cluster.sharing import Sharing
from dpfed.cluster.sliced_state import collect, spread
from dpfed.cluster.slices import Slices
from dpfed.errors import UserError
from dpfed.models.parameters import BroadcastVector, TrainableVector
from dpfed.runs.assembly import Components
from dpfed.training.coordinator import Coordinator
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
        parts: of the run, where ranks may share sums out among themselves; ``None``: rank 0 does all of the coordinator's work.
    """

    def __init__(self, link: Link, exchange: Exchange, worker: Worker, parts: Components | None = None) -> None:
        self._link, self._exchange, self._worker, self._steps, self._parts = link, exchange, worker, 0, parts
        self._slices: Slices | None = None

    def share_out(self, coordinator: Coordinator, releases: Path) -> None:
        """See `Shared`; on rank 0."""
        if self._parts is None or not coordinator.can_share:
            return
        self._link.order(Order.SHARE)
        slices = self._hold_a_slice(coordinator, releases)
        coordinator.share_out(Sharing(self._link, slices, TrainableVector(self._parts.model), coordinator))

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
        """Does what rank 0 orders, until it orders the end; on the other ranks."""
        while (order := self._link.order())[0] is not Order.END:
            with contextlib.suppress(UserError):  # rank 0 says it, too, and orders the end
                self._obey(*order)

    def _obey(self, order: Order, step: int) -> None:
        if order is Order.STEP:
            self._take_part(step)
        elif order is Order.SHARE:
            self._hold_a_slice()
        elif self._slices is None:
            raise ValueError(f"rank 0 orders {order.name}, and this rank holds no slice")
        elif order is Order.HASH:
            self._slices.hash()
        elif order is Order.NOISE:
            self._slices.make_noisy()
        elif order is Order.KEEP:
            self._slices.keep()
        elif order is Order.REPEAT:
            self._slices.take_up()
        elif order is Order.UPDATE:
            self._slices.take_step(step)
        else:
            assert self._parts is not None  # otherwise there would be no slice
            collect(self._link, self._slices, TrainableVector(self._parts.model))

    def _hold_a_slice(self, coordinator: Coordinator | None = None, releases: Path | None = None) -> Slices:
        """From now on, each rank holds a slice of every sum, and of the optimizer's state."""
        assert self._parts is not None  # the same on all ranks
        parts, blocks = self._parts, None if coordinator is None else coordinator.blocks
        slices = Slices(self._link, parts.plan, parts.model, parts.config.optimizer, self._exchange.checksum, blocks, releases)
        spread(self._link, slices, TrainableVector(parts.model), coordinator)
        self._exchange = self._slices = slices
        return slices

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
