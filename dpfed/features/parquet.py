"""Computes features of pictures or captions, and writes them to a file for other programs: Parquet with names, or .npy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dpfed.data.named_pictures import NamedPictures, StoredPictures
from dpfed.data.views.preprocessing import Preprocessing
from dpfed.errors import UserError
from dpfed.files.atomic import refuse_existing, write_atomically

if TYPE_CHECKING:
    from torch import Tensor

_TOGETHER = 128  # number of pictures, or of records with captions, in memory at a time

Embed = Callable[["Tensor"], "Tensor"]
Batches = Iterator[tuple[np.ndarray, "Tensor"]]


def embedded(
    pictures: NamedPictures, embed: Embed, size: int, how: Preprocessing, advance: Callable[[int], None] = lambda done: None
) -> Batches:
    """Yields a model's features of pictures, batch by batch.

    Args:
        pictures: Pictures, at least one.
        embed: Function from images ``(n, 3, size, size)`` uint8 to features ``(n, F)``.
        size: Side of the images that the model reads, pixels.
        how: Preprocessing that makes pictures square.
        advance: Function that is called with the number of completed pictures.

    Yields:
        The numbers of the pictures of a batch, ``(n,)``, and their features, ``(n, F)`` float32 on the CPU.

    Raises:
        UserError: If a picture cannot be read.
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
        embed: Function from n lists of captions to features ``(n, F)``.
        advance: Function that is called with the number of completed records.

    Raises:
        UserError: If the record store is damaged.
    """
    for part in _batches(len(records)):
        yield part, embed(records.captions(part)).float().cpu()
        advance(int(part[-1]) + 1)


def _batches(count: int) -> list[np.ndarray]:
    """Returns the numbers 0 .. count - 1, split into batches."""
    return np.split(np.arange(count), range(_TOGETHER, count, _TOGETHER))


def write_features(out: Path, pictures: NamedPictures, batches: Batches) -> int:
    """Writes the features of pictures to a new file, in the order of the pictures. Only the user can read the file.

    Args:
        out: Path of the file, which must not exist. If it ends in ``.npy``, the file is an array ``(n, F)`` float32. Otherwise
            it is a Parquet file with the columns ``name``, ``features`` (F float32 in each row) and, if the records have units,
            ``unit``. F: the number of features of a picture.
        pictures: Pictures, at least one; their names go into a Parquet file.
        batches: Batches of all pictures or captions in order, as `embedded` and `captions_embedded` yield them.

    Returns:
        F, the number of features of a picture.

    Raises:
        UserError: If `out` exists or cannot be written. A `UserError` of `batches` is raised as it is.
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
    # Not a memory map: on a full disk, a write to one ends the process without a message.
    with open(path, "wb") as file:
        for numbers, vectors in batches:
            if numbers[0] == 0:
                shape = (len(pictures), vectors.shape[1])
                np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
            file.write(np.ascontiguousarray(vectors.numpy(), "<f4").data)


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
