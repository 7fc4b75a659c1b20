"""The transport of a cluster: parameters out, bounded sums in.

A step is one broadcast of the trained parameters, in float32, and one reduction of the clipped sums onto rank 0, as whole
numbers of 64 bits: exact in any order. Between the two, on rank 0 alone, the coordinator adds the noise, pays and takes the
optimizer's step: so exactly one process adds noise, however many there are, one holds the optimizer's state, and all hold the
very bits that rank 0 sent. Sending parts of a sum earlier would gain nothing: a group's clip factor needs the norm over all
its layers, so any element may change until the last group is in, and what is sent then is as long as the whole.

The sums travel without noise: the network between the workers lies inside the trust boundary.

Also here: messages between the processes of a cluster (`Link`): what rank 0 announces, and what all report back. They are small
and lie in main memory.
"""

from __future__ import annotations

import contextlib
import socket

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dpfed.bounding.bounded_sum import BoundedSum
from dpfed.errors import UserError
from dpfed.models.parameters import TrainableVector
from dpfed.training.worker import Worker

MARK_BYTES = 16  # of what ranks compare
_HOST_BYTES, _TEXT_BYTES = 64, 1024  # of a report: a host's name, and enough for a sentence


class Link:
    """One process's end of the line. Needs an initialised default process group that can send CPU tensors.

    Attributes:
        rank: of this process; rank 0 is the coordinator.
        size: number of processes.
    """

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._hosts: list[str] = []

    def worker(self, rank: int) -> str:
        """Names a process, with its host once that is known."""
        return f"worker {rank} on {self._hosts[rank]}" if self._hosts else f"worker {rank}"

    def broadcast(self, content: bytes = b"") -> bytes:
        """Hands rank 0's bytes to all; what other ranks pass in is ignored."""
        length = torch.tensor([len(content)])
        dist.broadcast(length, 0)
        message = _bytes(content) if self.rank == 0 else torch.empty(int(length), dtype=torch.uint8)
        if len(message):
            dist.broadcast(message, 0)
        return message.numpy().tobytes()

    def announce(self, step: int | None) -> int | None:
        """Hands rank 0's next step to all; ``None``: there is none. What other ranks pass in is ignored."""
        number = torch.tensor(-1 if step is None else step)
        dist.broadcast(number, 0)
        return int(number) if number >= 0 else None

    def share(self, number: float) -> float:
        """Hands rank 0's number to all; what other ranks pass in is ignored."""
        shared = torch.tensor(number, dtype=torch.float64)
        dist.broadcast(shared, 0)
        return shared.item()

    def gather(self, numbers: list[int]) -> list[list[int]]:
        """Every rank's numbers, as many from each, by rank."""
        return [row.tolist() for row in self._all(torch.tensor(numbers))]

    def agree(self, mark: bytes, trouble: str = "") -> None:
        """Continues if every rank can, and all have the same records and plan.

        Args:
            mark: `MARK_BYTES` that must be the same on all ranks; of no matter on one in trouble.
            trouble: why this rank cannot continue; all ranks learn it, so it must hold nothing private.

        Raises:
            UserError: on every rank, with the first trouble.
        """
        own = torch.zeros(MARK_BYTES + _HOST_BYTES + _TEXT_BYTES, dtype=torch.uint8)
        host = socket.gethostname().encode()[:_HOST_BYTES].ljust(_HOST_BYTES, b"\0")
        content = _bytes(mark.ljust(MARK_BYTES, b"\0") + host + trouble.encode()[:_TEXT_BYTES])
        own[: len(content)] = content
        reports = [report.numpy().tobytes() for report in self._all(own)]
        self._hosts = [_text(report[MARK_BYTES:][:_HOST_BYTES]) for report in reports]
        for rank, report in enumerate(reports):
            if text := _text(report[MARK_BYTES + _HOST_BYTES :]):
                raise UserError(f"{self.worker(rank)}: {text}")
            if report[:MARK_BYTES] != reports[0][:MARK_BYTES]:
                raise UserError(
                    f"{self.worker(rank)} does not find the records that worker 0 finds: data.path and data.stores must be the "
                    "same store on all machines. [worker-other-records]"
                )

    def _all(self, own: Tensor) -> list[Tensor]:
        everyone = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(everyone, own)
        return everyone


def _text(padded: bytes) -> str:
    return padded.rstrip(b"\0").decode(errors="replace")


def _bytes(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)


class Collective:
    """Joins the workers of all ranks; rank 0 uses it as its `Transport`, the others `serve`.

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

    def serve(self) -> None:
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
            self._worker.threshold = self._link.share(self._worker.threshold)
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
