"""Sharded copies of record stores: many workers then share a data set, and each reads only its own part of it.

Which shard a training record is in depends on its key alone, or on the key of its unit where the store names units, so that a
unit is never divided (`dpfed.data.store.layout`). Held-out records have a part of their own, which every worker opens.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from dpfed.data.limits import MOST_SHARDS, whole_number
from dpfed.data.store.layout import HEADER, HELD_OUT, INDEX, RECORDS, SKIPPED, Part, read_layout, shard_folder
from dpfed.data.store.mapped import with_starts
from dpfed.data.store.record import SPLITS
from dpfed.data.store.records import RecordStore
from dpfed.files.atomic import cannot_write, name_directory, refuse_existing, start_directory
from dpfed.places import local_path

_BUFFER_BYTES = 256 << 20  # records in memory before each part gets its share of them
_OPEN_AT_ONCE = 256  # files that are written in one pass: a process may often have no more than 1,024 open


def shard_store(
    source: str | Path, dest: str | Path, shards: int = 64, progress: Callable[[int, int | None], None] | None = None
) -> RecordStore:
    """Writes a sharded copy of a store: all of it, or nothing.

    Images are copied as they are stored. Within a part records keep their order, so the same store gives the same files.
    Memory holds a few hundred megabytes of records at a time, and four bytes for each record of the store.

    Args:
        source: the store to copy; it may be sharded itself.
        dest: the directory to create; must not exist.
        shards: at most so many workers can share the copy.
        progress: called with (records so far, all records).

    Returns:
        The sharded store.

    Raises:
        UserError: when the source cannot be read, `dest` exists or cannot be written, or the number of shards is absurd.
    """
    shards = whole_number(shards, "the number of shards", 1, MOST_SHARDS)
    path = local_path(dest, "the place of the sharded copy")
    refuse_existing(path)
    store = RecordStore.open(local_path(source, "the store to copy"))
    with all_or_nothing(path) as partial:
        _write(store, partial, shards, progress)
    return RecordStore.open(path)


@contextlib.contextmanager
def all_or_nothing(path: Path) -> Iterator[Path]:
    """A hidden directory that becomes `path` at the end of the ``with`` block, and is removed when the block fails.

    Raises:
        UserError: when `path` exists or cannot be written.
    """
    partial = start_directory(path)
    try:
        yield partial
        name_directory(partial, path)
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def write_parts(
    store: RecordStore,
    folders: Sequence[Path],
    part_of_record: np.ndarray,
    progress: Callable[[int, int | None], None] | None = None,
) -> None:
    """Shares the records of a store out to folders, with an index and a file of records in each.

    Images, captions and ids are copied as they are stored, and records keep their order.

    Args:
        store: what is copied, in one pass, or in several where there are hundreds of folders.
        folders: made here, one for each part.
        part_of_record: ``(N,)`` integers, the part that each record goes to.
        progress: called with (records so far, all records).
    """
    for folder in folders:
        folder.mkdir()
    files, batches = [folder / RECORDS for folder in folders], []
    for first in range(0, len(files), _OPEN_AT_ONCE):
        batches += _write_records(store, files[first : first + _OPEN_AT_ONCE], part_of_record - first, progress)
    order = np.argsort(part_of_record.astype(np.uint16), kind="stable")  # 16 bits are sorted by counting
    ends = np.cumsum(np.bincount(part_of_record, minlength=len(folders)))
    for folder, rows, own in zip(folders, np.split(order, ends[:-1]), batches, strict=True):
        table = store.index.table.take(pa.array(rows))
        schema = with_starts(table.schema, {RECORDS: own})
        with pa.ipc.new_file(str(folder / INDEX), schema) as writer:
            writer.write_table(table.cast(schema))


def _write(store: RecordStore, path: Path, shards: int, progress: Callable[[int, int | None], None] | None) -> None:
    by_unit = store.units is not None
    owned = store.keys if store.units is None else store.units
    part_of_record = np.asarray(owned % np.uint64(shards), np.int32)
    for split in SPLITS[1:]:
        part_of_record[store.split(split)] = shards  # the last part
    parts = [Part(shard_folder(number), 0) for number in range(shards)] + [Part(HELD_OUT, 0)]
    write_parts(store, [path / part.folder for part in parts], part_of_record, progress)
    records = np.bincount(part_of_record, minlength=len(parts))[:-1].tolist()
    units = _counted(np.unique(owned[store.split("train")]), shards) if by_unit else None
    sharding = {"by": "unit" if by_unit else "record", "records": records, "units": units}
    header = read_layout(store.path).header
    header.pop("volumes", None)
    header |= {
        "sharding": sharding,
        "files": {name: (path / name).stat().st_size for part in parts for name in part.files},
    }
    if store.left_out > len(header["skipped"]):
        shutil.copy(store.path / SKIPPED, path / SKIPPED)
    (path / HEADER).write_text(json.dumps(header, indent=1), encoding="utf-8")


def _counted(owned: np.ndarray, shards: int) -> list[int]:
    return np.bincount((owned % np.uint64(shards)).astype(np.int64), minlength=shards).tolist()


def _write_records(
    store: RecordStore, files: list[Path], part_of_record: np.ndarray, progress: Callable[[int, int | None], None] | None
) -> list[list[int]]:
    """Writes the records of the parts 0, 1, ..., a file each, in one pass; each file is written some megabytes at a time.

    Returns:
        For each part, the lengths of its batches.
    """
    schema = next(store.stored())[1].schema
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(pa.ipc.new_file(str(file), schema)) for file in files]
        waiting: list[list[pa.RecordBatch]] = [[] for _ in files]
        written: list[list[int]] = [[] for _ in files]

        def write_waiting() -> None:
            for writer, batches, lengths in zip(writers, waiting, written, strict=True):
                if batches:
                    for batch in pa.Table.from_batches(batches).combine_chunks().to_batches():
                        writer.write_batch(batch)
                        lengths.append(len(batch))
                    batches.clear()

        held = 0
        for indices, batch in store.stored():
            order = np.argsort(part_of_record[indices], kind="stable")
            sorted_parts = part_of_record[indices][order]
            for places in np.split(order, np.flatnonzero(np.diff(sorted_parts)) + 1):
                part = part_of_record[indices][places[0]]
                if 0 <= part < len(files):
                    waiting[part].append(batch.take(pa.array(places)))
            held += batch.nbytes
            if held >= _BUFFER_BYTES:
                write_waiting()
                held = 0
            if progress is not None:
                progress(indices.stop, len(store))
        write_waiting()
    return written
