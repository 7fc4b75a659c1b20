"""What a store says of each record in numbers: key, split, unit and labels, mapped from its index.

An index of a few million records is read and checked when the store is opened, which takes milliseconds. A larger one is only
mapped, and what is read of it is checked then: opening a store takes as long, and as much memory, whatever its size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from dpfed.data.store.columns import BLOCK, Column, blocks
from dpfed.data.store.layout import Layout, Part, damaged
from dpfed.data.store.record import SPLITS

WHOLE = 1 << 22  # records of an index that is read and checked as a whole


class Index:
    """The numbers of all open records.

    Args:
        layout: of the store.
        parts: what is open of it.
        tables: the index of each part, mapped.

    Attributes:
        table: all columns as they are stored.
        keys: ``(N,)`` uint64.
        units: ``(N,)`` uint64; ``None``: the store names none.
        splits: ``(N,)`` int8.
        labels: name -> ``(N,)`` int64.

    Raises:
        UserError: for numbers that cannot be, where all are checked now.
    """

    def __init__(self, layout: Layout, parts: Sequence[Part], tables: Sequence[pa.Table]) -> None:
        self._layout, self._parts = layout, parts
        self.table = pa.concat_tables(tables)
        self._mapped = len(self.table) > WHOLE
        self.keys = self._column("key")
        self.units = self._column("unit") if layout.header["unit_name"] is not None else None
        self.splits = self._column("split", len(SPLITS))
        self.labels = {name: self._column(f"label:{name}", len(names)) for name, names in layout.header["label_names"].items()}
        self._starts = np.cumsum([0] + [part.records for part in parts])
        self._unchecked = set(range(-(-len(self.table) // BLOCK)))
        self._training = 0  # records in the blocks that were checked
        if any(part.units and not part.records for part in parts):
            raise self._wrong("")
        if not self._mapped:
            self.check()

    def __len__(self) -> int:
        return len(self.table)

    def count(self, split: int) -> int:
        """How many open records a split has: the header says it, and `training` checks it."""
        shards = sum(part.records for part in self._parts if part.shard is not None)
        if self._layout.shards and split == 0:
            return shards
        return self._layout.splits[SPLITS[split]]

    def rows(self, split: int) -> np.ndarray:
        """Rows of a split, ``(n,)`` int64, ascending."""
        found = [first + np.flatnonzero(self.splits[first:end] == split) for first, end in blocks(len(self))]
        return np.concatenate(found) if found else np.zeros(0, np.int64)

    def training(self, first: int, end: int) -> np.ndarray:
        """Which of some rows are for training, ``(end - first,)`` bool.

        Whoever looks at all rows in this way has them checked, and their number: what is promised follows from it.

        Raises:
            UserError: for rows that are not what the header says.
        """
        for number in range(first // BLOCK, -(-end // BLOCK)):
            if number in self._unchecked:
                self._check_block(number)
        return self.splits[first:end] == 0

    def check(self) -> None:
        """Checks all numbers.

        Raises:
            UserError: for some that are not what the header says.
        """
        for number in sorted(self._unchecked):
            self._check_block(number)
        for name, names in self._layout.header["label_names"].items():
            within = _within(self._layout.place, -1, len(names))
            for first, end in blocks(len(self)):
                within(self.labels[name][first:end])
        if any(self._layout.splits[SPLITS[split]] != len(self.rows(split)) for split in (1, 2)):
            raise self._wrong("")
        if not self._layout.shards and self.units is not None:
            if self._layout.training_units != len(np.unique(self.units[self.rows(0)])):
                raise self._wrong("")

    def _column(self, name: str, end: int | None = None) -> np.ndarray:
        """A column; with an end, its numbers are checked to be below it when they are read.

        Of a large index it is a `Column`, which answers to what an array of one dimension does.
        """
        column = self.table[name]
        pieces = [chunk.to_numpy() for chunk in column.chunks] or [np.empty(0, column.type.to_pandas_dtype())]
        if self._mapped and (end is not None or len(pieces) > 1):
            of = None if end is None else _within(self._layout.place, 0 if name == "split" else -1, end)
            return Column(pieces, of)  # type: ignore[return-value]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _check_block(self, number: int) -> None:
        first, end = number * BLOCK, min((number + 1) * BLOCK, len(self))
        splits = _within(self._layout.place, 0, len(SPLITS))(self.splits[first:end])
        overlapping = slice(
            int(np.searchsorted(self._starts, first, "right")) - 1, int(np.searchsorted(self._starts, end, "left"))
        )
        for part, start in zip(self._parts[overlapping], self._starts[overlapping].tolist(), strict=False):
            rows = slice(max(first, start), min(end, start + part.records))
            self._check_part(part, rows, splits[rows.start - first : rows.stop - first], rows.stop == start + part.records)
        self._training += int((splits == 0).sum())
        self._unchecked.discard(number)
        if not self._unchecked and self._training != self.count(0):
            raise self._wrong("")

    def _check_part(self, part: Part, rows: slice, splits: np.ndarray, last: bool) -> None:
        """Whether a shard holds its own training records and no others: what is promised is counted in the header."""
        if part.shard is None:
            if self._layout.shards and (splits == 0).any():
                raise self._wrong(part.files[0])
            return
        owned = self.keys if self._layout.sharded_by == "record" else self.units
        if owned is None or splits.any() or (owned[rows] % np.uint64(len(self._layout.shards)) != part.shard).any():
            raise self._wrong(part.files[0])
        if part.units is not None and last:
            assert self.units is not None  # see above
            if part.units != len(np.unique(self.units[rows.stop - part.records : rows.stop])):
                raise self._wrong(part.files[0])

    def _wrong(self, file: str) -> Exception:
        if file:
            return damaged(self._layout.place, f"{file} names records that belong elsewhere")
        return damaged(self._layout.place, "its splits have other numbers of records (or units) than its header says")


def _within(place: str, least: int, end: int) -> Callable[[np.ndarray], np.ndarray]:
    """Numbers as they are, checked to lie in a range."""

    def checked(numbers: np.ndarray) -> np.ndarray:
        if np.size(numbers) and not least <= np.min(numbers) <= np.max(numbers) < end:
            raise damaged(place, "a split or a class is out of range")
        return numbers

    return checked
