"""Draws secret random numbers without state: every draw is a function of master key, purpose, step, rank and context.

No state is carried from draw to draw, so a resumed run repeats an uninterrupted one bit for bit and a step can be replayed.
Draws *per record* are a pseudo-random function of the record's own key. With Poisson sampling, whether a record is sampled, and
which group it joins, therefore never depends on which other records exist. The guarantee relies on this independence
(docs/guarantee.md): neighbouring data sets share all draws except those of the record in which they differ.

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
        master: Master key, 32 secret bytes. Whoever holds it can remove the noise: keep it inside the trust boundary.

    Raises:
        ValueError: If the key has the wrong length.
    """

    def __init__(self, master: bytes) -> None:
        if len(master) != KEY_BYTES:
            raise ValueError(f"a master key has {KEY_BYTES} bytes, got {len(master)}")
        self._master = master

    @classmethod
    def fresh(cls) -> Randomness:
        """Makes a source with a new master key from the operating system."""
        return cls(secrets.token_bytes(KEY_BYTES))

    @classmethod
    def from_seed(cls, seed: int) -> Randomness:
        """Makes a source with a key that anyone can guess, for tests and comparisons; the run's privacy card then says so."""
        return cls(hashlib.blake2b(f"dpfed seed {seed}".encode(), digest_size=KEY_BYTES).digest())

    @property
    def master(self) -> bytes:
        """Master key, 32 bytes, which a run stores so that it can resume."""
        return self._master

    def for_ranks(self) -> Randomness:
        """Returns the workers' randomness, for sampling, groups, views, and the noise on a method's own statistics.

        Whoever holds it learns nothing about the coordinator's noise.
        """
        return Randomness(self._key("owners", 0))

    def key(self, purpose: str, rank: int = 0, step: int = 0) -> bytes:
        """Returns 32 secret bytes for one purpose, rank and step; they reveal nothing about other keys."""
        return self._key(purpose, step, rank)

    def __repr__(self) -> str:
        return "Randomness(<secret>)"

    def _key(self, purpose: str, step: int, rank: int = 0, context: str = "") -> bytes:
        label = f"{purpose}/{step}/{rank}/{context}".encode()
        return hashlib.blake2b(label, key=self._master, digest_size=KEY_BYTES).digest()

    def per_record(self, purpose: str, step: int, keys: np.ndarray, columns: int) -> np.ndarray:
        """Draws independent uniform numbers for each record, as a function of that record's key alone.

        Args:
            purpose: Purpose of the draws; draws of different purposes are independent.
            step: Training step.
            keys: Keys of the records, ``(n,)`` uint64, see `RecordStore.keys`.
            columns: Number of draws per record.

        Returns:
            The draws, ``(n, columns)`` float64 in [0, 1), multiples of 2^-53.
        """
        blocks_each = max(1, -(-columns // 2))
        words = np.concatenate([self.words(purpose, step, keys, number) for number in range(blocks_each)], axis=1)
        return (words[:, :columns] >> np.uint64(11)) * 2.0**-53

    def words(self, purpose: str, step: int, keys: np.ndarray, number: int) -> np.ndarray:
        """Draws two independent uniform words for each record, as a function of that record's key alone.

        Args:
            purpose: Purpose of the words; words of different purposes are independent.
            step: Training step, or another counter, such as the number of a block of steps.
            keys: Keys of the records, ``(n,)`` uint64.
            number: Number of the pair of words, from 0; other numbers give the record other, independent pairs.

        Returns:
            The words, ``(n, 2)`` uint64.
        """
        # One permutation per (purpose, step). Its inputs are distinct, so each block is a fresh pseudo-random value.
        blocks = np.empty((len(keys), 2), np.uint64)
        blocks[:, 0] = keys
        blocks[:, 1] = number
        cipher = Cipher(algorithms.AES(self._key(purpose, step)), modes.ECB()).encryptor()  # noqa: S305
        return np.frombuffer(cipher.update(blocks.reshape(-1).view(np.uint8).data), np.uint64).reshape(-1, 2)

    def seed(self, purpose: str, step: int, rank: int = 0) -> int:
        """Returns a 63-bit seed for a library's generator, for dropout or starting weights; never for noise or sampling."""
        return int.from_bytes(self._key(purpose, step, rank)[:8], "little") >> 1

    def stream(self, purpose: str, step: int, rank: int = 0, context: str = "") -> Callable[[int], bytes]:
        """Returns a function that takes a number and returns that many further uniform random bytes of a stream.

        Args:
            purpose: Purpose of the bytes.
            step: Training step.
            rank: Rank of the process or client that draws the bytes.
            context: Further part of the key; with another context, the bytes are independent.
        """
        key = self.stream_key(purpose, step, rank, context)
        cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
        return lambda count: cipher.update(bytes(count))

    def stream_key(self, purpose: str, step: int, rank: int = 0, context: str = "") -> bytes:
        """Returns the key, 32 secret bytes, with which AES-256 in counter mode generates a `stream`."""
        return self._key(purpose, step, rank, context)

    def add_normal_(self, out: torch.Tensor, scale: float, purpose: str, step: int, rank: int = 0, context: str = "") -> None:
        """Adds Gaussian noise of standard deviation `scale` to `out` in place.

        Args:
            out: Flat float32 or float64 tensor; the addition is in float64, and its result is rounded once.
            scale: Standard deviation of each element.
            purpose: Purpose of the noise; noise of different purposes is independent.
            step: Training step.
            rank: Rank of the process or client that adds the noise.
            context: Further part of the key; with another context, the noise is independent.
        """
        import torch

        for part, noise in self._normals(out, purpose, step, rank, context):
            part.copy_(part.to(noise.device, torch.float64).add_(noise, alpha=scale))

    def normal_steps(
        self, values: torch.Tensor, scale: float, purpose: str, step: int, rank: int = 0, context: str = ""
    ) -> torch.Tensor:
        """Returns whole numbers plus Gaussian noise that is rounded down.

        The addition is exact. So the result is the same as if the noisy sum were rounded down.

        Args:
            values: Whole numbers, flat int64 tensor; not modified.
            scale: Standard deviation of each element.
            purpose: Purpose of the noise, see `add_normal_`.
            step: Training step.
            rank: Rank of the process or client that adds the noise.
            context: Further part of the key, see `add_normal_`.

        Returns:
            The noisy numbers, int64.
        """
        noisy = values.clone()
        for part, noise in self._normals(noisy, purpose, step, rank, context):
            part.add_(noise.mul_(scale).floor_().long().to(part.device))
        return noisy

    def _normals(
        self, out: torch.Tensor, purpose: str, step: int, rank: int, context: str
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yields pieces of a flat tensor, and with each piece as many standard normal numbers, float64."""
        import torch

        stream = self.stream(purpose, step, rank, context)
        exact = torch.device("cpu") if out.device.type == "mps" else out.device  # mps has no float64
        for start in range(0, out.numel(), _CHUNK):
            part = out[start : start + _CHUNK]
            words = np.frombuffer(stream(16 * -(-part.numel() // 2)), dtype=np.int64)
            yield part, box_muller(torch.from_numpy(words.copy()).to(exact))[: part.numel()]


def box_muller(words: torch.Tensor) -> torch.Tensor:
    """Computes standard normal numbers by the Box-Muller transform.

    Args:
        words: Uniform words, ``(..., n)`` int64, n even; the numbers of a row depend on that row alone.

    Returns:
        The numbers, ``(..., n)`` float64.
    """
    import torch

    uniform = (words >> 11) & (2**53 - 1)  # the upper 53 bits
    u, v = uniform.double().add_(0.5).mul_(2.0**-53).unflatten(-1, (2, -1)).unbind(-2)  # inside (0, 1): the logarithm is finite
    radius, angle = u.log_().mul_(-2).sqrt_(), v.mul_(2 * math.pi)
    return torch.cat([radius * angle.cos(), radius * angle.sin()], dim=-1)
