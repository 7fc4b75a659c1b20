"""Assigns a layer's rows to groups, and defines the error for a model that the rules do not cover.

Shapes: n records. In the first dimension, a layer has k rows for each record: the record's views, or their tokens. The
groups' records follow one another. Records behind the last group are fillers, which belong to no group. A pass has a fixed
number of places for groups, and each place has a fixed number of slots for records. Every figure of a group (a gradient, its
norm, or a sum of rows) is computed from the group's own rows, in a shape that depends on no other group.
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
    """Raised if the engine `layerwise` does not fit a model, for example because no rule covers the use of a parameter.

    The message reveals nothing about the records.

    Args:
        what: Reason, followed by a space and the code of the error.
    """

    def __init__(self, what: str) -> None:
        use, _, code = what.rpartition(" ")
        super().__init__(f"bounding.engine = 'layerwise' does not fit this model ({use}): choose 'loop' or 'auto'. {code}")


# A gradient for each group; or the gradients of all places together, ``(places, ...)``.
Gradients = list[Tensor] | Tensor


def precise_type(values: Tensor) -> torch.dtype:
    """Returns float64 for float64 values, which occur in comparisons of engines, and float32 for all others."""
    return torch.float64 if values.dtype == torch.float64 else torch.float32


def precise(values: Tensor) -> Tensor:
    """Converts values to their `precise_type`."""
    return values.to(precise_type(values))


@functools.cache
def computes_together(device: str) -> bool:
    """Returns whether a type of device computes the figures of all groups at once, as a GPU that runs Triton kernels does."""
    if device != "cuda" or not torch.cuda.is_available():
        return False
    try:
        from dpfed.bounding.kernels import normalise

        one = torch.ones(1, device=device)
        normalise(one.view(1, 1, 1, 1), one, one, 1, 1e-5, False)
    except Exception as error:  # Triton may be absent, or have no compiler, or not know the GPU
        reason = str(error).partition("\n")[0] or type(error).__name__
        text = "groups are computed one after the other, which takes several times as long"
        warnings.warn(f"Triton's kernels do not run on this GPU ({reason}): {text}.", Notice, stacklevel=2)
        return False
    return True


class Grouping:
    """The groups of a pass; each group is a range of consecutive records.

    Args:
        sizes: Number of records of each group.
        device: Device of the layers.
        exact: Dtype in which squares are summed.
        typical: Public number of records of a usual group; default: the number of slots. It decides in which of several ways a
            layer computes norms. These ways round differently. So a pass over private records must give `typical` or `slots`:
            the defaults follow from the actual sizes, and one record could change how other groups' gradients are rounded.
        places: Number of places for groups, at least the number of groups; default: the number of groups.
        slots: Number of slots for records of a group, at least the size of the largest group; default: this size.
        records: n, the number of records, fillers included; default: the sum of `sizes`, for a pass without fillers.
        batched: Whether the groups' figures are computed together, for every place, rather than for one group after the other;
            default: on GPUs with Triton kernels, where a call for each group would cost more than its computation.
        offsets: Value of the attribute `offsets`, for a pass whose sizes only the device knows. `sizes` is then empty, every
            place holds a group, which may be empty, and the figures of all places are computed together.

    Attributes:
        batched: Whether the groups' figures are computed together, for every place.
        places: Number of places for groups.
        records: n, fillers included.
        typical: Public number of records of a usual group.
        slots: Index of the record in each slot, ``(places, slots)``; n, which is the index of no record, in an empty slot.
        present: Whether a slot holds a record, ``(places, slots)``.
        is_group: Whether a place holds a group with at least one record, ``(places,)``.
        offsets: Index of the first record of the group in each place, then the index after the last group's last record,
            ``(places + 1,)`` int32.
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
        """Returns whether the kernels of `dpfed.bounding.kernels` can compute with these values; they cannot in float64."""
        return self.batched and values.dtype != torch.float64

    def per_record(self, rows: Tensor) -> int:
        """Returns k, the number of rows of a record in a tensor ``(n k, ...)``.

        Raises:
            Unsupported: If the length of the leading dimension is not a multiple of n.
        """
        k, rest = divmod(len(rows), self.records)
        if rest:
            raise Unsupported("the first dimension of a layer is not the batch dimension [layer-rows-uneven]")
        return k

    def split(self, rows: Tensor) -> list[Tensor]:
        """Returns the rows of each group, as views of the tensor."""
        k = self.per_record(rows)
        return [rows[first * k : end * k] for first, end in itertools.pairwise(self._ends)]

    def of_rows(self, rows: Tensor) -> Tensor:
        """Returns, for each of the m rows that belong to a group, the index of this group, ``(m,)``; later rows are fillers."""
        return torch.arange(self.count).repeat_interleave(torch.tensor(self.sizes) * self.per_record(rows)).to(rows.device)

    def of_records(self, rows: Tensor) -> Tensor:
        """Returns the index of each row's group, ``(n k,)``; rows of fillers get the number of places as their index."""
        each = torch.arange(self.records, dtype=torch.int32, device=self.device)
        numbers = torch.bucketize(each, self.offsets[1:], right=True)
        return numbers.unsqueeze(1).expand(-1, self.per_record(rows)).flatten()

    def records_of(self, group: int) -> slice:
        """Returns the slice of a group's records."""
        return slice(self._ends[group], self._ends[group + 1])

    def sums(self, rows: Tensor) -> Gradients:
        """Adds up the rows ``(n k, ...)`` of each group, in `precise_type`."""
        kind = precise_type(rows)
        if self.batched:
            by_record = rows.unflatten(0, (self.records, self.per_record(rows))).sum(1, dtype=kind)
            return self.by_place(by_record).sum(1)
        return [group.sum(0, dtype=kind) for group in self.split(rows)]

    def each(self, gradients: Gradients, change: Callable[[Tensor], Tensor]) -> Gradients:
        """Applies a function to the groups' gradients.

        If the gradients are a list, the function is called with each of them. If they are one tensor ``(places, ...)``, it is
        called once with the whole tensor, whose row p is the gradient of the group in place p. So it must accept both shapes.
        """
        return change(gradients) if isinstance(gradients, Tensor) else [change(gradient) for gradient in gradients]

    def by_place(self, rows: Tensor) -> Tensor:
        """Moves records to their slots: ``(n, ...)`` -> ``(places, slots, ...)``, with zeros in empty slots."""
        return _Placed.apply(rows, self) if self.batched else _at(rows, self.slots)

    def back(self, placed: Tensor) -> Tensor:
        """Moves slots back to records: ``(places, slots, ...)`` -> ``(n, ...)``, with zeros for fillers."""
        places, slots = placed.shape[:2]
        each = torch.arange(self.records, device=self.device)
        group = torch.bucketize(each, self.offsets[1:], right=True)
        slot = (group * slots + each - self.offsets[group]).clamp(max=places * slots)  # fillers read the row of zeros
        return _at(placed.flatten(0, 1), slot)


class _Placed(torch.autograd.Function):
    """Moves records to their slots, with a fast backward pass.

    torch's own backward pass is slow, because it allows an index to occur twice.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, grouping: Grouping) -> Tensor:
        """Moves records to their slots, see `Grouping.by_place`."""
        ctx.grouping = grouping
        return _at(rows, grouping.slots)

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> tuple[Tensor, None]:
        """Moves the gradients of slots back to records, see `Grouping.back`."""
        return ctx.grouping.back(gradient[0]), None


def _at(rows: Tensor, places: Tensor) -> Tensor:
    return torch.cat([rows, rows.new_zeros(1, *rows.shape[1:])])[places]
