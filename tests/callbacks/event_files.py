"""Reads what trackers wrote, with their own libraries where these can."""

from __future__ import annotations

import json
import struct
from pathlib import Path

_BLOCK, _HEADER = 32_768, 7  # of W&B's transaction log: records in blocks, as LevelDB writes them
_LAST = (1, 4)  # kinds of a part that ends a record


def boards(folder: Path):
    """TensorBoard's own reader, over all files of a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(folder), {"scalars": 0, "images": 0, "tensors": 0}).Reload()


def texts(accumulator) -> dict[str, str]:
    tags = [tag for tag in accumulator.Tags()["tensors"]]
    return {tag: accumulator.Tensors(tag)[-1].tensor_proto.string_val[0].decode() for tag in tags}


def records(file: Path) -> list:
    """The records of a W&B run that was written offline, in order."""
    from wandb.proto import wandb_internal_pb2

    data, at, part, entries = file.read_bytes(), _HEADER, b"", []
    while at + _HEADER <= len(data):
        if (left := _BLOCK - at % _BLOCK) < _HEADER:
            at += left
            continue
        length, kind = struct.unpack("<HB", data[at + 4 : at + _HEADER])
        part += data[at + _HEADER : at + _HEADER + length]
        at += _HEADER + length
        if kind in _LAST:
            entries.append(wandb_internal_pb2.Record.FromString(part))
            part = b""
    return entries


def history(file: Path) -> list[dict]:
    """The rows of such a run."""
    rows = [record.history.item for record in records(file) if record.HasField("history")]
    return [{item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in row} for row in rows]
