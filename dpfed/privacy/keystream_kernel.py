"""Computes AES-256 in counter mode on a GPU, by a Triton kernel, with the bits of `Randomness.stream`, for many keys at once.

One Triton program computes the cipher's blocks of one key for a range of counter values. Each block takes 14 rounds, whose
substitutions are read from a table of 1 KB. Before a process uses the kernel, the kernel's bits are compared with the host's on
two fresh keys.
"""

from __future__ import annotations

import functools
import secrets
import warnings
from collections.abc import Sequence

import numpy as np
import torch
import triton
import triton.language as tl
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from torch import Tensor

from dpfed.errors import Notice

_ROUNDS = 14
_TILE = 256  # number of 16-byte blocks that a program computes


@triton.jit
def _mixed(table, a, b, c, d):
    """Substitutes one byte of each word, and mixes the four bytes into a word of the next state (MixColumns)."""
    x = tl.load(table + (a >> 24)).to(tl.uint32, bitcast=True)
    y = tl.load(table + ((b >> 16) & 255)).to(tl.uint32, bitcast=True)
    z = tl.load(table + ((c >> 8) & 255)).to(tl.uint32, bitcast=True)
    w = tl.load(table + (d & 255)).to(tl.uint32, bitcast=True)
    return x ^ ((y >> 8) | (y << 24)) ^ ((z >> 16) | (z << 16)) ^ ((w >> 24) | (w << 8))


@triton.jit
def _substituted(table, a, b, c, d):
    """Substitutes one byte of each word by the S-box of AES; the byte from `a` becomes the highest byte of the result."""
    x = (tl.load(table + (a >> 24)).to(tl.uint32, bitcast=True) >> 8) & 255
    y = (tl.load(table + ((b >> 16) & 255)).to(tl.uint32, bitcast=True) >> 8) & 255
    z = (tl.load(table + ((c >> 8) & 255)).to(tl.uint32, bitcast=True) >> 8) & 255
    w = (tl.load(table + (d & 255)).to(tl.uint32, bitcast=True) >> 8) & 255
    return (x << 24) | (y << 16) | (z << 8) | w


@triton.jit
def _reversed(x):
    """Reverses the order of the four bytes of each word."""
    return (x << 24) | ((x << 8) & 0xFF0000) | ((x >> 8) & 0xFF00) | (x >> 24)


@triton.jit
def _encrypt(keys, table, out, blocks, ROUNDS: tl.constexpr, TILE: tl.constexpr):
    """Encrypts `TILE` values of the counter with one key, and stores the encrypted blocks."""
    row = tl.program_id(1).to(tl.int64)
    round_key = keys + row * (4 * ROUNDS + 4)
    counter = tl.program_id(0) * TILE + tl.arange(0, TILE)
    a = tl.zeros((TILE,), tl.uint32) ^ tl.load(round_key).to(tl.uint32, bitcast=True)
    b = tl.zeros((TILE,), tl.uint32) ^ tl.load(round_key + 1).to(tl.uint32, bitcast=True)
    c = tl.zeros((TILE,), tl.uint32) ^ tl.load(round_key + 2).to(tl.uint32, bitcast=True)
    d = counter.to(tl.uint32) ^ tl.load(round_key + 3).to(tl.uint32, bitcast=True)
    for _ in range(1, ROUNDS):
        round_key += 4
        e = _mixed(table, a, b, c, d) ^ tl.load(round_key).to(tl.uint32, bitcast=True)
        f = _mixed(table, b, c, d, a) ^ tl.load(round_key + 1).to(tl.uint32, bitcast=True)
        g = _mixed(table, c, d, a, b) ^ tl.load(round_key + 2).to(tl.uint32, bitcast=True)
        d = _mixed(table, d, a, b, c) ^ tl.load(round_key + 3).to(tl.uint32, bitcast=True)
        a, b, c = e, f, g
    round_key += 4
    place, mask = out + (row * blocks + counter) * 4, counter < blocks
    e = _substituted(table, a, b, c, d) ^ tl.load(round_key).to(tl.uint32, bitcast=True)
    f = _substituted(table, b, c, d, a) ^ tl.load(round_key + 1).to(tl.uint32, bitcast=True)
    g = _substituted(table, c, d, a, b) ^ tl.load(round_key + 2).to(tl.uint32, bitcast=True)
    d = _substituted(table, d, a, b, c) ^ tl.load(round_key + 3).to(tl.uint32, bitcast=True)
    tl.store(place, _reversed(e).to(tl.int32, bitcast=True), mask=mask)
    tl.store(place + 1, _reversed(f).to(tl.int32, bitcast=True), mask=mask)
    tl.store(place + 2, _reversed(g).to(tl.int32, bitcast=True), mask=mask)
    tl.store(place + 3, _reversed(d).to(tl.int32, bitcast=True), mask=mask)


