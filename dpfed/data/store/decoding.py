"""Files of images decoded by processes, which share nothing but the memory that the pixels go to.

Threads would take turns: a third of what an image costs is spent under the interpreter's lock. Each process opens the store for
itself. The memory has no name, so nothing can be left behind, and only processes of the same user can open it.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import mmap
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dpfed.data.processes import Processes, Tell, cores

if TYPE_CHECKING:
    from torch import Tensor

Opened = tuple[Callable[..., Any], tuple[Any, ...]]  # what opens a store, and with what: see `RecordStore.__reduce__`

_LEAST_CORES = 4  # with fewer, threads do as well, and take less memory
_MOST = 16  # processes
_PART = 16  # images that a process takes at a time
_WORTH = 4 * _PART
_FREE = 4  # blocks of memory that are kept


class Wanted(NamedTuple):
    """How images become square, see `RecordStore.images`."""

    size: int
    resize: str
    interpolation: str


def in_processes(opened: Opened, indices: np.ndarray, wanted: Wanted, workers: int | None = None) -> Tensor | None:
    """Decodes files of a store in processes.

    Args:
        opened: the store.
        indices: ``(n,)``.
        wanted: how they become square.
        workers: processes; default: one for each core that is this process's own, if these are many.

    Returns:
        ``(n, 3, size, size)`` uint8; ``None`` where threads are to do it.

    Raises:
        IndexError: for an index that does not exist.
        UserError: when a file cannot be decoded, or a process dies.
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
    return torch.from_numpy(images)  # whose views keep the array, as those of an array would not


class _Block:
    """Memory that processes write pixels to.

    Args:
        size: bytes.

    Attributes:
        size: as given.
        memory: mapped here.
        place: where other processes of this user open it, and a number that no other block has.
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
    """Processes, and the blocks that nobody reads: memory that was touched before costs half as much to write.

    Args:
        workers: processes.
    """

    def __init__(self, workers: int) -> None:
        self.processes, self.turn, self.free = Processes(workers), threading.Lock(), deque[_Block](maxlen=_FREE)
        atexit.register(self.processes.__exit__)

    def block(self, size: int) -> _Block:
        """A block of at least so many bytes."""
        while self.free:
            block = self.free.popleft()
            if block.size >= size:
                return block
        return _Block(size + size // 4)


@functools.lru_cache(maxsize=1)
def _pool(process: int, workers: int) -> _Pool:
    return _Pool(workers)  # those of a parent are not a fork's


def _decode(part: tuple[Opened, tuple[str, int], int, np.ndarray, Wanted], _: Tell) -> None:
    """What a process does with a part."""
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
