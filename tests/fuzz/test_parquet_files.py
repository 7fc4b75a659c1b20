"""Parquet files of any schema, and damaged ones."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import strategies as st

from tests.fuzz.damage import damaged
from tests.fuzz.data_root import NAMES, PNG, bounded, imported
from tests.fuzz.profiles import Effort, efforts

TYPES = st.sampled_from(
    [
        pa.binary(),
        pa.large_binary(),
        pa.binary(4),
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.int8(),
        pa.int64(),
        pa.uint64(),
        pa.float64(),
        pa.bool_(),
        pa.null(),
        pa.timestamp("ns"),
        pa.list_(pa.string()),
        pa.large_list(pa.string()),
        pa.list_(pa.list_(pa.int64())),
        pa.dictionary(pa.int32(), pa.string()),
        pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
        pa.struct([("bytes", pa.string()), ("path", pa.int64())]),
        pa.struct([("raw", pa.string()), ("tokens", pa.list_(pa.string()))]),
        pa.decimal128(5, 2),
    ]
)
PARQUET = ["image", "caption", "caption_1", "label", "unit", "text", "fine_label", "id", "image.path", "x", ""]
METADATA = st.sampled_from(
    [
        None,
        b"{",
        b"[]",
        b'{"info": 3}',
        b'{"info": {"features": {"label": {"_type": "ClassLabel", "names": ["a", "b"]}}}}',
        b'{"info": {"features": {"label": {"_type": "ClassLabel", "names": 7}, "x": null}}}',
        b"\xff",
    ]
)


def value_of(type: pa.DataType, row: int, name: str, world: Path) -> object:
    """Something that a column of a type may hold."""
    if row % 4 == 3:
        return None
    if pa.types.is_struct(type):
        return {field.name: value_of(field.type, row, name, world) for field in type}
    if pa.types.is_list(type) or pa.types.is_large_list(type):
        return [value_of(type.value_type, row, name, world)] * row
    if pa.types.is_binary(type) or pa.types.is_large_binary(type):
        return PNG if row % 2 == 0 else None
    if pa.types.is_fixed_size_binary(type):
        return bytes(4)
    if pa.types.is_dictionary(type) or "string" in str(type):
        return name.replace("OUTSIDE", str(world)).encode("utf-8", "replace").decode()
    return {"bool": True, "double": float("nan"), "null": None}.get(str(type), row if "uint" in str(type) else row - 1)


@pytest.mark.long
@efforts
def test_parquet_of_any_schema(effort: Effort, world: Path) -> None:
    (world / "root" / "link.png").symlink_to(world / "secret.png")
    os.mkfifo(world / "root" / "pipe.png")

    def check(columns: dict[str, pa.DataType], rows: int, name: str, metadata: bytes | None, skip: bool) -> None:
        arrays = [pa.array([value_of(type, row, name, world) for row in range(rows)], type) for type in columns.values()]
        schema = pa.schema(list(columns.items()), {b"huggingface": metadata} if metadata else None)
        try:
            pq.write_table(pa.table(arrays, schema=schema), world / "root" / "train.parquet")
        except pa.ArrowNotImplementedError:  # a type that this version cannot write
            return
        imported(world, world / "root" / "train.parquet", skip_broken=skip)

    image = st.sampled_from([pa.binary(), pa.struct([("bytes", pa.binary()), ("path", pa.string())])])
    columns = st.one_of(
        st.dictionaries(st.sampled_from(PARQUET), TYPES, max_size=4),
        st.tuples(image, st.dictionaries(st.sampled_from(PARQUET[1:]), TYPES, max_size=4)).map(
            lambda pair: {"image": pair[0], **pair[1]}
        ),
    )
    bounded(effort, 120, check, columns, st.integers(0, 5), NAMES, METADATA, st.booleans())


@efforts
def test_parquet_of_any_bytes(effort: Effort, world: Path) -> None:
    buffer = io.BytesIO()
    pq.write_table(pa.table({"image": [PNG] * 3, "caption": ["a", "b", "c"], "label": ["x", "y", None]}), buffer)

    def check(content: bytes, skip: bool) -> None:
        (world / "root" / "train.parquet").write_bytes(content)
        imported(world, world / "root" / "train.parquet", skip_broken=skip)

    bounded(effort, 100, check, st.one_of(damaged(buffer.getvalue()), st.binary(max_size=40)), st.booleans())
