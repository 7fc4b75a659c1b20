"""Cuts a long sum into blocks, each with its own noise key and, with SHA-256, its own digest.

Threads can therefore process blocks in parallel, and the result does not depend on the number of threads. How a sum is cut
depends on its length alone. A short sum is one block: its noise is derived from the coordinator's own key, and its digest is
computed directly from its bits. docs/guarantee.md explains why each number gets its noise exactly once.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dpfed.privacy.noise import GaussianNoise, KeyedNoise, Noise, digest_of, in_floats
from dpfed.privacy.randomness import Randomness
from dpfed.privacy.universal_hash import UniversalHash

if TYPE_CHECKING:  # torch takes seconds to import, and a plan is refused without it
    from torch import Tensor

SMALL = 1 << 19  # longest sum that is one block: one process adds its noise in the time of a few messages
LENGTH = 1 << 16  # numbers in a block of a longer sum: 64 workers divide 11 million numbers equally, to within about a tenth
PURPOSE = "noise"  # purpose in the key of the noise on the sum
_THREADS = min(16, os.cpu_count() or 1)
_TOGETHER = 256  # blocks whose noise a GPU draws in one launch, 17 million numbers; its workspace is about 0.7 GB


def block_length(size: int) -> int | None:
    """Returns the length of a block for a sum of `size` numbers in a new run; ``None`` if the sum is one block."""
    return None if size <= SMALL else LENGTH


@dataclass(frozen=True)
class Blocks:
    """The division of a sum into blocks.

    Args:
        size: Length of the sum, statistics included.
        length: Length of a block. The last block may be shorter. ``None`` if the sum is one block.
        hashed: Hash that computes digests on the device where the sum is; ``None`` for SHA-256, on the host.
    """

    size: int
    length: int | None = None
    hashed: UniversalHash | None = field(default=None, compare=False, repr=False)

    @property
    def count(self) -> int:
        """Number of blocks."""
        return 1 if self.length is None else max(1, -(-self.size // self.length))

    def place(self, first: int, end: int) -> slice:
        """Returns the range of the sum that the blocks `first` to `end` (excluded) occupy."""
        length = self.length or self.size
        return slice(min(first * length, self.size), min(end * length, self.size))

    def cut(self, values: Tensor) -> Sequence[Tensor]:
        """Divides a sum, or consecutive blocks of it, into the single blocks, and returns a view of each.

        Args:
            values: Flat tensor that begins where a block of the sum begins, and ends where a block ends.
        """
        return (values,) if self.length is None else values.split(self.length) if values.numel() else ()

    def digests(self, values: Tensor) -> list[str]:
        """Returns the SHA-256 digest of each block of `values`; see `cut` for the argument."""
        return _beside(digest_of, self.cut(on_host(values)))

    def joined(self, digests: Sequence[str]) -> str:
        """Returns the digest of a whole sum, from the digests of its blocks.

        Args:
            digests: Digests of all blocks of the sum, in order.

        Raises:
            ValueError: If the number of digests is not the number of blocks.
        """
        if len(digests) != self.count:
            raise ValueError(f"expected the digests of {self.count} blocks, got {len(digests)} digests")
        if self.count == 1:
            return digests[0]
        text = f"{self.size}/{self.length}/{'/'.join(digests)}"
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def digest(self, values: Tensor) -> str:
        """Returns the digest of a sum of shape ``(size,)``."""
        if self.hashed is not None:
            return self.hashed.digest(values)
        return self.joined(self.digests(values))


class SumNoise:
    """The coordinator's noise on the sum. The object holds the secret from which this noise is derived.

    Args:
        noise: Kind and scale of the noise.
        randomness: Secret randomness of the coordinator.
        blocks: Division of the sum into blocks.
        context: Fingerprint of the plan, which is public.
    """

    def __init__(self, noise: Noise, randomness: Randomness, blocks: Blocks, context: str) -> None:
        self.noise, self.blocks, self.context = noise, blocks, context
        self._randomness = randomness

    def keys(self, step: int, first: int, end: int) -> list[bytes]:
        """Returns the keys of the blocks `first` to `end` (excluded) in a step. They reveal nothing about any other key.

        Raises:
            ValueError: If the sum is one block, whose noise is derived from the coordinator's own key.
        """
        if self.blocks.count == 1:
            raise ValueError("this sum is one block, whose noise is derived from the coordinator's own key: no block has a key")
        return [self._randomness.key("block of noise", block, step) for block in range(first, end)]

    def noisy(self, values: Tensor, step: int) -> Tensor:
        """Returns a whole exact sum plus the noise of a step.

        Args:
            values: Exact sum, ``(P,)`` int64, as whole numbers of grid steps (`dpfed.privacy.sum_grid`).
            step: Training step.

        Returns:
            The noisy sum, ``(P,)`` float32, as real values, no longer in grid steps.
        """
        if self.blocks.count == 1:
            return KeyedNoise(self.noise, self._randomness, PURPOSE, self.context).noisy(values, step)
        keys = self.keys(step, 0, self.blocks.count)  # first, while a GPU still adds up: the digest waits for it
        context = self.context_of(self.blocks.digest(values))
        return noisy_blocks(self.blocks, values, self.noise, keys, context, step)

    def context_of(self, clean: str) -> str:
        """Returns the public text from which, together with a block's key, the noise is derived.

        The text holds the plan's fingerprint and the digest of the whole sum without noise, so a different sum gets different
        noise.

        Args:
            clean: Digest of the whole sum without noise.
        """
        return f"{self.context}/{clean}"


def noisy_blocks(blocks: Blocks, values: Tensor, noise: Noise, keys: Sequence[bytes], context: str, step: int) -> Tensor:
    """Adds the noise of a step to an exact sum, or to consecutive blocks of it, and returns the result.

    Args:
        blocks: Division of the sum into blocks.
        values: Exact sum, or some consecutive blocks of it: flat int64 tensor of whole numbers of grid steps
            (`dpfed.privacy.sum_grid`); not modified.
        noise: Kind and scale of the noise.
        keys: Key of each block in `values`, in order, see `SumNoise.keys`.
        context: Context of the noise keys, see `SumNoise.context_of`.
        step: Training step.

    Returns:
        The noisy numbers, float32, in the shape of `values`, as real values, no longer in grid steps.

    Raises:
        ValueError: If the number of keys is not the number of blocks in `values`.
    """
    import torch

    if len(keys) != len(blocks.cut(values)):  # two blocks with one key would get the same noise
        raise ValueError(f"expected a key for each of {len(blocks.cut(values))} blocks, got {len(keys)} keys")
    noisy, done = torch.empty(values.shape, device=values.device), 0
    if isinstance(noise, GaussianNoise):
        for first, end, width in _pieces(blocks, values.numel()):
            count = width + width % 2
            if not has_kernel(values, count):
                break
            from dpfed.privacy.keystream_kernel import words

            place = blocks.place(first, end)
            rows = torch.nn.functional.pad(values[place].view(-1, width), (0, count - width))
            streams = [Randomness(key).stream_key(PURPOSE, step, 0, context) for key in keys[first:end]]
            sums = noise.steps_of(rows, words(streams, count, values.device))
            noisy[place] = in_floats(sums[:, :width], noise).reshape(-1)
            done = end

    def make(block: Tensor, out: Tensor, key: bytes) -> None:
        out.copy_(in_floats(noise.steps(block, Randomness(key), PURPOSE, step, 0, context), noise))

    _beside(make, blocks.cut(values)[done:], blocks.cut(noisy)[done:], keys[done:])
    return noisy


def _pieces(blocks: Blocks, size: int) -> Iterator[tuple[int, int, int]]:
    """Yields ranges of blocks whose noise a GPU draws together, because they are equally long.

    Each range is a tuple: its first block, the block after its last, and the length of a block.
    """
    if blocks.length is None:
        return
    whole, rest = divmod(size, blocks.length)
    for first in range(0, whole, _TOGETHER):
        yield first, min(first + _TOGETHER, whole), blocks.length
    if rest:
        yield whole, whole + 1, rest


def on_host(values: Tensor) -> Tensor:
    """Returns values in the host's memory, detached from autograd.

    Values that are in the host's memory already are not copied. Values from a GPU are copied to pinned memory, if the host can
    pin any; this takes a thirtieth of the time of an ordinary copy.
    """
    import torch

    values = values.detach()
    if _on_gpu(values):
        with contextlib.suppress(RuntimeError):  # no memory can be pinned, or no more memory
            return torch.empty(values.shape, dtype=values.dtype, pin_memory=True).copy_(values)
    return values.cpu()


def _on_gpu(values: Tensor) -> bool:
    return values.device.type == "cuda"


def has_kernel(values: Tensor, count: int) -> bool:
    """Returns whether a kernel can compute the noise's random bits on the GPU of `values`, for blocks of `count` numbers."""
    if not _on_gpu(values):
        return False
    try:
        from dpfed.privacy.keystream_kernel import works_on
    except ImportError:  # Triton is absent
        return False
    return works_on(values.device, count)


def _beside(work: Callable[..., Any], *columns: Sequence[Any]) -> list[Any]:
    """Calls `work` with each row of the columns, in parallel threads, and returns the results in order.

    Threads help because hashes and AES release Python's global lock (GIL). A thread takes many rows at once, because handing
    over single rows would keep the main thread busy.
    """
    rows = list(zip(*columns, strict=True))
    each = -(-len(rows) // _THREADS)
    if len(rows) < 2 or _THREADS == 1:
        return [work(*row) for row in rows]
    parts = [rows[first : first + each] for first in range(0, len(rows), each)]
    done = _threads().map(lambda part: [work(*row) for row in part], parts)
    return [result for part in done for result in part]


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, "blocks")


os.register_at_fork(after_in_child=_threads.cache_clear)  # a forked child has none of these threads
