"""Whether the Arrow files of a store are what its header says.

Arrow takes the offsets in a file as they are, so a damaged one would read other memory of the process. Everything is checked
before it is used: the index when a store is opened, a batch of records when the first of them is read.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


class Damage(ValueError):
    """A file that is not as it was written; the message says what is wrong, in a few words, and names no record."""


def check_index(index: pa.Table, header: dict[str, Any]) -> None:
    """Checks the columns of an index and their types; `dpfed.data.store.index` checks the numbers.

    Args:
        index: of one part of a store.
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


def check_schema(schema: pa.Schema, header: dict[str, Any]) -> None:
    """Checks the columns of a file of records.

    Raises:
        Damage: when they are not what the header says.
    """
    size = header["images"].get("size")
    _check_types(schema, {field.name: field.type for field in records_schema(size)})


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
