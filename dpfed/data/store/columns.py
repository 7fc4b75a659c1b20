"""Numbers of many records, in one piece or in several that are mapped: what is not asked for is not read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

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
