"""Messages between the processes of a cluster: what rank 0 announces, and what all report back.

They are small and lie in main memory.
"""

from __future__ import annotations

import socket

import torch
import torch.distributed as dist
from torch import Tensor

from dpfed.errors import UserError

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

    def broadcast_number(self, number: float) -> float:
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
                    f"{self.worker(rank)} does not find the records, or the code of your own, that worker 0 finds: data.path "
                    "and data.stores must be the same store on all machines, and packages the same. [worker-other-records]"
                )

    def _all(self, own: Tensor) -> list[Tensor]:
        everyone = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(everyone, own)
        return everyone


def _text(padded: bytes) -> str:
    return padded.rstrip(b"\0").decode(errors="replace")


def _bytes(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)
