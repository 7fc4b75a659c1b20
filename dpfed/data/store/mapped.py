"""The records of a store by their indices: Arrow batches, mapped; a batch is found and checked when it is first read.

An index says where each batch begins, so that no batch is touched to find another one.

Arrow takes the offsets in a file as they are, so a damaged one would read other memory of the process. Everything is checked
before it is used: the index when a store is opened, a batch of records when the first of them is read.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpfed.data.store.index import groups_of
from dpfed.data.store.layout import damaged


class Damage(ValueError):
    """A file that is not as it was written; the message says what is wrong, in a few words, and names no record."""


def check_index(index: pa.Table, header: dict[str, Any]) -> None:
    """Checks the columns of an index and their types; `dpfed.data.store.index` checks the numbers.

    Args:
        index: of a store.
        header: of the store.

    Raises:
        Damage: when they are not what the header says.
    """
    index.validate(full=True)
    labels = [f"label:{name}" for name in header["label_names"]]
    types = {"key": pa.uint64(), "split": pa.int8(), **dict.fromkeys(labels, pa.int64())}
    if header["unit_name"] is not None:
        types["unit"] = pa.uint64()
    _check_types(index.schema, types)
    if any(index[name].null_count for name in types):
        raise Damage("values are missing")


def records_schema(size: int | None) -> pa.Schema:
    """The columns of a file of records.

    Args:
        size: side of raw images, pixels; ``None``: files.
    """
    image = {"image": pa.large_binary() if size is None else pa.binary(3 * size * size)}
    return pa.schema({"id": pa.string(), **image, "captions": pa.list_(pa.string())})


def check_batch(batch: pa.RecordBatch, kind: str) -> None:
    """Checks that every offset of a batch of records lies within it, that texts are texts, and that nothing is missing.

    Reads ids, captions and offsets, not the images.

    Raises:
        Damage: when the batch cannot be used.
    """
    try:
        batch.validate(full=True)
        captions = batch.column("captions")
        if any(column.null_count for column in (*batch.columns, captions.flatten())):
            raise Damage("values are missing")
        if kind == "image-text" and pc.any(pc.less(pc.list_value_length(captions), 1)).as_py():
            raise Damage("a record has no caption")
    except pa.ArrowException as error:
        raise Damage(f"records cannot be read ({type(error).__name__})") from error


def _check_types(schema: pa.Schema, types: dict[str, pa.DataType]) -> None:
    for name, type in types.items():
        if schema.get_all_field_indices(name) == [] or schema.field(name).type != type:
            raise Damage("a column is missing or of another type")


_KEPT = 4096  # batches that stay at hand: each takes some kilobytes beside what is mapped
_STARTS = b"dpfed batches of records.arrow"


def starts_of(schema: pa.Schema) -> np.ndarray:
    """Where the batches of records begin, as an index says it: ``(b + 1,)`` int64.

    Raises:
        Damage: if it does not say it.
    """
    noted = (schema.metadata or {}).get(_STARTS)
    if noted is None:
        raise Damage("the index does not say where the batches of records begin")
    return np.frombuffer(noted, "<i8")


def with_starts(schema: pa.Schema, counts: Sequence[int]) -> pa.Schema:
    """The schema of an index that says where batches begin.

    Args:
        schema: its columns.
        counts: the number of records in each batch.
    """
    return schema.with_metadata({_STARTS: np.cumsum([0, *counts]).astype("<i8").tobytes()})


class MappedBatches:
    """Batches of records (id, image, captions), one after the other; iterating gives each with its indices, a slice.

    Args:
        file: of the records.
        header: of the store.
        starts: see `starts_of`.

    Raises:
        Damage: if the starts, or the columns, cannot be those of this file.
    """

    def __init__(self, file: Path, header: dict[str, Any], starts: np.ndarray) -> None:
        with pa.memory_map(str(file)) as source:
            mapped = source.read_buffer()  # stays when the file is closed: a process may not have many files open
        self._path = file.parent
        self._kind = header["kind"]
        self._starts = starts
        self._reader = pa.ipc.open_file(mapped)
        schema = records_schema(header["images"].get("size"))
        _check_types(self._reader.schema, {field.name: field.type for field in schema})
        batches = self._reader.num_record_batches
        if len(starts) != batches + 1 or starts[0] != 0 or (np.diff(starts) < 0).any() or starts[-1] != header["records"]:
            raise Damage(f"{file.name} has other batches than the index says")
        self._unchecked = np.ones(batches, bool)
        self._kept: dict[int, pa.RecordBatch] = {}

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __iter__(self) -> Iterator[tuple[slice, pa.RecordBatch]]:
        for number in range(len(self._starts) - 1):
            batch, start = self._batch(number), int(self._starts[number])
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
        if len(indices) and not 0 <= indices.min() <= indices.max() < len(self):
            raise IndexError(f"indices {indices.min()}..{indices.max()} of a store with {len(self)} records")
        for number, places, local in groups_of(indices, self._starts):
            yield places, self._batch(number), local

    def _batch(self, number: int) -> pa.RecordBatch:
        with _turn(os.getpid()):
            if (kept := self._kept.get(number)) is not None:
                return kept
            try:
                batch = self._reader.get_batch(number)
                if len(batch) != self._starts[number + 1] - self._starts[number]:
                    raise Damage("a batch of records has another length than the index says")
                if self._unchecked[number]:
                    check_batch(batch, self._kind)
            except Damage as error:
                raise damaged(self._path, str(error)) from error
            except (pa.ArrowException, OSError) as error:
                raise damaged(self._path, f"its files cannot be read ({type(error).__name__})") from error
            self._unchecked[number] = False
            if len(self._kept) >= _KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[number] = batch
            return batch


@lru_cache(maxsize=1)
def _turn(process: int) -> threading.Lock:
    # Arrow does not say that threads may share a reader. One per process: another thread of a parent may have held it at the
    # time of a fork.
    return threading.Lock()
