"""What a store says of each record in numbers: key, split, unit and labels, mapped from its index.

An index of a few million records is read and checked when the store is opened, which takes milliseconds. A larger one is only
mapped, and what is read of it is checked then: opening a store takes as long, and as much memory, whatever its size.

Numbers of many records, in one piece or in several that are mapped: what is not asked for is not read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.lib.mixins import NDArrayOperatorsMixin

from dpfed.data.store.layout import Layout, damaged
from dpfed.data.store.record import SPLITS
from dpfed.errors import UserError

BLOCK = 1 << 20  # numbers that are looked at together: bounds the workspace to some megabytes


class Column(NDArrayOperatorsMixin):
    """Pieces one after the other, read like an array of one dimension.

    A slice, or an array of places, reads these places alone. Operators and functions of numpy work, too, and read everything.

    Args:
        pieces: arrays of one dimension and one type, or columns.
        of: what is made of the numbers when they are read, number by number; ``None``: they are given as they are.
        dtype: of what `of` makes; default: that of the pieces.
    """

    ndim = 1

    def __init__(
        self, pieces: Sequence[Any], of: Callable[[np.ndarray], np.ndarray] | None = None, dtype: type | None = None
    ) -> None:
        self._pieces, self._of = list(pieces), of
        self._starts = np.cumsum([0] + [len(piece) for piece in self._pieces])
        self.dtype = np.dtype(dtype or self._pieces[0].dtype)
        self.shape = (int(self._starts[-1]),)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, places: Any) -> Any:
        if isinstance(places, slice):
            found = self._between(*places.indices(len(self)))
        else:
            chosen = np.asarray(places)
            found = self._at(np.flatnonzero(chosen) if chosen.dtype == bool else chosen)
        return found if self._of is None else self._of(found)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self[:], dtype)

    def __array_ufunc__(self, function: Any, method: str, *inputs: Any, **options: Any) -> Any:
        read = (np.asarray(given) if isinstance(given, Column) else given for given in inputs)
        return getattr(function, method)(*read, **options)

    def tolist(self) -> list[Any]:
        """As of an array."""
        return np.asarray(self).tolist()

    def _between(self, first: int, end: int, stride: int) -> np.ndarray:
        if stride != 1:
            return self._at(np.arange(first, end, stride))
        pieces = zip(self._pieces, self._starts.tolist(), strict=False)
        found = [np.asarray(one[max(first - at, 0) : end - at]) for one, at in pieces if at < end and first < at + len(one)]
        return found[0] if len(found) == 1 else np.concatenate(found) if found else np.empty(0, self.dtype)

    def _at(self, places: np.ndarray) -> np.ndarray:
        """The numbers at some places, in any order; negative ones count from the end."""
        places = np.where(places < 0, places + len(self), places)
        flat = places.ravel()
        if len(flat) and not 0 <= flat.min() <= flat.max() < len(self):
            raise IndexError(f"places {flat.min()}..{flat.max()} of a column of {len(self)}")
        found = np.empty(len(flat), self._pieces[0].dtype if self._pieces else self.dtype)
        for which, own, local in groups_of(flat, self._starts):
            found[own] = self._pieces[which][local]
        return found.reshape(places.shape)


def groups_of(places: np.ndarray, starts: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Sorts places by the piece that holds them.

    Args:
        places: ``(n,)`` in any order, each below the last start.
        starts: where each piece begins, and where the last one ends, ascending.

    Yields:
        A piece, which of the places it holds, and where these are in it.
    """
    if len(places) == 0:
        return
    piece = np.searchsorted(starts, places, side="right") - 1
    order = np.argsort(piece, kind="stable")
    for own in np.split(order, np.flatnonzero(np.diff(piece[order])) + 1):
        which = int(piece[own[0]])
        yield which, own, places[own] - starts[which]


def blocks(count: int, size: int = BLOCK) -> Iterator[tuple[int, int]]:
    """Cuts 0 .. `count` - 1 into runs: where each begins and ends."""
    return ((first, min(first + size, count)) for first in range(0, count, size))


WHOLE = 1 << 22  # records of an index that is read and checked as a whole


class Index:
    """The numbers of all open records.

    Args:
        layout: of the store.
        table: all columns as they are stored, mapped.

    Attributes:
        table: all columns as they are stored.
        keys: ``(N,)`` uint64.
        units: ``(N,)`` uint64; ``None``: the store names none.
        splits: ``(N,)`` int8.
        labels: name -> ``(N,)`` int64.

    Raises:
        UserError: for numbers that cannot be, where all are checked now.
    """

    def __init__(self, layout: Layout, table: pa.Table) -> None:
        self._layout, self.table = layout, table
        self._mapped = len(self.table) > WHOLE
        self.keys = self._column("key")
        self.units = self._column("unit") if layout.header["unit_name"] is not None else None
        self.splits = self._column("split", len(SPLITS))
        self.labels = {name: self._column(f"label:{name}", len(names)) for name, names in layout.header["label_names"].items()}
        self._unchecked = set(range(-(-len(self.table) // BLOCK)))
        self._training = 0  # records in the blocks that were checked
        if not self._mapped:
            self.check()

    def __len__(self) -> int:
        return len(self.table)

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
            raise self._wrong()
        if self.units is not None and self._layout.training_units != len(np.unique(self.units[self.rows(0)])):
            raise self._wrong()

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
        self._training += int((splits == 0).sum())
        self._unchecked.discard(number)
        if not self._unchecked and self._training != self._layout.splits[SPLITS[0]]:
            raise self._wrong()

    def _wrong(self) -> UserError:
        return damaged(self._layout.place, "its splits have other numbers of records (or units) than its header says")


def _within(place: str, least: int, end: int) -> Callable[[np.ndarray], np.ndarray]:
    """Numbers as they are, checked to lie in a range."""

    def checked(numbers: np.ndarray) -> np.ndarray:
        if np.size(numbers) and not least <= np.min(numbers) <= np.max(numbers) < end:
            raise damaged(place, "a split or a class is out of range")
        return numbers

    return checked
