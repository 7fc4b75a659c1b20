"""Messages between the processes of a cluster: what rank 0 announces, and what all report back.

Everything here is small and lies in main memory; parameters and sums travel in `cluster.collective`.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from dpfed.errors import UserError

_TEXT_BYTES = 1024  # of a report: enough for a sentence
_STEP, _END = 1, 0


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
        header = torch.tensor([_END, 0] if step is None else [_STEP, step])
        dist.broadcast(header, 0)
        kind, number = header.tolist()
        return number if kind == _STEP else None

    def gather(self, numbers: list[int]) -> list[list[int]]:
        """Every rank's numbers, as many from each, by rank."""
        return [row.tolist() for row in self._all(torch.tensor(numbers))]

    def agree(self, trouble: str = "") -> None:
        """Tells rank 0 whether every rank can go on.

        Args:
            trouble: why this rank cannot; all ranks learn it, so it must hold nothing private.

        Raises:
            UserError: on rank 0, with the first trouble.
        """
        own = torch.zeros(_TEXT_BYTES, dtype=torch.uint8)
        content = _bytes(trouble.encode()[:_TEXT_BYTES])
        own[: len(content)] = content
        for rank, report in enumerate(self._all(own)):
            text = report.numpy().tobytes().rstrip(b"\0").decode(errors="replace")
            if text and self.rank == 0:
                raise UserError(f"worker {rank}: {text}")

    def _all(self, own: Tensor) -> list[Tensor]:
        everyone = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(everyone, own)
        return everyone


def _bytes(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)
