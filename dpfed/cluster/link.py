"""Messages between the processes of a cluster: announcements of rank 0, and reports of all ranks.

The messages are small, and their tensors are in CPU memory.
"""

from __future__ import annotations

import socket

import torch
import torch.distributed as dist
from torch import Tensor

from dpfed.errors import UserError

DIGEST_BYTES = 16
MARK_BYTES = 3 * DIGEST_BYTES  # digests that ranks compare: of the records, of the user's code, of the plan
_HOST_BYTES, _TEXT_BYTES = 64, 1024  # bytes of a report for the host's name and for a sentence


class Link:
    """Sends and receives the messages of one process. The default process group must exist, and must carry CPU tensors.

    Attributes:
        rank: Rank of this process; rank 0 is the coordinator.
        size: Number of processes.
    """

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._hosts: list[str] = []

    def worker(self, rank: int) -> str:
        """Returns a process's name for messages, with its host once the host is known."""
        return f"worker {rank} on {self._hosts[rank]}" if self._hosts else f"worker {rank}"

    def broadcast(self, content: bytes = b"") -> bytes:
        """Sends rank 0's bytes to all ranks, and returns them. The argument of other ranks is ignored."""
        length = torch.tensor([len(content)])
        dist.broadcast(length, 0)
        message = _bytes(content) if self.rank == 0 else torch.empty(int(length), dtype=torch.uint8)
        if len(message):
            dist.broadcast(message, 0)
        return message.numpy().tobytes()

    def announce(self, step: int | None) -> int | None:
        """Sends the number of rank 0's next step to all ranks, and returns this number; ``None``: no further step follows.

        The argument of other ranks is ignored.
        """
        number = torch.tensor(-1 if step is None else step)
        dist.broadcast(number, 0)
        return int(number) if number >= 0 else None

    def broadcast_number(self, number: float) -> float:
        """Sends rank 0's number to all ranks, and returns it. The argument of other ranks is ignored."""
        shared = torch.tensor(number, dtype=torch.float64)
        dist.broadcast(shared, 0)
        return shared.item()

    def gather(self, numbers: list[int]) -> list[list[int]]:
        """Gathers the lists of all ranks, in the order of ranks. The lists must have the same length."""
        return [row.tolist() for row in self._all(torch.tensor(numbers))]

    def agree(self, mark: bytes, trouble: str = "") -> None:
        """Checks that every rank can continue, and that all ranks have the same records, code and plan.

        Args:
            mark: Digests of records, user's code and plan, `MARK_BYTES` bytes in all, which must be the same on all ranks;
                ignored if `trouble` is given.
            trouble: Reason why this rank cannot continue; empty if it can. All ranks see the reason, so it must not be private.

        Raises:
            UserError: If a rank cannot continue, or the digests differ. All ranks raise the error of the lowest such rank.
        """
        message = torch.zeros(MARK_BYTES + _HOST_BYTES + _TEXT_BYTES, dtype=torch.uint8)
        host = socket.gethostname().encode()[:_HOST_BYTES].ljust(_HOST_BYTES, b"\0")
        content = _bytes(mark.ljust(MARK_BYTES, b"\0") + host + trouble.encode()[:_TEXT_BYTES])
        message[: len(content)] = content
        reports = [report.numpy().tobytes() for report in self._all(message)]
        self._hosts = [_text(report[MARK_BYTES:][:_HOST_BYTES]) for report in reports]
        for rank, report in enumerate(reports):
            if text := _text(report[MARK_BYTES + _HOST_BYTES :]):
                raise UserError(f"{self.worker(rank)}: {text}")
            starts = range(0, MARK_BYTES, DIGEST_BYTES)
            records, code, plan = (report[at:][:DIGEST_BYTES] != reports[0][at:][:DIGEST_BYTES] for at in starts)
            if records:  # first: the plan follows from their number, too
                raise UserError(
                    f"{self.worker(rank)} has different records from worker 0: data.path or data.stores must lead to the same "
                    "store on all machines. [worker-other-records]"
                )
            if code:
                raise UserError(
                    f"{self.worker(rank)} and worker 0 have different versions of your own code: install the same packages "
                    "on all machines. [worker-other-code]"
                )
            if plan:
                raise UserError(
                    f"{self.worker(rank)} and worker 0 compute different plans from the same configuration and records: "
                    "install the same release of dpfed on all machines. [worker-other-plan]"
                )

    def _all(self, tensor: Tensor) -> list[Tensor]:
        """Returns the tensors of all ranks, in the order of ranks."""
        everyone = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(everyone, tensor)
        return everyone


def _text(padded: bytes) -> str:
    return padded.rstrip(b"\0").decode(errors="replace")


def _bytes(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)
