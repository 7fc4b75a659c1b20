"""Opens files of features that `dpfed embed` wrote: memory-maps .npy files, and reads Parquet files into memory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpfed.arrays.refusal import ArrayError

FEATURES, NAME = "features", "name"  # columns of a Parquet file


@dataclass(frozen=True)
class Opened:
    """The content of a file of features.

    Attributes:
        features: Features, ``(N, F)`` if they come from a Parquet file; an array in a .npy file may have any shape.
        names: Names of the rows, a pyarrow array; ``None``: the file has none.
    """

    features: np.ndarray
    names: Any = None


def opened(given: str | os.PathLike[str], name: str) -> Opened:
    """Opens a file of features.

    Args:
        given: Path of the file.
        name: Name of the matrix in messages, such as ``X``.

    Raises:
        ArrayError: If the file is neither .npy nor Parquet, cannot be read, or holds no features.
    """
    path = expanded(given, name)
    try:
        if path.suffix == ".npy":
            return Opened(np.load(path, mmap_mode="r", allow_pickle=False))
        if path.suffix in (".parquet", ".pq"):
            return _parquet(path)
    except (OSError, ValueError, EOFError, NotImplementedError) as error:  # the last: types that pyarrow cannot convert
        said = getattr(error, "strerror", None) or error
        raise ArrayError(f"cannot read {path} as {name}: {said}. [arrays-file]") from error
    raise ArrayError(f"{name} = '{path}': expected a file that ends in .npy or .parquet, or an array. [arrays-file-kind]")


def expanded(path: str | os.PathLike[str], name: str) -> Path:
    """Returns a path in which a leading ``~`` or ``~user`` is replaced by the home directory.

    Args:
        path: Path as the user gave it.
        name: Name of the argument in messages.

    Raises:
        ArrayError: If there is no such home directory.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ArrayError(f"{name} = '{path}': this home directory is unknown; give the whole path. [arrays-home]") from error


def _parquet(path: Path) -> Opened:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = pq.read_schema(path).names
    if FEATURES not in columns:
        raise ArrayError(
            f"{path} has the columns {', '.join(columns)}: expected a column '{FEATURES}' of vectors, as `dpfed embed` writes "
            "it. [arrays-file-column]"
        )
    table = pq.read_table(path, columns=[column for column in (FEATURES, NAME) if column in columns])
    vectors = table[FEATURES].combine_chunks()
    if not (
        pa.types.is_fixed_size_list(vectors.type) or pa.types.is_list(vectors.type) or pa.types.is_large_list(vectors.type)
    ):
        raise ArrayError(f"'{FEATURES}' in {path} holds {vectors.type}: expected vectors. [arrays-file-vectors]")
    values, count = vectors.flatten(), len(vectors)
    if vectors.null_count:
        raise ArrayError(
            f"{vectors.null_count:,} of {count:,} vectors in {path} are missing: leave their rows out. [arrays-file-missing]"
        )
    if count and (len(values) % count or set(_lengths(vectors)) != {len(values) // count}):
        raise ArrayError(
            f"the vectors in {path} differ in length: expected the same number of features in each. [arrays-file-lengths]"
        )
    features = values.to_numpy(zero_copy_only=False).reshape(count, -1 if count else 0)
    return Opened(features, table[NAME].combine_chunks() if NAME in table.column_names else None)


def _lengths(vectors: Any) -> list[int]:
    import pyarrow.compute as pc

    return pc.unique(pc.list_value_length(vectors)).to_pylist()
