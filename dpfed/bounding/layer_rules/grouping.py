"""Which rows of a layer's input and output belong to which group.

Shapes: n records of G groups in order, k rows of a layer's leading dimension for each record (its views, or their tokens).
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from dpfed.bounding.layer_rules.refusal import Unsupported


class Grouping:
    """The groups of a forward pass: consecutive records.

    Args:
        sizes: records of each group, at least one group.
        device: of the layers.
        exact: type in which squares are summed.
        typical: records of a usual group, a public number; by default those of the longest.

    Attributes:
        typical: as given. Layers choose by it how they come to a norm: the ways round differently, and a choice by what was
            drawn would let one record change how the gradients of other groups are rounded.
        slots: ``(G, S)`` the records of each group, S being the largest; shorter groups repeat their first.
        present: ``(G, S)`` whether a slot is a record, and not repeated.
    """

    def __init__(self, sizes: list[int], device: torch.device, exact: torch.dtype, typical: int | None = None) -> None:
        self.sizes, self.device, self.exact = sizes, device, exact
        self.count, self.records, self.longest = len(sizes), sum(sizes), max(sizes)
        self.typical = typical or self.longest
        self._even = self.longest * self.count == self.records
        slots, counts = torch.arange(self.longest), torch.tensor(sizes)[:, None]
        self._of_record = torch.arange(self.count).repeat_interleave(torch.tensor(sizes)).to(device)
        starts = torch.tensor([0, *sizes]).cumsum(0)
        self._starts = starts.tolist()
        self.present = (slots < counts).to(device)
        # Padding repeats the group's own first record: what is not finite stays in its group.
        self.slots = torch.where(slots < counts, starts[:-1, None] + slots, starts[:-1, None]).to(device)

    def per_record(self, rows: Tensor) -> int:
        """k, how many of a tensor's rows ``(n k, ...)`` a record has.

        Raises:
            Unsupported: if the leading dimension is none of records.
        """
        k, rest = divmod(len(rows), self.records)
        if rest:
            raise Unsupported("a layer does not have its records in the first dimension")
        return k

    def ranges(self, rows: Tensor) -> list[tuple[int, int]]:
        """First row of each group and the row behind its last."""
        k = self.per_record(rows)
        return [(first * k, end * k) for first, end in pairwise(self._starts)]

    def stacked(self, rows: Tensor, pad: bool = True) -> Tensor:
        """``(n k, ..., d)`` -> ``(G, T, d)``, the groups side by side, T rows of the longest group.

        Args:
            rows: of all records.
            pad: fill up shorter groups with zeros; otherwise with rows of their own (enough for one side of a product).
        """
        k = self.per_record(rows)
        if self._even:
            return rows.reshape(self.count, -1, rows.shape[-1])
        by_slot = rows.unflatten(0, (self.records, k))[self.slots]
        if pad:
            by_slot.masked_fill_(~self.present.view(*self.present.shape, *[1] * (by_slot.dim() - 2)), 0.0)
        return by_slot.reshape(self.count, -1, rows.shape[-1])

    def of_rows(self, rows: Tensor) -> Tensor:
        """``(n k,)`` the group of each row."""
        k = self.per_record(rows)
        return self._of_record if k == 1 else self._of_record.repeat_interleave(k)

    def sums(self, rows: Tensor) -> Tensor:
        """``(n k, ...)`` -> ``(G, ...)`` float32, added up within each group."""
        if self._even:
            self.per_record(rows)
            return rows.reshape(self.count, -1, *rows.shape[1:]).sum(1, dtype=torch.float32)
        by_group = self.stacked(rows.flatten(1).unsqueeze(1))
        return by_group.sum(1, dtype=torch.float32).view(self.count, *rows.shape[1:])

    def scaled(self, rows: Tensor, factors: Tensor) -> Tensor:
        """``(n k, ...)`` rows, each times the factor of its group."""
        by_row = factors.to(rows.dtype)[self.of_rows(rows)]
        return rows * by_row.view(-1, *[1] * (rows.dim() - 1))

    def squares(self, gradients: Tensor) -> Tensor:
        """``(G, ...)`` -> ``(G,)`` exact sums of squares."""
        return torch.linalg.vector_norm(gradients.reshape(self.count, -1), dim=1, dtype=self.exact).square()
