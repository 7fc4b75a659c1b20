"""Stores of any size in the real format, written fast: images of one pixel, names that are numbers, a caption for each."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa

from dpfed.data.store.layout import FORMAT_VERSION, HEADER, INDEX, RECORDS
from dpfed.data.store.mapped import with_starts

_BATCH = 1024
_AT_ONCE = 1 << 20


def write_synthetic(path: Path, records: int, held_out: int = 1000) -> int:
    """Writes a store, whose keys are random: a hash of ten million names would take longer than everything else.

    Args:
        path: of the store.
        records: N.
        held_out: how many of them are for validation, anywhere in the store.

    Returns:
        Bytes on disk.
    """
    path.mkdir(parents=True)
    random = np.random.default_rng(0)
    schema = pa.schema([("id", pa.string()), ("image", pa.binary(3)), ("captions", pa.list_(pa.string()))])
    lengths = [min(_BATCH, records - first) for first in range(0, records, _BATCH)]
    with pa.ipc.new_file(str(path / RECORDS), schema) as writer:
        first = 0
        for length in lengths:
            writer.write_batch(_batch(first, length, schema))
            first += length
    splits = np.zeros(records, np.int8)
    splits[random.choice(records, held_out, replace=False)] = 1
    table = pa.table({"key": random.integers(0, 2**64, records, np.uint64), "split": splits})
    schema = with_starts(table.schema, lengths)
    with pa.ipc.new_file(str(path / INDEX), schema) as writer:
        writer.write_table(table.cast(schema))
    sizes = {name: (path / name).stat().st_size for name in (INDEX, RECORDS)}
    header = {
        "dpfed_store": FORMAT_VERSION,
        "name": "synthetic",
        "kind": "image-text",
        "public": False,
        "records": records,
        "splits": {"train": records - held_out, "validation": held_out, "test": 0},
        "images": {"encoding": "raw", "size": 1},
        "label_names": {},
        "unit_name": None,
        "skipped": [],
        "files": sizes,
        "contents": {"fingerprint": "0" * 32, "key": "0" * 64},
    }
    (path / HEADER).write_text(json.dumps(header), encoding="utf-8")
    return sum(sizes.values())


def _batch(first: int, length: int, schema: pa.Schema) -> pa.RecordBatch:
    digits = np.char.zfill(np.arange(first, first + length).astype("S9"), 9)
    ends = pa.py_buffer(np.arange(0, (length + 1) * 9, 9, dtype=np.int32).tobytes())
    names = pa.StringArray.from_buffers(length, ends, pa.py_buffer(digits.tobytes()))
    captions = pa.ListArray.from_arrays(pa.array(np.arange(length + 1, dtype=np.int32)), names)
    images = pa.FixedSizeBinaryArray.from_buffers(pa.binary(3), length, [None, pa.py_buffer(bytes(3 * length))])
    return pa.record_batch([names, images, captions], schema=schema)
