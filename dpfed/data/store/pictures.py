"""The images of a store, as they are stored and as square pixels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpfed.data.store.decoding import Opened, Wanted, in_processes
from dpfed.data.store.layout import damaged
from dpfed.data.store.mapped import MappedBatches
from dpfed.data.views.pixels import BrokenImage, decoded, decoders, square
from dpfed.errors import UserError

if TYPE_CHECKING:  # torch takes seconds and half a gigabyte, and whoever imports or counts records does without
    from torch import Tensor

_RESIZED_AT_ONCE = 1024  # images resized at a time: bounds the float workspace


class Pictures:
    """Images by index.

    Args:
        path: the store's directory, for messages.
        size: side of raw images, pixels; ``None``: the original files are stored.
        batches: the records.

    Attributes:
        opened: what another process opens the store with; ``None``: it cannot.
    """

    opened: Opened | None = None

    def __init__(self, path: Path, size: int | None, batches: MappedBatches) -> None:
        self._path, self._size, self._batches = path, size, batches

    def stored(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        """The images of a batch as they are stored: files, or raw pixels."""
        return (self.at(batch, row) for row in range(len(batch)))

    def at(self, batch: pa.RecordBatch, row: int) -> bytes:
        """One of them."""
        return batch.column("image")[row].as_py()

    def lengths(self, batch: pa.RecordBatch) -> np.ndarray:
        """The bytes of each image of a batch, ``(n,)``; no image is read."""
        return np.asarray(pc.binary_length(batch.column("image")))

    def encoded(self, indices: np.ndarray) -> list[bytes]:
        """See `RecordStore.encoded`."""
        result = [b""] * len(indices)
        for places, batch, local in self._batches.holding(indices):
            for place, row in zip(places.tolist(), local.tolist(), strict=True):
                result[place] = self.at(batch, row)
        return result

    def squares(self, indices: np.ndarray, size: int, resize: str, interpolation: str) -> Tensor:
        """See `RecordStore.images`."""
        import torch

        if self._size is None:
            return self._decoded(np.asarray(indices), size, resize, interpolation)
        whole = np.dtype((np.void, 3 * self._size**2))  # one element per image: a gather is then one memcpy each
        stored = np.empty(len(indices), whole)
        for places, batch, local in self._batches.holding(indices):
            stored[places] = np.frombuffer(batch.column("image").buffers()[1], whole, len(batch))[local]
        images = torch.from_numpy(stored.view(np.uint8).reshape(-1, 3, self._size, self._size))
        return images if size == self._size else _resize(images, size, interpolation)

    def _decoded(self, indices: np.ndarray, size: int, resize: str, interpolation: str) -> Tensor:
        import torch

        wanted = Wanted(size, resize, interpolation)
        if self.opened is not None and (images := in_processes(self.opened, indices, wanted)) is not None:
            return images
        result = np.empty((len(indices), 3, size, size), np.uint8)
        for _ in decoders().map(lambda file: self._decode(result, wanted, *file), self._files(indices)):
            pass  # an error in a thread is raised here
        return torch.from_numpy(result)

    def decode_into(self, result: np.ndarray, indices: np.ndarray, wanted: Wanted) -> None:
        """Decodes files in this thread.

        Args:
            result: ``(n, 3, size, size)`` uint8.
            indices: ``(n,)``.
            wanted: how they become square.
        """
        for file in self._files(indices):
            self._decode(result, wanted, *file)

    def _files(self, indices: np.ndarray) -> Iterator[tuple[int, pa.RecordBatch, int]]:
        for places, batch, local in self._batches.holding(indices):
            for place, row in zip(places.tolist(), local.tolist(), strict=True):
                yield place, batch, row

    def _decode(self, result: np.ndarray, wanted: Wanted, place: int, batch: pa.RecordBatch, row: int) -> None:
        try:
            with decoded(self.at(batch, row)) as (image, _):
                result[place] = square(image, *wanted)
        except BrokenImage as error:
            found = damaged(self._path, f"the image of {batch.column('id')[row].as_py()!r} cannot be decoded ({error})")
            raise UserError(str(found), damaged(self._path, "an image cannot be decoded").public) from error


def _resize(images: Tensor, size: int, interpolation: str) -> Tensor:
    import torch

    result = images.new_empty(len(images), 3, size, size)
    for source, target in zip(images.split(_RESIZED_AT_ONCE), result.split(_RESIZED_AT_ONCE), strict=True):
        if len(source):
            resized = torch.nn.functional.interpolate(source.float(), (size, size), mode=interpolation, antialias=True)
            target.copy_(resized.round_().clamp_(0, 255))
    return result
