"""Which rows of a layer's input and output belong to which group.

Shapes: n records, k rows of a layer's leading dimension for each record (its views, or their tokens). The groups stand one
after the other; records behind the last group are fillers and belong to none. Every figure of a group is computed from the
group's own rows, in a shape that only the group's own size decides.

The message for a model that the rules do not cover.
"""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dpfed.data.transfer import to_device
from dpfed.errors import Notice, UserError


class Unsupported(UserError):
    """A trainable parameter is used in a way that no rule covers. Says nothing about the records.

    Args:
        what: the use, and a code.
    """

    def __init__(self, what: str) -> None:
        use, _, code = what.rpartition(" ")
        super().__init__(f"bounding.engine = 'layerwise' does not fit this model ({use}): choose 'loop' or 'auto'. {code}")


# One for each group; or those of all places together, ``(places, ...)``.
Gradients = list[Tensor] | Tensor


def precise_type(values: Tensor) -> torch.dtype:
    """float64 for what is float64, as in comparisons of engines; float32 for all else."""
    return torch.float64 if values.dtype == torch.float64 else torch.float32


def precise(values: Tensor) -> Tensor:
    """The values in `precise_type`."""
    return values.to(precise_type(values))


@functools.cache
def computes_together(device: str) -> bool:
    """Whether a type of device computes the figures of all groups at once: a GPU that runs Triton's kernels."""
    if device != "cuda" or not torch.cuda.is_available():
        return False
    try:
        from dpfed.bounding.kernels import normalise

        one = torch.ones(1, device=device)
        normalise(one.view(1, 1, 1, 1), one, one, 1, 1e-5, False)
    except Exception as error:  # Triton may be absent, or have no compiler, or not know the GPU
        reason = str(error).partition("\n")[0] or type(error).__name__
        text = "groups are computed one after the other, which takes several times as long: Triton's kernels do not run on"
        warnings.warn(f"{text} this GPU ({reason}).", Notice, stacklevel=2)
        return False
    return True


