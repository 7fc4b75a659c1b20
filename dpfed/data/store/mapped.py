"""The records of a store by their indices: Arrow batches, mapped; a batch is checked when it is first read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dpfed.data.store.integrity import Damage, check_batch
from dpfed.data.store.layout import damaged


class MappedBatches:
    """Batches of records (id, image, captions), one after the other; iterating gives each with its indices, a slice.

    Args:
        path: the store's directory, for messages.
        kind: of its records, see `RecordStore`.
        batches: in the order of the indices.
    """

    def __init__(self, path: Path, kind: str, batches: list[pa.RecordBatch]) -> None:
        self._path, self._kind, self._batches = path, kind, batches
        self._checked: set[int] = set()
        self._starts = np.cumsum([0] + [batch.num_rows for batch in batches])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __iter__(self) -> Iterator[tuple[slice, pa.RecordBatch]]:
        for number, start in enumerate(self._starts[:-1].tolist()):
            batch = self._batch(number)
            yield slice(start, start + len(batch)), batch

    def column(self, name: str, indices: np.ndarray) -> list[Any]:
        """The values of a column, one for each index.

        Raises:
            IndexError: for an index that does not exist.
            UserError: when a batch is damaged.
        """
        result: list[Any] = [None] * len(indices)
        for places, batch, local in self.holding(indices):
            values = batch.column(name).take(pa.array(local)).to_pylist()
            for place, value in zip(places.tolist(), values, strict=True):
                result[place] = value
        return result

    def holding(self, indices: np.ndarray) -> Iterator[tuple[np.ndarray, pa.RecordBatch, np.ndarray]]:
        """The batches that hold some indices.

        Args:
            indices: ``(n,)``, in any order.

        Yields:
            Places in `indices`, the batch that holds these indices, and where in the batch.

        Raises:
            IndexError: for an index that does not exist.
            UserError: when a batch is damaged.
        """
        indices = np.asarray(indices, np.int64)
        if len(indices) == 0:
            return
        if indices.min() < 0 or indices.max() >= len(self):
            raise IndexError(f"indices {indices.min()}..{indices.max()} of a store with {len(self)} records")
        number = np.searchsorted(self._starts, indices, side="right") - 1
        order = np.argsort(number, kind="stable")
        for places in np.split(order, np.flatnonzero(np.diff(number[order])) + 1):
            which = number[places[0]]
            yield places, self._batch(which), indices[places] - self._starts[which]

    def _batch(self, number: int) -> pa.RecordBatch:
        batch = self._batches[number]
        if number not in self._checked:
            try:
                check_batch(batch, self._kind)
            except Damage as error:
                raise damaged(self._path, str(error)) from error
            self._checked.add(number)
        return batch
