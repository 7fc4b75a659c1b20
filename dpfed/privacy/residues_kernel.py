"""Computes the residues of `dpfed.privacy.universal_hash` on a GPU, by a Triton kernel with one program for each row.

Before a process uses the kernel, the kernel's residues are compared with the host's on fresh words and keys.
"""

from __future__ import annotations

import functools
import secrets
import warnings

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from dpfed.errors import Notice

_KEYS = 5  # number of keys; the kernel computes one sum for each
_TILE = 1024  # pairs of words that a program reads at once


@triton.jit
def _row(words, keys, out, count, ROW: tl.constexpr, PRIME: tl.constexpr, TILE: tl.constexpr):
    """Computes the residues of one row: five sums of products, exact in 64 bits.

    Each number of 32 bits that the kernel reads holds two words.
    """
    row = tl.program_id(0).to(tl.int64)
    a = tl.zeros((TILE,), tl.int64)
    b = tl.zeros((TILE,), tl.int64)
    c = tl.zeros((TILE,), tl.int64)
    d = tl.zeros((TILE,), tl.int64)
    e = tl.zeros((TILE,), tl.int64)
    for start in range(0, ROW // 2, TILE):
        at = start + tl.arange(0, TILE)
        place = row * (ROW // 2) + at
        pair = tl.load(words + place, mask=place < count, other=0)
        low = ((pair << 16) >> 16).to(tl.int64)
        high = (pair >> 16).to(tl.int64)
        key = keys + 2 * at
        a += low * tl.load(key) + high * tl.load(key + 1)
        b += low * tl.load(key + ROW) + high * tl.load(key + ROW + 1)
        c += low * tl.load(key + 2 * ROW) + high * tl.load(key + 2 * ROW + 1)
        d += low * tl.load(key + 3 * ROW) + high * tl.load(key + 3 * ROW + 1)
        e += low * tl.load(key + 4 * ROW) + high * tl.load(key + 4 * ROW + 1)
    place = out + row * 5
    tl.store(place, (tl.sum(a) % PRIME + PRIME) % PRIME)
    tl.store(place + 1, (tl.sum(b) % PRIME + PRIME) % PRIME)
    tl.store(place + 2, (tl.sum(c) % PRIME + PRIME) % PRIME)
    tl.store(place + 3, (tl.sum(d) % PRIME + PRIME) % PRIME)
    tl.store(place + 4, (tl.sum(e) % PRIME + PRIME) % PRIME)


def residues(words: Tensor, keys: Tensor, prime: int) -> Tensor:
    """Computes the residues of all rows in one launch.

    Args:
        words: Words of the tensor, ``(n,)`` int16, n even, on the GPU.
        keys: Keys, ``(5, row)`` int32, on the same GPU; ``row``, the number of words in a row, is a multiple of 2,048.
        prime: Prime modulus, below 2^23, so that sums fit into 64 bits.

    Returns:
        The residues, ``(rows, 5)`` int64.

    Raises:
        ValueError: If the number of words or the shape of the keys is wrong.
    """
    if words.numel() % 2:
        raise ValueError(f"expected numbers of 4 or 8 bytes, so an even number of 16-bit words, got {words.numel()} words")
    count, row = keys.shape
    if count != _KEYS or row % (2 * _TILE):
        raise ValueError(f"expected {_KEYS} keys, each of a multiple of {2 * _TILE} numbers, got {count} keys of {row}")
    pairs, rows = words.view(torch.int32), -(-words.numel() // row)
    out = torch.empty(rows, _KEYS, dtype=torch.int64, device=words.device)
    if rows:
        _row[(rows,)](pairs, keys, out, pairs.numel(), row, prime, _TILE, num_warps=4)
    return out


@functools.cache
def works_on(device: torch.device, row: int, prime: int) -> bool:
    """Tries the kernel on random words, two rows and a half, and returns whether its residues equal the host's.

    Warns if they differ or the kernel cannot run.
    """
    words = np.frombuffer(secrets.token_bytes(5 * row), "<i2")
    keys = np.frombuffer(secrets.token_bytes(4 * _KEYS * row), "<u4").astype(np.int64).reshape(_KEYS, row) % prime
    padded = np.zeros(3 * row, np.int64)
    padded[: len(words)] = words
    expected = (padded.reshape(3, row) @ keys.T) % prime
    try:
        there = torch.from_numpy(words.copy()).to(device), torch.from_numpy(keys).int().to(device)
        if np.array_equal(residues(*there, prime).cpu().numpy(), expected):
            return True
        reason = "its residues differ from those of the host"
    except Exception as error:  # Triton may lack a compiler or support for the GPU
        reason = str(error).partition("\n")[0] or type(error).__name__
    warnings.warn(
        f"Triton's kernel for digests does not work on this GPU ({reason}): torch computes them.", Notice, stacklevel=2
    )
    return False
