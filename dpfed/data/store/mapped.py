"""The records of a store by their rows: Arrow batches, mapped; a batch is checked when it is first read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dpfed.data.store.integrity import Damage, check_batch
from dpfed.data.store.layout import damaged


class MappedBatches:
    """Batches of records (id, image, captions), one after the other; iterating gives each with its rows, a slice.

    Args:
        path: the store's directory, for messages.
        kind: of its records, see `RecordStore`.
        batches: in the order of the rows.
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

    def column(self, name: str, rows: np.ndarray) -> list[Any]:
        """The values of a column, one for each row.

        Raises:
            IndexError: for a row that does not exist.
            UserError: when a batch is damaged.
        """
        result: list[Any] = [None] * len(rows)
        for places, batch, local in self.holding(rows):
            values = batch.column(name).take(pa.array(local)).to_pylist()
            for place, value in zip(places.tolist(), values, strict=True):
                result[place] = value
        return result

    def holding(self, rows: np.ndarray) -> Iterator[tuple[np.ndarray, pa.RecordBatch, np.ndarray]]:
        """The batches that hold some rows.

        Args:
            rows: ``(n,)``, in any order.

        Yields:
            Places in `rows`, the batch that holds these rows, and where in the batch.

        Raises:
            IndexError: for a row that does not exist.
            UserError: when a batch is damaged.
        """
        rows = np.asarray(rows, np.int64)
        if len(rows) == 0:
            return
        if rows.min() < 0 or rows.max() >= len(self):
            raise IndexError(f"rows {rows.min()}..{rows.max()} of a store with {len(self)} records")
        number = np.searchsorted(self._starts, rows, side="right") - 1
        order = np.argsort(number, kind="stable")
        for places in np.split(order, np.flatnonzero(np.diff(number[order])) + 1):
            which = number[places[0]]
            yield places, self._batch(which), rows[places] - self._starts[which]

    def _batch(self, number: int) -> pa.RecordBatch:
        batch = self._batches[number]
        if number not in self._checked:
            try:
                check_batch(batch, self._kind)
            except Damage as error:
                raise damaged(self._path, str(error)) from error
            self._checked.add(number)
        return batch
