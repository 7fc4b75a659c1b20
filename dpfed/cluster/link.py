"""Messages between the processes of a cluster: what rank 0 announces, and what all report back.

Everything here is small and lies in main memory; parameters and sums travel in `dpfed.cluster.collective`.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from dpfed.cluster.orders import Order
from dpfed.errors import UserError

MARK_BYTES = 16  # of what ranks compare
_TEXT_BYTES = 1024  # of a report: enough for a sentence


class Link:
    """One process's end of the line. Needs an initialised default process group that can send CPU tensors.

    Attributes:
        rank: of this process; rank 0 is the coordinator.
        size: number of processes.
    """

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def broadcast(self, content: bytes = b"") -> bytes:
        """Hands rank 0's bytes to all; what other ranks pass in is ignored."""
        length = torch.tensor([len(content)])
        dist.broadcast(length, 0)
        message = _bytes(content) if self.rank == 0 else torch.empty(int(length), dtype=torch.uint8)
        if len(message):
            dist.broadcast(message, 0)
        return message.numpy().tobytes()

    def announce(self, step: int | None) -> int | None:
        """Hands rank 0's next step to all; ``None``: there is none."""
        kind, number = self.order(Order.END if step is None else Order.STEP, step or 0)
        return number if kind is Order.STEP else None

    def order(self, kind: Order = Order.END, number: int = 0) -> tuple[Order, int]:
        """Hands what rank 0 asks for next to all, and a number with it; what other ranks pass in is ignored."""
        header = torch.tensor([kind, number])
        dist.broadcast(header, 0)
        kind, number = header.tolist()
        return Order(kind), number

    def scatter(self, contents: list[bytes] | None, length: int) -> bytes:
        """Hands each rank its own bytes, which no other rank sees.

        Args:
            contents: by rank, on rank 0; ignored elsewhere.
            length: of each.
        """
        own = torch.empty(length, dtype=torch.uint8)
        dist.scatter(own, [_bytes(content) for content in contents or ()] if self.rank == 0 else None, 0)
        return own.numpy().tobytes()

    def report(self, own: Tensor) -> list[Tensor]:
        """Every rank's numbers, as many from each, by rank: on rank 0, and nothing elsewhere."""
        everyone = [torch.empty_like(own) for _ in range(self.size)] if self.rank == 0 else None
        dist.gather(own, everyone, 0)
        return everyone or []

    def share(self, number: float) -> float:
        """Hands rank 0's number to all; what other ranks pass in is ignored."""
        shared = torch.tensor(number, dtype=torch.float64)
        dist.broadcast(shared, 0)
        return shared.item()

    def gather(self, numbers: list[int]) -> list[list[int]]:
        """Every rank's numbers, as many from each, by rank."""
        return [row.tolist() for row in self._all(torch.tensor(numbers))]

    def agree(self, mark: bytes, trouble: str = "") -> None:
        """Goes on if every rank can, and all have the same records and plan.

        Args:
            mark: `MARK_BYTES` that must be the same on all ranks; of no matter on one in trouble.
            trouble: why this rank cannot go on; all ranks learn it, so it must hold nothing private.

        Raises:
            UserError: on every rank, with the first trouble.
        """
        own = torch.zeros(MARK_BYTES + _TEXT_BYTES, dtype=torch.uint8)
        content = _bytes(mark.ljust(MARK_BYTES, b"\0") + trouble.encode()[:_TEXT_BYTES])
        own[: len(content)] = content
        reports = [report.numpy().tobytes() for report in self._all(own)]
        for rank, report in enumerate(reports):
            text = report[MARK_BYTES:].rstrip(b"\0").decode(errors="replace")
            if text:
                raise UserError(f"worker {rank}: {text}")
            if report[:MARK_BYTES] != reports[0][:MARK_BYTES]:
                raise UserError(
                    f"worker {rank} does not find the records that worker 0 finds: data.path and data.stores must be the same "
                    "store on all machines."
                )

    def _all(self, own: Tensor) -> list[Tensor]:
        everyone = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(everyone, own)
        return everyone


def _bytes(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)
