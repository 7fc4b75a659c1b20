"""Reads the records of a store by their index, from memory-mapped Arrow batches.

The index file stores the start of each batch, so that finding one batch reads no other batch.

Arrow trusts the offsets in a file, so a damaged offset would read other memory of the process. Everything is therefore checked
before it is used: the index when a store is opened, and a batch of records when one of its records is first read.
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
    """The error for a file that differs from what was written; the message says briefly what is wrong, and names no record."""


def check_index(index: pa.Table, header: dict[str, Any]) -> None:
    """Checks the columns of an index and their types; `dpfed.data.store.index` checks the numbers.

    Args:
        index: Table of the store's index.
        header: Header of the store.

    Raises:
        Damage: If a column is missing, does not have the type that the header implies, or lacks values.
        pyarrow.ArrowException: If the table itself is not valid.
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
    """Returns the schema of a file of records.

    Args:
        size: Side of raw images, pixels; ``None``: image files are stored as they are.
    """
    image = {"image": pa.large_binary() if size is None else pa.binary(3 * size * size)}
    return pa.schema({"id": pa.string(), **image, "captions": pa.list_(pa.string())})


def check_batch(batch: pa.RecordBatch, kind: str) -> None:
    """Checks that a batch's offsets lie within the batch, strings are valid UTF-8, and no value or needed caption is missing.

    The check reads ids, captions and offsets, not the images.

    Args:
        batch: Batch of records.
        kind: Kind of the store. Only in stores of ``"image-text"`` does each record need a caption.

    Raises:
        Damage: If the batch cannot be used.
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


_KEPT = 4096  # batches that are cached: each takes some kilobytes besides the mapped memory
_STARTS = b"dpfed batches of records.arrow"


def starts_of(schema: pa.Schema) -> np.ndarray:
    """Reads where the b batches of records start, from the schema of an index.

    Returns:
        The index of each batch's first record, then the number of all records, ``(b + 1,)`` int64.

    Raises:
        Damage: If the schema does not contain the starts.
    """
    noted = (schema.metadata or {}).get(_STARTS)
    if noted is None:
        raise Damage("the index does not say where the batches of records begin")
    return np.frombuffer(noted, "<i8")


def with_starts(schema: pa.Schema, counts: Sequence[int]) -> pa.Schema:
    """Returns the schema of an index, with the starts of the batches of records in its metadata; see `starts_of`.

    Args:
        schema: Columns of the index.
        counts: Number of records in each batch.
    """
    return schema.with_metadata({_STARTS: np.cumsum([0, *counts]).astype("<i8").tobytes()})


class MappedBatches:
    """The batches of a store's records (id, image, captions), in order.

    Iterating yields a pair for each batch: the slice of the indices that its records have in the store, and the batch. If a
    batch is damaged, iterating raises a `UserError`.

    Args:
        file: File of the records.
        header: Header of the store.
        starts: Starts of the batches, see `starts_of`.

    Raises:
        Damage: If the file's batches do not fit `starts` and `header`, or its columns are missing or of another type.
        pyarrow.ArrowException: If the file is not an Arrow file.
        OSError: If the file cannot be read.
    """

    def __init__(self, file: Path, header: dict[str, Any], starts: np.ndarray) -> None:
        with pa.memory_map(str(file)) as source:
            mapped = source.read_buffer()  # outlives the closed file: the number of open files of a process is limited
        self._path = file.parent
        self._kind = header["kind"]
        self._starts = starts
        self._reader = pa.ipc.open_file(mapped)
        schema = records_schema(header["images"].get("size"))
        _check_types(self._reader.schema, {field.name: field.type for field in schema})
        batches = self._reader.num_record_batches
        if len(starts) != batches + 1 or starts[0] != 0 or (np.diff(starts) < 0).any() or starts[-1] != header["records"]:
            raise Damage(f"the batches of {file.name} differ from those in the index")
        self._unchecked = np.ones(batches, bool)
        self._kept: dict[int, pa.RecordBatch] = {}

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __iter__(self) -> Iterator[tuple[slice, pa.RecordBatch]]:
        for number in range(len(self._starts) - 1):
            batch, start = self._batch(number), int(self._starts[number])
            yield slice(start, start + len(batch)), batch

    def column(self, name: str, indices: np.ndarray) -> list[Any]:
        """Returns the values of a column, one for each index.

        Args:
            name: Name of the column.
            indices: Indices of records, ``(n,)``, in any order.

        Raises:
            IndexError: If an index does not exist.
            UserError: If a batch is damaged.
        """
        result: list[Any] = [None] * len(indices)
        for places, batch, local in self.holding(indices):
            values = batch.column(name).take(pa.array(local)).to_pylist()
            for place, value in zip(places.tolist(), values, strict=True):
                result[place] = value
        return result

    def holding(self, indices: np.ndarray) -> Iterator[tuple[np.ndarray, pa.RecordBatch, np.ndarray]]:
        """Finds the batches that hold the records with given indices.

        Args:
            indices: Indices of records, ``(n,)``, in any order.

        Yields:
            For each such batch: the positions in `indices` of the records that it holds, the batch, and the rows of these
            records in the batch.

        Raises:
            IndexError: If an index does not exist.
            UserError: If a batch is damaged.
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
                    raise Damage("the number of records in a batch differs from that in the index")
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
    # Arrow does not promise that threads may share a reader. The lock is made per process: at the time of a fork, another
    # thread of the parent may hold the parent's lock.
    return threading.Lock()
