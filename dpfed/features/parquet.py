"""Features of pictures, or of captions, as a file for other programs: Parquet with names, or .npy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dpfed.data.named_pictures import NamedPictures, StoredPictures
from dpfed.data.views.preprocessing import Preprocessing
from dpfed.errors import UserError
from dpfed.files.atomic import refuse_existing, write_atomically

if TYPE_CHECKING:
    from torch import Tensor

_TOGETHER = 128  # pictures in memory at a time

Embed = Callable[["Tensor"], "Tensor"]
Batches = Iterator[tuple[np.ndarray, "Tensor"]]


def embedded(
    pictures: NamedPictures, embed: Embed, size: int, how: Preprocessing, advance: Callable[[int], None] = lambda done: None
) -> Batches:
    """Yields a model's features of pictures, batch by batch.

    Args:
        pictures: The pictures, at least one.
        embed: Uint8 ``(n, 3, size, size)`` -> ``(n, F)``.
        size: Side that the model sees, pixels.
        how: How pictures become square.
        advance: Learns how many are done.

    Yields:
        Numbers of the pictures ``(n,)``, and ``(n, F)`` float32 on the CPU.
    """
    for part in _batches(len(pictures)):
        yield part, embed(pictures.squares(part, size, how)).float().cpu()
        advance(int(part[-1]) + 1)


def captions_embedded(
    records: StoredPictures, embed: Callable[[list[list[str]]], Tensor], advance: Callable[[int], None] = lambda done: None
) -> Batches:
    """Yields a model's features of records' captions, batch by batch; see `embedded`.

    Args:
        records: Records with captions.
        embed: N lists of captions -> ``(n, F)``.
        advance: Learns how many are done.
    """
    for part in _batches(len(records)):
        yield part, embed(records.captions(part)).float().cpu()
        advance(int(part[-1]) + 1)


def _batches(count: int) -> list[np.ndarray]:
    return np.split(np.arange(count), range(_TOGETHER, count, _TOGETHER))


def write_features(out: Path, pictures: NamedPictures, batches: Batches) -> int:
    """Writes the features of each picture in order; only their owner can read the file.

    Args:
        out: Must not exist. A name that ends in .npy gets ``(n, F)`` float32; any other Parquet with the columns ``name``,
            ``features`` (F float32) and, where the records have units, ``unit``.
        pictures: Pictures, whose names are written.
        batches: Batches as `embedded` yields them.

    Returns:
        F, the width of the features.

    Raises:
        UserError: If `out` exists or cannot be written.
    """
    refuse_existing(out)
    width = 0

    def counted() -> Batches:
        nonlocal width
        for numbers, vectors in batches:
            width = vectors.shape[1]
            yield numbers, vectors

    def write(path: Path) -> None:
        (_write_npy if out.suffix == ".npy" else _write_parquet)(path, pictures, counted())

    try:
        write_atomically(out, write, mode=0o600)
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror or error}. [features-unwritable]") from error
    return width


def _write_npy(path: Path, pictures: NamedPictures, batches: Batches) -> None:
    mapped: Any = None
    for numbers, vectors in batches:
        if mapped is None:
            mapped = np.lib.format.open_memmap(path, "w+", np.float32, (len(pictures), vectors.shape[1]))
        mapped[numbers] = vectors.numpy()
    mapped.flush()


def _write_parquet(path: Path, pictures: NamedPictures, batches: Batches) -> None:
    writer = None
    for numbers, vectors in batches:
        features = pa.FixedSizeListArray.from_arrays(pa.array(vectors.numpy().reshape(-1)), vectors.shape[1])
        columns = {"name": pa.array(pictures.names(numbers), pa.string()), "features": features}
        if (units := pictures.units(numbers)) is not None:
            columns["unit"] = pa.array(units)
        table = pa.table(columns)
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
    assert writer is not None  # there is a picture
    writer.close()