class Grouping:
    """The groups of a pass: consecutive records.

    Args:
        sizes: records of each group.
        device: of the layers.
        exact: type in which squares are summed.
        typical: records of a usual group, a public number; by default those of the longest. Layers choose by it how they come
            to a norm: the ways round differently, and a choice by what was drawn would let one record change how the
            gradients of other groups are rounded.
        places: for groups, at least as many as there are groups.
        slots: for records of a group, at least as many as the longest has.
        records: n, fillers included.
        batched: whether the groups' figures are computed together, for every place; by default on GPUs, where a call for each
            group would cost more than what it computes. Otherwise for one group after the other.
        offsets: the attribute, where a device alone knows the sizes, for there is a group in every place, empty ones included;
            `sizes` is then empty, and the figures of all places are computed together.

    Attributes:
        batched: as given.
        places: as given.
        records: as given.
        typical: as given.
        slots: ``(places, slots)`` the records of each group; n, a record that does not exist, where there is none.
        present: ``(places, slots)`` whether a slot holds a record.
        is_group: ``(places,)`` whether a place holds a group.
        offsets: ``(places + 1,)`` int32 first record of each group, and the one behind the last.
    """

    def __init__(
        self,
        sizes: list[int],
        device: torch.device,
        exact: torch.dtype,
        typical: int | None = None,
        places: int | None = None,
        slots: int | None = None,
        records: int | None = None,
        batched: bool | None = None,
        offsets: Tensor | None = None,
    ) -> None:
        self.batched = computes_together(device.type) if batched is None else batched
        self.places, self.records = places or len(sizes), records or sum(sizes)
        self.sizes = sizes
        self.device = device
        self.exact = exact
        self.count = len(sizes) if offsets is None else self.places
        longest = slots or max(sizes)
        self.typical = typical or longest
        self._ends = [0, *itertools.accumulate(sizes)]
        if offsets is None:
            ends = self._ends + self._ends[-1:] * (self.places - self.count)
            offsets = to_device(torch.tensor(ends, dtype=torch.int32), device)
        self.offsets = offsets
        each, sizes_there = torch.arange(longest, device=device), offsets.diff().unsqueeze(1)
        self.present = each < sizes_there
        self.slots = torch.where(self.present, offsets[:-1].long().unsqueeze(1) + each, self.records)
        self.is_group = sizes_there.squeeze(1) > 0

    def has_kernels_for(self, values: Tensor) -> bool:
        """Whether `dpfed.bounding.kernels` compute with such numbers."""
        return self.batched and values.dtype != torch.float64

    def per_record(self, rows: Tensor) -> int:
        """k, how many of a tensor's rows ``(n k, ...)`` a record has.

        Raises:
            Unsupported: if the leading dimension is none of records.
        """
        k, rest = divmod(len(rows), self.records)
        if rest:
            raise Unsupported("a layer does not have its records in the first dimension [layer-rows-uneven]")
        return k

    def split(self, rows: Tensor) -> list[Tensor]:
        """The rows of each group, views."""
        k = self.per_record(rows)
        return [rows[first * k : end * k] for first, end in itertools.pairwise(self._ends)]

    def of_rows(self, rows: Tensor) -> Tensor:
        """``(m,)`` the group of each row that has one: the first m rows."""
        return torch.arange(self.count).repeat_interleave(torch.tensor(self.sizes) * self.per_record(rows)).to(rows.device)

    def of_records(self, rows: Tensor) -> Tensor:
        """``(n k,)`` the group of each row; of fillers the number of all places."""
        each = torch.arange(self.records, dtype=torch.int32, device=self.device)
        numbers = torch.bucketize(each, self.offsets[1:], right=True)
        return numbers.unsqueeze(1).expand(-1, self.per_record(rows)).flatten()

    def records_of(self, group: int) -> slice:
        """The records of a group."""
        return slice(self._ends[group], self._ends[group + 1])

    def sums(self, rows: Tensor) -> Gradients:
        """``(n k, ...)`` -> for each group ``(...)``, added up over its rows in `precise_type`."""
        kind = precise_type(rows)
        if self.batched:
            by_record = rows.unflatten(0, (self.records, self.per_record(rows))).sum(1, dtype=kind)
            return self.by_place(by_record).sum(1)
        return [group.sum(0, dtype=kind) for group in self.split(rows)]

    def each(self, gradients: Gradients, change: Callable[[Tensor], Tensor]) -> Gradients:
        """Changes every group's gradient: a list one by one, and ``(places, ...)`` at once."""
        return change(gradients) if isinstance(gradients, Tensor) else [change(gradient) for gradient in gradients]

    def by_place(self, rows: Tensor) -> Tensor:
        """``(n, ...)`` -> ``(places, slots, ...)``, zeros where there is no record."""
        return _Placed.apply(rows, self) if self.batched else _at(rows, self.slots)

    def back(self, placed: Tensor) -> Tensor:
        """``(places, slots, ...)`` -> ``(n, ...)``, zeros for fillers."""
        places, slots = placed.shape[:2]
        each = torch.arange(self.records, device=self.device)
        group = torch.bucketize(each, self.offsets[1:], right=True)
        slot = (group * slots + each - self.offsets[group]).clamp(max=places * slots)  # where fillers find zeros
        return _at(placed.flatten(0, 1), slot)


class _Placed(torch.autograd.Function):
    """Rows at their places. torch's own gradient of an index is slow, for an index may come twice."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, grouping: Grouping) -> Tensor:
        """See `Grouping.by_place`."""
        ctx.grouping = grouping
        return _at(rows, grouping.slots)

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> tuple[Tensor, None]:
        """See `Grouping.back`."""
        return ctx.grouping.back(gradient[0]), None


def _at(rows: Tensor, places: Tensor) -> Tensor:
    return torch.cat([rows, rows.new_zeros(1, *rows.shape[1:])])[places]
