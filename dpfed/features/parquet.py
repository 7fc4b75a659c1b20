"""What a model makes of pictures, as a Parquet file for other programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dpfed.data.named_pictures import NamedPictures
from dpfed.data.views.preprocessing import Preprocessing
from dpfed.errors import UserError
from dpfed.files.atomic import refuse_existing, write_atomically

if TYPE_CHECKING:
    from torch import Tensor

_TOGETHER = 128  # pictures in memory at a time

Embed = Callable[["Tensor"], "Tensor"]


def embedded(
    pictures: NamedPictures, embed: Embed, size: int, how: Preprocessing, advance: Callable[[int], None] = lambda done: None
) -> Iterator[tuple[np.ndarray, Tensor]]:
    """What a model makes of pictures, batch by batch.

    Args:
        pictures: at least one.
        embed: uint8 ``(n, 3, size, size)`` -> ``(n, F)``.
        size: side that the model sees, pixels.
        how: they become square.
        advance: learns how many are done.

    Yields:
        Numbers of the pictures ``(n,)``, and ``(n, F)`` float32 on the CPU.
    """
    numbers = np.arange(len(pictures))
    for part in np.split(numbers, range(_TOGETHER, len(numbers), _TOGETHER)):
        yield part, embed(pictures.squares(part, size, how)).float().cpu()
        advance(int(part[-1]) + 1)


def write_parquet(out: Path, pictures: NamedPictures, batches: Iterator[tuple[np.ndarray, Tensor]]) -> int:
    """Writes ``name`` and ``features``, a list of F float32, for each picture; only its owner can read the file.

    Args:
        out: must not exist.
        pictures: whose names are written.
        batches: of `embedded`.

    Returns:
        F, the width of the features.

    Raises:
        UserError: if `out` exists or cannot be written.
    """
    refuse_existing(out)
    width = 0

    def write(path: Path) -> None:
        nonlocal width
        writer = None
        for numbers, vectors in batches:
            width = vectors.shape[1]
            features = pa.FixedSizeListArray.from_arrays(pa.array(vectors.numpy().reshape(-1)), width)
            table = pa.table({"name": pa.array(pictures.names(numbers), pa.string()), "features": features})
            writer = writer or pq.ParquetWriter(path, table.schema)
            writer.write_table(table)
        assert writer is not None  # there is a picture
        writer.close()

    try:
        write_atomically(out, write, mode=0o600)
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror or error}. [features-unwritable]") from error
    return width
