"""A long sum in blocks: each block has noise from a key of its own, and a digest of its own.

So threads can make them beside each other, and what comes out does not depend on how many they are. The blocks follow from the
number of numbers alone. A short sum is one block, with the coordinator's own key and the digest of its bits. docs/guarantee.md
says why each number gets its noise exactly once.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dpfed.privacy.noise import GaussianNoise, KeyedNoise, Noise, digest_of, in_floats
from dpfed.privacy.randomness import Randomness
from dpfed.privacy.universal_hash import UniversalHash

if TYPE_CHECKING:  # torch takes seconds to import, and a plan is refused without it
    from torch import Tensor

SMALL = 1 << 19  # numbers of a sum that is one block: one process makes it noisy in the time of a few messages
LENGTH = 1 << 16  # numbers of a block of longer ones: 64 workers share even 11 million of them within a tenth
PURPOSE = "noise"  # of the noise on the sum
_THREADS = min(16, os.cpu_count() or 1)
_TOGETHER = 64  # blocks whose noise is made in one piece on a GPU: 32 MB of it


def block_length(size: int) -> int | None:
    """How a new run cuts a sum of so many numbers; ``None``: not at all."""
    return None if size <= SMALL else LENGTH


@dataclass(frozen=True)
class Blocks:
    """How a sum is cut.

    Args:
        size: numbers of the sum, statistics included.
        length: numbers of a block, of which the last one may have fewer; ``None``: the sum is one block.
        hashed: digests sums where they lie; ``None``: SHA-256 does, on the host.
    """

    size: int
    length: int | None = None
    hashed: UniversalHash | None = field(default=None, compare=False, repr=False)

    @property
    def count(self) -> int:
        """How many there are."""
        return 1 if self.length is None else max(1, -(-self.size // self.length))

    def place(self, first: int, end: int) -> slice:
        """Where the blocks `first` to `end` (excluded) lie in the sum."""
        length = self.length or self.size
        return slice(min(first * length, self.size), min(end * length, self.size))

    def cut(self, values: Tensor) -> Sequence[Tensor]:
        """Views of the blocks.

        Args:
            values: flat, from the beginning of one block to the end of another.
        """
        return (values,) if self.length is None else values.split(self.length) if values.numel() else ()

    def digests(self, values: Tensor) -> list[str]:
        """A hash of each block; see `cut`."""
        return _beside(digest_of, self.cut(on_host(values)))

    def joined(self, digests: Sequence[str]) -> str:
        """The digest of a sum.

        Args:
            digests: of all its blocks, in order.

        Raises:
            ValueError: if some are missing.
        """
        if len(digests) != self.count:
            raise ValueError(f"the sum has {self.count} blocks, and there are {len(digests)} digests")
        if self.count == 1:
            return digests[0]
        text = f"{self.size}/{self.length}/{'/'.join(digests)}"
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def digest(self, values: Tensor) -> str:
        """The digest of a sum ``(size,)``."""
        if self.hashed is not None:
            return self.hashed.digest(values)
        return self.joined(self.digests(values))


class SumNoise:
    """The coordinator's noise on the sum: holds the secret from which all of it follows.

    Args:
        noise: how much.
        randomness: the coordinator's.
        blocks: of the sum.
        context: public: the fingerprint of the plan.
    """

    def __init__(self, noise: Noise, randomness: Randomness, blocks: Blocks, context: str) -> None:
        self.noise, self.blocks, self.context = noise, blocks, context
        self._randomness = randomness

    def keys(self, step: int, first: int, end: int) -> list[bytes]:
        """The keys of the blocks `first` to `end` (excluded) in a step. Who holds them learns nothing of any other's.

        Raises:
            ValueError: if the sum is one block: its noise has no key but the coordinator's own.
        """
        if self.blocks.count == 1:
            raise ValueError("the noise of a sum of one block is the coordinator's alone")
        return [self._randomness.key("block of noise", block, step) for block in range(first, end)]

    def noisy(self, values: Tensor, step: int) -> Tensor:
        """A whole exact sum with the noise of a step.

        Args:
            values: ``(P,)`` int64, in steps of the sum's grid.
            step: training step.

        Returns:
            ``(P,)`` float32: what it stands for.
        """
        if self.blocks.count == 1:
            return KeyedNoise(self.noise, self._randomness, PURPOSE, self.context).noisy(values, step)
        context = self.context_of(self.blocks.digest(values))
        return noisy_blocks(self.blocks, values, self.noise, self.keys(step, 0, self.blocks.count), context, step)

    def context_of(self, clean: str) -> str:
        """What keys the noise besides: the digest of the whole clean sum. Another sum gets other noise, in every block."""
        return f"{self.context}/{clean}"


def noisy_blocks(blocks: Blocks, values: Tensor, noise: Noise, keys: Sequence[bytes], context: str, step: int) -> Tensor:
    """Some blocks of an exact sum with the noise of a step, float32.

    Args:
        blocks: of the sum.
        values: of these blocks, int64, see `Blocks.cut`.
        noise: how much.
        keys: of these blocks, see `SumNoise.keys`.
        context: see `SumNoise.context_of`.
        step: training step.
    """
    import torch

    if len(keys) != len(blocks.cut(values)):  # a key that two blocks share would give both the same noise
        raise ValueError(f"{len(keys)} keys for {len(blocks.cut(values))} blocks")
    noisy, whole = torch.empty(values.shape, device=values.device), 0
    if isinstance(noise, GaussianNoise) and blocks.length is not None and has_kernel(blocks, values):
        from dpfed.privacy.keystream_kernel import words

        whole = values.numel() // blocks.length  # the last block may be shorter
        for first in range(0, whole, _TOGETHER):
            place = slice(blocks.length * first, blocks.length * min(first + _TOGETHER, whole))
            some = values[place].view(-1, blocks.length)
            streams = [Randomness(key).stream_key(PURPOSE, step, 0, context) for key in keys[first : first + len(some)]]
            noisy[place] = in_floats(noise.steps_of(some, words(streams, blocks.length, values.device)), noise).view(-1)

    def make(block: Tensor, out: Tensor, key: bytes) -> None:
        out.copy_(in_floats(noise.steps(block, Randomness(key), PURPOSE, step, 0, context), noise))

    _beside(make, blocks.cut(values)[whole:], blocks.cut(noisy)[whole:], keys[whole:])
    return noisy


def on_host(values: Tensor) -> Tensor:
    """The values in the host's memory, detached. A GPU writes them to pinned memory, which takes a thirtieth of the time."""
    import torch

    values = values.detach()
    if _on_gpu(values):
        with contextlib.suppress(RuntimeError):  # where memory cannot be pinned, or no more of it
            return torch.empty(values.shape, dtype=values.dtype, pin_memory=True).copy_(values)
    return values.cpu()


def _on_gpu(values: Tensor) -> bool:
    return values.device.type == "cuda"


def has_kernel(blocks: Blocks, values: Tensor) -> bool:
    """Whether a kernel computes the bits of the blocks' noise where the values lie."""
    if not _on_gpu(values) or blocks.length is None or blocks.length % 2:
        return False
    try:
        from dpfed.privacy.keystream_kernel import works_on
    except ImportError:  # Triton is absent
        return False
    return works_on(values.device, blocks.length)


def _beside(work: Callable[..., Any], *columns: Sequence[Any]) -> list[Any]:
    """What `work` gives for each row, in order; hashes and AES let other threads run.

    A thread takes many rows at once: to hand over each one would keep the main thread from its work.
    """
    rows = list(zip(*columns, strict=True))
    each = -(-len(rows) // _THREADS)
    if len(rows) < 2 or _THREADS == 1:
        return [work(*row) for row in rows]
    parts = [rows[first : first + each] for first in range(0, len(rows), each)]
    done = _threads().map(lambda part: [work(*row) for row in part], parts)
    return [digest for part in done for digest in part]


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, "blocks")


os.register_at_fork(after_in_child=_threads.cache_clear)  # a fork has none of these threads
