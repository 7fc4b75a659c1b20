"""Which rows of a layer's input and output belong to which group.

Shapes: n records, k rows of a layer's leading dimension for each record (its views, or their tokens). The groups stand one
after the other; records behind the last group are fillers and belong to none. Every figure of a group is computed from the
group's own rows, in a shape that only the group's own size decides.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from dpfed.bounding.layer_rules.refusal import Unsupported


def precise_type(values: Tensor) -> torch.dtype:
    """float64 for what is float64, as in comparisons of engines; float32 for all else."""
    return torch.float64 if values.dtype == torch.float64 else torch.float32


def precise(values: Tensor) -> Tensor:
    """The values in `precise_type`."""
    return values.to(precise_type(values))


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

    Attributes:
        places: as given.
        records: as given.
        typical: as given.
        slots: ``(places, slots)`` the records of each group; n, a record that does not exist, where there is none.
        present: ``(places, slots)`` whether a slot holds a record.
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
    ) -> None:
        self.sizes, self.device, self.exact, self.count = sizes, device, exact, len(sizes)
        longest = slots or max(sizes)
        self.places, self.records = places or len(sizes), records or sum(sizes)
        self.typical = typical or longest
        counts = torch.zeros(self.places, 1, dtype=torch.int64)
        counts[: self.count, 0] = torch.tensor(sizes)
        starts = torch.zeros_like(counts)
        starts[: self.count, 0] = torch.tensor([0, *sizes[:-1]]).cumsum(0)
        self._ends = [0, *torch.tensor(sizes).cumsum(0).tolist()]
        each = torch.arange(longest)
        self.present = (each < counts).to(device)
        self.slots = torch.where(each < counts, starts + each, self.records).to(device)

    def per_record(self, rows: Tensor) -> int:
        """k, how many of a tensor's rows ``(n k, ...)`` a record has.

        Raises:
            Unsupported: if the leading dimension is none of records.
        """
        k, rest = divmod(len(rows), self.records)
        if rest:
            raise Unsupported("a layer does not have its records in the first dimension")
        return k

    def split(self, rows: Tensor) -> list[Tensor]:
        """The rows of each group, views."""
        k = self.per_record(rows)
        return [rows[first * k : end * k] for first, end in pairwise(self._ends)]

    def of_rows(self, rows: Tensor) -> Tensor:
        """``(m,)`` the group of each row that has one: the first m rows."""
        return torch.arange(self.count).repeat_interleave(torch.tensor(self.sizes) * self.per_record(rows)).to(rows.device)

    def sums(self, rows: Tensor) -> list[Tensor]:
        """``(n k, ...)`` -> for each group ``(...)``, added up over its rows in `precise_type`."""
        kind = precise_type(rows)
        return [own.sum(0, dtype=kind) for own in self.split(rows)]

    def by_place(self, rows: Tensor) -> Tensor:
        """``(n, ...)`` -> ``(places, slots, ...)``, zeros where there is no record."""
        return torch.cat([rows, rows.new_zeros(1, *rows.shape[1:])])[self.slots]
