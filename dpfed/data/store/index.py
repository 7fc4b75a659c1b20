"""The numbers that a store keeps for each record in its index file: key, split, unit and labels. They are memory-mapped.

Splits and labels are read and checked block by block when a store is opened. Keys and units are read only where they are
used, but if a store has at most 4,194,304 records, its units are also counted when the store is opened.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from dpfed.data.store.layout import Layout, damaged
from dpfed.data.store.record import SPLITS

BLOCK = 1 << 20  # numbers that are processed together: bounds the workspace to some megabytes
WHOLE = 1 << 22  # up to this many records, units are counted when a store is opened: a second for some millions


def groups_of(places: np.ndarray, starts: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Groups positions in a sequence by the piece of the sequence in which they lie.

    Args:
        places: Positions in the sequence, ``(n,)`` in any order, each below the end of the last piece.
        starts: Start of each piece, then the end of the last piece, ascending.

    Yields:
        For each piece in which at least one position lies: the piece's number; the indices in `places` of the positions in this
        piece; and these positions, counted from the piece's start.
    """
    if len(places) == 0:
        return
    piece = np.searchsorted(starts, places, side="right") - 1
    order = np.argsort(piece, kind="stable")
    for members in np.split(order, np.flatnonzero(np.diff(piece[order])) + 1):
        number = int(piece[members[0]])
        yield number, members, places[members] - starts[number]


def blocks(count: int, size: int = BLOCK) -> Iterator[tuple[int, int]]:
    """Cuts 0 .. `count` - 1 into blocks of at most `size` numbers; yields each block's start and (excluded) end."""
    return ((first, min(first + size, count)) for first in range(0, count, size))


class Index:
    """The keys, splits, units and labels of all records of an open store.

    Args:
        layout: Layout of the store.
        table: All columns as they are stored, memory-mapped.

    Attributes:
        table: All columns as they are stored.
        keys: Keys of the records, ``(N,)`` uint64.
        units: Keys of the records' units, ``(N,)`` uint64; ``None``: the store names no units.
        splits: Split of each record, an index into `dpfed.data.store.record.SPLITS`, ``(N,)`` int8.
        labels: For each label name, the class numbers of the records, ``(N,)`` int64.

    Raises:
        UserError: If the columns contradict the header, or the number of a split or class is out of range.
    """

    def __init__(self, layout: Layout, table: pa.Table) -> None:
        self._layout, self.table = layout, table
        self.keys, self.splits = self._column("key"), self._column("split")
        self.units = self._column("unit") if layout.header["unit_name"] is not None else None
        self.labels = {name: self._column(f"label:{name}") for name in layout.header["label_names"]}
        self._check()

    def __len__(self) -> int:
        return len(self.table)

    def rows(self, split: int) -> np.ndarray:
        """Returns the rows of the split with a given number, ``(n,)`` int64, ascending."""
        parts = [first + np.flatnonzero(self.splits[first:end] == split) for first, end in blocks(len(self))]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def _check(self) -> None:
        """Checks the header's counts, because privacy accounting uses the number of training records (or units).

        The units of a large store, with more records than `WHOLE`, are not counted.

        Raises:
            UserError: If a count differs, or the number of a split or class is out of range.
        """
        counts = [0] * len(SPLITS)
        for first, end in blocks(len(self)):
            splits = self._within(self.splits[first:end], 0, len(SPLITS))
            counts = [count + int(np.count_nonzero(splits == split)) for split, count in enumerate(counts)]
            for name, names in self._layout.header["label_names"].items():
                self._within(self.labels[name][first:end], -1, len(names))
        wrong = counts != [self._layout.splits[split] for split in SPLITS]
        if not wrong and self.units is not None and len(self) <= WHOLE:
            wrong = self._layout.training_units != len(np.unique(self.units[self.rows(0)]))
        if wrong:
            raise damaged(self._layout.place, "the numbers of records (or units) of its splits differ from those in its header")

    def _column(self, name: str) -> np.ndarray:
        pieces = [chunk.to_numpy() for chunk in self.table[name].chunks] or [np.empty(0)]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _within(self, numbers: np.ndarray, least: int, end: int) -> np.ndarray:
        if len(numbers) and not least <= numbers.min() <= numbers.max() < end:
            raise damaged(self._layout.place, "a split or a class is out of range")
        return numbers
