"""Stateless secret randomness: every draw is a function of (master key, purpose, step, rank) and nothing else.

Nothing is carried from draw to draw, so a resumed run repeats an uninterrupted one bit for bit and a step can be replayed.
Draws *per record* are a pseudo-random function of the record's own key. Whether a record is sampled, and which group it joins,
therefore never depends on which other records exist: this is the independence that the guarantee rests on
(docs/guarantee.md), and it makes neighbouring data sets share all other draws exactly.

AES-256 in counter mode is the generator: cryptographically secure, and fast on any processor with AES instructions.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

if TYPE_CHECKING:  # torch takes seconds to import, and a run is refused without it
    import torch

KEY_BYTES = 32
_CHUNK = 1 << 20  # normals drawn at a time: bounds the float64 workspace to about 32 MB


class Randomness:
    """Source of every secret draw of one run.

    Args:
        master: 32 secret bytes. Whoever holds them can remove the noise: keep them inside the trust boundary.

    Raises:
        ValueError: if the key has the wrong length.
    """

    def __init__(self, master: bytes) -> None:
        if len(master) != KEY_BYTES:
            raise ValueError(f"a master key has {KEY_BYTES} bytes, got {len(master)}")
        self._master = master

    @classmethod
    def fresh(cls) -> Randomness:
        """A new master key from the operating system."""
        return cls(secrets.token_bytes(KEY_BYTES))

    @classmethod
    def from_seed(cls, seed: int) -> Randomness:
        """A key that anyone can guess, for tests and comparisons; a run that uses it marks its privacy card."""
        return cls(hashlib.blake2b(f"dpfed seed {seed}".encode(), digest_size=KEY_BYTES).digest())

    @property
    def master(self) -> bytes:
        """The master key itself, for storing it where a resume finds it."""
        return self._master

    def for_ranks(self) -> Randomness:
        """The data owners' randomness: sampling, groups, views, and the noise of statistics that a method releases on the way.

        Who holds it learns nothing about the coordinator's noise.
        """
        return Randomness(self._key("owners", 0))

    def key(self, purpose: str, rank: int = 0, step: int = 0) -> bytes:
        """32 secret bytes for one purpose; they tell nothing of any others."""
        return self._key(purpose, step, rank)

    def __repr__(self) -> str:
        return "Randomness(<secret>)"

    def _key(self, purpose: str, step: int, rank: int = 0, context: str = "") -> bytes:
        label = f"{purpose}/{step}/{rank}/{context}".encode()
        return hashlib.blake2b(label, key=self._master, digest_size=KEY_BYTES).digest()

    def per_record(self, purpose: str, step: int, keys: np.ndarray, columns: int) -> np.ndarray:
        """Independent uniforms for each record, each row a function of that record's key alone.

        Args:
            purpose: what the draws are for; different purposes are independent.
            step: training step.
            keys: ``(n,)`` uint64 record keys, see `RecordStore.keys`.
            columns: draws per record.

        Returns:
            ``(n, columns)`` float64 in [0, 1), multiples of 2^-53.
        """
        blocks_each = max(1, -(-columns // 2))
        words = np.concatenate([self.words(purpose, step, keys, number) for number in range(blocks_each)], axis=1)
        return (words[:, :columns] >> np.uint64(11)) * 2.0**-53

    def words(self, purpose: str, step: int, keys: np.ndarray, number: int) -> np.ndarray:
        """Independent uniform words for each record, a function of that record's key alone.

        Args:
            purpose: what they are for; different purposes are independent.
            step: training step, or what else is counted.
            keys: ``(n,)`` uint64 record keys.
            number: which of the record's pairs of words, from 0.

        Returns:
            ``(n, 2)`` uint64.
        """
        # One permutation per (purpose, step); distinct inputs, so each block is a fresh pseudo-random value.
        blocks = np.empty((len(keys), 2), np.uint64)
        blocks[:, 0] = keys
        blocks[:, 1] = number
        cipher = Cipher(algorithms.AES(self._key(purpose, step)), modes.ECB()).encryptor()  # noqa: S305
        return np.frombuffer(cipher.update(blocks.reshape(-1).view(np.uint8).data), np.uint64).reshape(-1, 2)

    def seed(self, purpose: str, step: int, rank: int = 0) -> int:
        """A 63-bit seed for a library generator (dropout, weight initialisation): never for noise or sampling."""
        return int.from_bytes(self._key(purpose, step, rank)[:8], "little") >> 1

    def stream(self, purpose: str, step: int, rank: int = 0, context: str = "") -> Callable[[int], bytes]:
        """Uniform random bytes: a function that gives the next so many of them.

        Args:
            purpose: what they are for.
            step: training step.
            rank: who draws them.
            context: other contexts give independent bytes.
        """
        key = self.stream_key(purpose, step, rank, context)
        cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
        return lambda count: cipher.update(bytes(count))

    def stream_key(self, purpose: str, step: int, rank: int = 0, context: str = "") -> bytes:
        """The 32 secret bytes with which AES-256 in counter mode makes a `stream`."""
        return self._key(purpose, step, rank, context)

    def add_normal_(self, out: torch.Tensor, scale: float, purpose: str, step: int, rank: int = 0, context: str = "") -> None:
        """Adds Gaussian noise of standard deviation `scale` to `out` in place.

        Args:
            out: flat float32 or float64 tensor; noise and sum are added in float64 and rounded once.
            scale: standard deviation of each element.
            purpose: what the noise is for.
            step: training step.
            rank: who adds it.
            context: other contexts give independent noise.
        """
        import torch

        for part, noise in self._normals(out, purpose, step, rank, context):
            part.copy_(part.to(noise.device, torch.float64).add_(noise, alpha=scale))

    def normal_steps(
        self, values: torch.Tensor, scale: float, purpose: str, step: int, rank: int = 0, context: str = ""
    ) -> torch.Tensor:
        """Whole numbers plus Gaussian noise, which is rounded down: the sum is exact, and so it is the rounded noisy sum.

        Args:
            values: flat int64 tensor.
            scale: standard deviation of each element; for all else, see `add_normal_`.
            purpose: see there.
            step: see there.
            rank: see there.
            context: see there.

        Returns:
            int64.
        """
        noisy = values.clone()
        for part, noise in self._normals(noisy, purpose, step, rank, context):
            part.add_(noise.mul_(scale).floor_().long().to(part.device))
        return noisy

    def _normals(
        self, out: torch.Tensor, purpose: str, step: int, rank: int, context: str
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Pieces of a flat tensor, and as many standard normal numbers, float64."""
        import torch

        stream = self.stream(purpose, step, rank, context)
        exact = torch.device("cpu") if out.device.type == "mps" else out.device  # mps has no float64
        for start in range(0, out.numel(), _CHUNK):
            part = out[start : start + _CHUNK]
            words = np.frombuffer(stream(16 * -(-part.numel() // 2)), dtype=np.int64)
            yield part, box_muller(torch.from_numpy(words.copy()).to(exact))[: part.numel()]


def box_muller(words: torch.Tensor) -> torch.Tensor:
    """Standard normal numbers, float64.

    Args:
        words: ``(..., n)`` int64, uniform, n even; each row gives its numbers.
    """
    import torch

    uniform = (words >> 11) & (2**53 - 1)  # the upper 53 bits
    u, v = uniform.double().add_(0.5).mul_(2.0**-53).unflatten(-1, (2, -1)).unbind(-2)  # inside (0, 1): the logarithm is finite
    radius, angle = u.log_().mul_(-2).sqrt_(), v.mul_(2 * math.pi)
    return torch.cat([radius * angle.cos(), radius * angle.sin()], dim=-1)
