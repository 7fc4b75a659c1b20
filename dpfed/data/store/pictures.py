"""Reads the images of a store: as they are stored, or as pixels of square images.

If many image files are wanted, several processes decode them, because threads would wait for each other: a third of the time
per image is spent under the interpreter's lock. Each process opens the store for itself. The processes share only the memory to
which they write the pixels. This memory has no name, so nothing can be left behind, and only processes of the same user can
open it.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import mmap
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpfed.data.decoding import BrokenImage, decoded, decoders
from dpfed.data.processes import Processes, cores
from dpfed.data.resizing import square
from dpfed.data.store.layout import damaged
from dpfed.data.store.mapped import MappedBatches
from dpfed.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

Opened = tuple[Callable[..., Any], tuple[Any, ...]]  # function that opens a store, and its arguments: `RecordStore.__reduce__`

_LEAST_CORES = 4  # with fewer cores, threads are as fast and take less memory
_MOST = 16  # processes
_PART = 16  # images that a process takes at a time
_WORTH = 4 * _PART  # images; fewer are decoded in threads
_FREE = 4  # blocks of memory that are kept for reuse


class Wanted(NamedTuple):
    """How images shall become square: side of the result in pixels, resizing and interpolation (see `RecordStore.images`)."""

    size: int
    resize: str
    interpolation: str


def in_processes(opened: Opened, indices: np.ndarray, wanted: Wanted, workers: int | None = None) -> Tensor | None:
    """Decodes image files of a store in several processes.

    Args:
        opened: Function that opens the store, and its arguments.
        indices: Indices of the records, ``(n,)``.
        wanted: Side and resizing of the square images.
        workers: Number of processes; ``None``: one for each core of this rank, up to 16.

    Returns:
        The images, ``(n, 3, size, size)`` uint8. ``None`` if threads should decode instead: because the system has no
        shared memory without a name (``memfd_create``); or because `workers` is ``None``, and this rank has fewer than 4 cores
        or there are fewer than 64 images.

    Raises:
        IndexError: If an index does not exist.
        UserError: If the store is damaged, a file cannot be decoded, or a process dies.
    """
    if workers is None:
        workers = min(_MOST, cores() // int(os.environ.get("LOCAL_WORLD_SIZE", 1)))
        if workers < _LEAST_CORES or len(indices) < _WORTH:
            return None
    if not hasattr(os, "memfd_create"):
        return None
    import torch

    pool = _pool(os.getpid(), workers)
    block = pool.block(len(indices) * 3 * wanted.size**2)
    part = max(4, min(_PART, len(indices) // (4 * workers)))
    parts = [(opened, block.place, start, indices[start : start + part], wanted) for start in range(0, len(indices), part)]
    with pool.turn:
        for _ in pool.processes.each(_decode, parts):
            pass
    images = _images(block.memory, wanted)[: len(indices)]
    weakref.finalize(images, pool.free.append, block).atexit = False
    return torch.from_numpy(images)  # views of this tensor keep the array alive; views of an array would keep only its base


class _Block:
    """A block of memory to which several processes write pixels.

    Args:
        size: Size in bytes.

    Attributes:
        size: Size in bytes.
        memory: Memory mapping in this process.
        place: Path at which other processes of this user open the memory, and a number that no other block has.
    """

    numbers = itertools.count()

    def __init__(self, size: int) -> None:
        self.size, self._file = size, os.memfd_create("dpfed-pixels")
        os.ftruncate(self._file, size)
        self.memory = mmap.mmap(self._file, size)
        self.place = f"/proc/{os.getpid()}/fd/{self._file}", next(self.numbers)

    def __del__(self) -> None:
        os.close(self._file)


class _Pool:
    """Processes that decode images, and blocks of memory for reuse: writing to these takes half as long as to new memory.

    Args:
        workers: Number of processes.
    """

    def __init__(self, workers: int) -> None:
        self.processes, self.turn, self.free = Processes(workers), threading.Lock(), deque[_Block](maxlen=_FREE)
        atexit.register(self.processes.__exit__)

    def block(self, size: int) -> _Block:
        """Returns a block of at least `size` bytes: a free one, or a new one. Free blocks that are too small are given up."""
        with contextlib.suppress(IndexError):  # another thread may take the last one
            while True:
                block = self.free.popleft()
                if block.size >= size:
                    return block
        return _Block(size + size // 4)


@functools.cache
def _pool(process: int, workers: int) -> _Pool:
    return _Pool(workers)  # a fork cannot use the processes of its parent


def _decode(part: tuple[Opened, tuple[str, int], int, np.ndarray, Wanted]) -> None:
    """Decodes a part of the images of a call, in one of the processes.

    Args:
        part: How to open the store, the place of the shared memory, the position in that memory of the part's first image, the
            indices of the part's records, and how images become square.
    """
    opened, place, start, indices, wanted = part
    pixels = _images(_memory(*place), wanted)
    _store(opened).pictures.decode_into(pixels[start : start + len(indices)], indices, wanted)


@functools.lru_cache(maxsize=_FREE)
def _memory(place: str, number: int) -> mmap.mmap:
    file = os.open(place, os.O_RDWR)
    try:
        return mmap.mmap(file, 0)
    finally:
        os.close(file)


@functools.lru_cache(maxsize=4)
def _store(opened: Opened) -> Any:
    function, arguments = opened
    return function(*arguments)


def _images(memory: mmap.mmap, wanted: Wanted) -> np.ndarray:
    each = 3 * wanted.size**2
    return np.frombuffer(memory, np.uint8, len(memory) // each * each).reshape(-1, 3, wanted.size, wanted.size)


_RESIZED_AT_ONCE = 16  # images: their float32 pixels stay in the cache, which is six times as fast as a thousand at a time


class Pictures:
    """Reads the images of a store by the indices of their records.

    Args:
        path: Directory of the store, for messages.
        size: Side of raw images, pixels; ``None``: the original files are stored.
        batches: Records of the store.

    Attributes:
        opened: Function and arguments with which another process opens the store; ``None``: another process cannot open it.
    """

    opened: Opened | None = None

    def __init__(self, path: Path, size: int | None, batches: MappedBatches) -> None:
        self._path, self._size, self._batches = path, size, batches

    def stored(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        """Yields the images of a batch as they are stored: files, or raw pixels."""
        return (self.at(batch, row) for row in range(len(batch)))

    def at(self, batch: pa.RecordBatch, row: int) -> bytes:
        """Returns the image in one row of a batch as it is stored: a file, or raw pixels."""
        return batch.column("image")[row].as_py()

    def lengths(self, batch: pa.RecordBatch) -> np.ndarray:
        """Returns the size in bytes of each image of a batch, ``(n,)``; no image is read."""
        return np.asarray(pc.binary_length(batch.column("image")))

    def encoded(self, indices: np.ndarray) -> list[bytes]:
        """Returns images as they are stored, see `RecordStore.encoded`."""
        result = [b""] * len(indices)
        for places, batch, local in self._batches.holding(indices):
            for place, row in zip(places.tolist(), local.tolist(), strict=True):
                result[place] = self.at(batch, row)
        return result

    def squares(self, indices: np.ndarray, size: int, resize: str, interpolation: str) -> Tensor:
        """Returns square images, see `RecordStore.images`."""
        import torch

        if self._size is None:
            return self._decoded(np.asarray(indices), size, resize, interpolation)
        whole = np.dtype((np.void, 3 * self._size**2))  # one element per image, so that a gather is one memcpy per image
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
            pass  # iterating raises the errors of the threads
        return torch.from_numpy(result)

    def decode_into(self, result: np.ndarray, indices: np.ndarray, wanted: Wanted) -> None:
        """Decodes the image files of records in this thread, makes them square, and writes the pixels to an array.

        Args:
            result: Output array, ``(n, 3, size, size)`` uint8.
            indices: Indices of the records, ``(n,)``.
            wanted: Side and resizing of the square images.

        Raises:
            IndexError: If an index does not exist.
            UserError: If the store is damaged, or a file cannot be decoded.
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
            id = batch.column("id")[row].as_py()
            sentence = damaged(self._path, f"the image of {id!r} cannot be decoded ({error})").sentence
            raise UserError(f"{sentence} [store-image]", damaged(self._path, "an image cannot be decoded").sentence) from error


def _resize(images: Tensor, size: int, interpolation: str) -> Tensor:
    import torch

    result = images.new_empty(len(images), 3, size, size)
    for source, target in zip(images.split(_RESIZED_AT_ONCE), result.split(_RESIZED_AT_ONCE), strict=True):
        if len(source):
            resized = torch.nn.functional.interpolate(source.float(), (size, size), mode=interpolation, antialias=True)
            target.copy_(resized.round_().clamp_(0, 255))
    return result
