"""Computes a keyed hash of a vector on the vector's own device, so that only a few bytes are copied to the host.

A tensor's memory is read as signed little-endian words of 16 bits, and cut into rows of `ROW` words; the last row is filled
with zeros. Let p be a prime, and k_1 .. k_5 secret keys of `ROW` numbers each, uniform among 0 .. p-1. A row w has the residues
<k_j, w> mod p. The digest is HMAC-SHA256, under another secret key, of the tensor's type and length and of all residues.

**Claim.** Two tensors of one type and length that differ, and that are fixed before the keys are drawn, have the same residues
with probability at most p^-5 < 2^-114.

**Proof.** The two tensors differ in a word of a row, by d with 0 < abs(d) < 2^16 < p, which has an inverse mod p. Fix all
numbers of k_j but the one that is multiplied by this word. Then <k_j, w> - <k_j, w'> = 0 mod p holds for exactly one of the p
values of that number. The five keys are independent. ∎

Tensors of other types or lengths differ in the input of HMAC. Its output of 128 bits is a pseudo-random function of the input
and reveals nothing about the keys, so sums that depend on earlier digests are as good as fixed in advance. Among the N digests
of a run, two that should differ are equal with probability below N^2 (2^-114 + 2^-128). So a digest distinguishes a replay from
another release, and can key noise.

Every partial sum is a whole number below ROW (p-1) 2^15 < 2^52: float64 and int64 hold it exactly, in any order. So each
device computes the same residues. One key serves all rows and all tensors of a run, which the proof allows.
"""

from __future__ import annotations

import functools
import hmac
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from dpfed.privacy.randomness import Randomness

if TYPE_CHECKING:  # torch takes seconds to import, and a plan is refused without it
    import torch
    from torch import Tensor

ROW = 1 << 14  # number of words in a row
KEYS = 5
PRIME = 8_388_593  # the largest below 2^23
_BITS = 23
_ROWS = 4  # number of rows that a CPU processes at once: they and the keys stay in its cache


class UniversalHash:
    """The hash under one run's secret keys.

    Args:
        randomness: Secret randomness of the coordinator.
    """

    def __init__(self, randomness: Randomness) -> None:
        self._secret = randomness.key("digest of residues")
        self._keys = _uniform(randomness.stream("keys of residues", 0), KEYS * ROW).reshape(KEYS, ROW)
        self._tables: dict[torch.device, Tensor] = {}

    def digest(self, values: Tensor) -> str:
        """Returns the digest of a tensor, 32 hexadecimal digits.

        Args:
            values: Tensor on any device, with numbers of 4 or 8 bytes.
        """
        text = f"{values.dtype}/{values.numel()}/".encode()
        residues = self.residues(values).cpu().numpy().astype("<i4")
        return hmac.digest(self._secret, text + residues.tobytes(), "sha256").hex()[:32]

    def residues(self, values: Tensor) -> Tensor:
        """Returns the residues of a tensor's rows, ``(rows, 5)`` int64, on the tensor's device."""
        import torch

        words = values.detach().contiguous().view(-1).view(torch.int16)
        kernel = _kernel(values.device)
        if kernel is not None:
            return kernel(words, self._table(values.device, torch.int32))
        table = self._table(values.device, torch.float64)
        whole = words.numel() // ROW
        rows = words[: whole * ROW].view(-1, ROW)
        at_once = _ROWS if values.device.type == "cpu" else 1024
        parts = [_products(piece, table) for piece in rows.split(at_once)] if whole else []
        if words.numel() > whole * ROW:
            parts.append(_products(torch.nn.functional.pad(words[whole * ROW :], (0, ROW - words.numel() % ROW)), table))
        empty = torch.empty(0, KEYS, dtype=torch.int64, device=values.device)
        return torch.cat([empty, *(part.view(-1, KEYS) for part in parts)])

    def _table(self, device: torch.device, kind: torch.dtype) -> Tensor:
        import torch

        if device not in self._tables:
            self._tables[device] = torch.from_numpy(self._keys).to(kind).to(device)
        return self._tables[device]


def _products(rows: Tensor, table: Tensor) -> Tensor:
    """Returns the residues of rows of words; the result is exact, as float64 holds every partial sum."""
    import torch

    return torch.nn.functional.linear(rows.double(), table).long().remainder(PRIME)


def _uniform(stream: Callable[[int], bytes], count: int) -> np.ndarray:
    """Draws ``(count,)`` int64 numbers, uniform among 0 .. p-1, from words of 23 bits; words of p or more are left out."""
    numbers = np.empty(0, np.int64)
    while len(numbers) < count:
        words = np.frombuffer(stream(4 * (count + 64)), "<u4").astype(np.int64) & ((1 << _BITS) - 1)
        numbers = np.concatenate([numbers, words[words < PRIME]])
    return numbers[:count]


def _kernel(device: torch.device) -> Callable[[Tensor, Tensor], Tensor] | None:
    """Returns the GPU kernel if it computes the right residues on this device, and ``None`` if torch has to compute them."""
    if device.type != "cuda":
        return None
    try:
        from dpfed.privacy.residues_kernel import residues, works_on
    except ImportError:  # Triton is absent
        return None
    return functools.partial(residues, prime=PRIME) if works_on(device, ROW, PRIME) else None
