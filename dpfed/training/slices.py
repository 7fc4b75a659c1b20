"""Which blocks of a sum each of several processes holds, and that part of a model's parameters."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dpfed.models.parameters import TrainableVector
from dpfed.privacy.blocks import Blocks


@dataclass(frozen=True)
class Slice:
    """Contiguous blocks of a sum, all of one process.

    Attributes:
        blocks: how the sum is cut.
        first: block.
        end: the block behind the last one.
    """

    blocks: Blocks
    first: int
    end: int

    @property
    def place(self) -> slice:
        """Where it lies in the sum."""
        return self.blocks.place(self.first, self.end)

    @property
    def numel(self) -> int:
        """Numbers in it."""
        return self.place.stop - self.place.start

    @property
    def count(self) -> int:
        """Blocks in it."""
        return self.end - self.first


def slices_of(blocks: Blocks, owners: int) -> list[Slice]:
    """Every owner's blocks: as many for each, but for one that some of the first have more.

    Args:
        blocks: how the sum is cut.
        owners: how many processes share it.
    """
    edges = [(owner * blocks.count + owners - 1) // owners for owner in range(owners + 1)]
    return [Slice(blocks, first, end) for first, end in zip(edges, edges[1:], strict=False)]


class SlicedVector:
    """A slice of the flat vector of a model's trainable parameters: views of those numbers, piece by piece.

    Attributes:
        parameters: the pieces ``(n,)``, each of one parameter, which they share memory with.
        pieces: of each, the parameter's index.
        start: where the slice begins in the vector; statistics behind the vector are in no slice of it.
        numel: numbers in it.

    Args:
        model: whose trainable parameters are contiguous, see `can_be_sliced`.
        place: of the slice in the sum.
    """

    def __init__(self, model: nn.Module, place: slice) -> None:
        whole = TrainableVector(model)
        self.parameters: list[nn.Parameter] = []
        self.pieces: list[int] = []
        self.device = whole.device
        begin = 0
        for index, parameter in enumerate(whole.parameters):
            start, stop = max(place.start - begin, 0), min(place.stop - begin, parameter.numel())
            if start < stop:
                self.parameters.append(nn.Parameter(parameter.data.view(-1)[start:stop]))
                self.pieces.append(index)
            begin += parameter.numel()
        self.start = min(place.start, whole.numel)
        self.numel = min(place.stop, whole.numel) - self.start

    def split(self, flat: Tensor) -> list[Tensor]:
        """Views into a flat ``(numel,)`` vector, one per piece."""
        return list(flat.split([piece.numel() for piece in self.parameters]))

    def gather(self) -> Tensor:
        """A flat copy of the slice ``(numel,)``."""
        return self.joined([piece.detach() for piece in self.parameters])

    def joined(self, parts: list[Tensor]) -> Tensor:
        """Numbers of all pieces, end to end, float32."""
        return torch.cat([torch.zeros(0, device=self.device), *(part.float() for part in parts)])


def can_be_sliced(model: nn.Module) -> bool:
    """Whether slices of the trainable parameters can share their memory."""
    parameters = TrainableVector(model).parameters
    return all(parameter.is_contiguous() and parameter.dtype == torch.float32 for parameter in parameters)