def words(keys: Sequence[bytes], count: int, device: torch.device) -> Tensor:
    """Computes the first bits of the stream of each key.

    Args:
        keys: Keys of 32 bytes.
        count: Number of 8-byte words for each key, even, below 2^32.
        device: Device that computes the words.

    Returns:
        The words, ``(keys, count)`` int64.

    Raises:
        ValueError: If the count is odd or too large.
    """
    if count % 2 or count >> 32:
        raise ValueError(f"expected an even number of words for each key, below 2^32, got {count}")
    schedule = torch.from_numpy(_round_keys(keys).view(np.int32))
    schedule = schedule.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else schedule
    out = torch.empty(len(keys), 2 * count, dtype=torch.int32, device=device)
    grid = triton.cdiv(count // 2, _TILE), len(keys)
    _encrypt[grid](schedule, _table(device), out, count // 2, _ROUNDS, _TILE, num_warps=4)
    return out.view(torch.int64)


@functools.cache
def works_on(device: torch.device, count: int) -> bool:
    """Tries the kernel on the streams of two fresh keys, and returns whether its bits equal the host's.

    Warns if they differ or the kernel cannot run.

    Args:
        device: Device that runs the kernel.
        count: Number of words of each stream. Triton compiles separate kernels for some counts, so this must be the count that
            will be used.
    """
    keys = [secrets.token_bytes(32) for _ in range(2)]
    expected = [Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(8 * count)) for key in keys]
    try:
        if words(keys, count, device).cpu().numpy().tobytes() == b"".join(expected):
            return True
        reason = "its bits differ from those of the host"
    except Exception as error:  # Triton may lack a compiler or support for the GPU
        reason = str(error).partition("\n")[0] or type(error).__name__
    warnings.warn(
        f"Triton's kernel for AES does not work on this GPU ({reason}): the CPU computes the noise's random bits.",
        Notice,
        stacklevel=2,
    )
    return False


@functools.cache
def _substitutions() -> np.ndarray:
    """Returns AES's byte substitutions (S-box), ``(256,)`` uint32: the inverse of x in GF(2^8), then the affine map."""
    powers, logs = np.zeros(255, np.uint32), np.zeros(256, np.uint32)
    value = 1
    for power in range(255):
        powers[power], logs[value] = value, power
        value ^= value << 1 ^ (0x11B if value & 0x80 else 0)  # times 3, a generator
    inverse = np.where(np.arange(256) > 0, powers[(255 - logs) % 255], 0).astype(np.uint32)
    twice = inverse | inverse << 8
    return (inverse ^ twice >> 7 ^ twice >> 6 ^ twice >> 5 ^ twice >> 4) & 0xFF ^ 0x63


@functools.cache
def _table(device: torch.device) -> Tensor:
    """Returns the columns (2s, s, s, 3s) of each substituted byte s, as ``(256,)`` int32 on the device."""
    s = _substitutions()
    doubled = (s << 1) ^ np.where(s & 0x80, 0x11B, 0).astype(np.uint32)
    columns = doubled << 24 | s << 16 | s << 8 | doubled ^ s
    return torch.from_numpy(columns.astype(np.uint32).view(np.int32)).to(device)


def _round_keys(keys: Sequence[bytes]) -> np.ndarray:
    """Returns AES-256's key schedule (FIPS 197) of each key, ``(keys, 60)`` uint32."""
    s, constant = _substitutions(), 1
    schedule = np.empty((len(keys), 4 * (_ROUNDS + 1)), np.uint32)
    schedule[:, :8] = np.frombuffer(b"".join(keys), ">u4").reshape(-1, 8)
    for number in range(8, schedule.shape[1]):
        word: np.ndarray = schedule[:, number - 1]
        if number % 8 == 0:
            word = word << 8 | word >> 24
        if number % 4 == 0:
            word = s[word >> 24] << 24 | s[word >> 16 & 255] << 16 | s[word >> 8 & 255] << 8 | s[word & 255]
        if number % 8 == 0:
            word, constant = word ^ np.uint32(constant << 24), constant << 1
        schedule[:, number] = schedule[:, number - 8] ^ word
    return schedule
