"""Joins the data sets of training items and held-out items into one sequence."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from dpfed.data.items.item import described
from dpfed.data.items.scanning import length_of
from dpfed.data.record_set import RecordSet
from dpfed.data.store.record import SPLITS
from dpfed.errors import UserError


class Joined(Sequence[Any]):
    """The training items, followed by the validation items and the test items.

    Args:
        sets: Data set of each split, in the order of `SPLITS`; ``None`` for a held-out split without items.

    Raises:
        UserError: If the first data set is ``None``, or a data set is a path, a record store or another `RecordSet`.
    """

    def __init__(self, sets: Sequence[Any]) -> None:
        self._sets = list(sets)
        if self._sets[0] is None:
            raise UserError(
                "expected a data set, got None: give one with len() and [], or a record store. [records-none-given]"
            )
        if (path := next((os.fspath(data) for data in self._sets if isinstance(data, str | os.PathLike)), None)) is not None:
            raise UserError(
                f"expected a data set, got the path {path!r}: give torchvision.datasets.ImageFolder({path!r}) or the like, or "
                "let dpfed.pretrain(data=...) read the folder. [records-path]"
            )

        if opened := next((described(data) for data in self._sets if isinstance(data, RecordSet)), None):
            raise UserError(
                f"expected data sets with len() and [], got {opened}: give the data set from which it was made. (A record "
                "store can only be the first argument of Records, without other data sets.) [records-opened]"
            )

    @functools.cached_property
    def _ends(self) -> list[int]:
        lengths = [0 if data is None else length_of(data) for data in self._sets]
        return np.cumsum(lengths).tolist()

    @property
    def splits(self) -> np.ndarray:
        """The split of each item, an index into `SPLITS`, ``(N,)`` int8."""
        return np.repeat(np.arange(len(SPLITS), dtype=np.int8), np.diff([0, *self._ends]))

    def __len__(self) -> int:
        if [0 if data is None else length_of(data) for data in self._sets] != np.diff([0, *self._ends]).tolist():
            return sum(0 if data is None else length_of(data) for data in self._sets)
        return int(self._ends[-1])

    def __getitem__(self, row: Any) -> Any:
        which = int(np.searchsorted(self._ends, row, side="right"))
        return self._sets[which][int(row) - (self._ends[which - 1] if which else 0)]
