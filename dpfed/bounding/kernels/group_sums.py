"""Computes squared norms of many groups' gradients, and the gradients' weighted sum, each in one reading of the gradients.

A kernel consists of many independent programs. To compute norms, each program adds up the squares of one piece of one group's
gradient, so a norm depends on that group alone. To compute the sum, each program adds up one piece of all groups' gradients, in
blocks of a fixed number of groups, one block after the other.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_TILE = 1024  # entries that a program holds at a time
_PIECE = 16 * _TILE  # entries of a gradient whose squares one program adds up


@triton.jit
def _square(gradients, out, length, PIECE: tl.constexpr, TILE: tl.constexpr):
    group, first = tl.program_id(1).to(tl.int64), tl.program_id(0) * PIECE
    total = tl.zeros((TILE,), tl.float64)
    for start in range(0, PIECE, TILE):
        at = first + start + tl.arange(0, TILE)
        values = tl.load(gradients + group * length + at, mask=at < length, other=0.0).to(tl.float64)
        total += values * values
    tl.store(out + group * tl.num_programs(0) + tl.program_id(0), tl.sum(total, 0))


@triton.jit
def _weigh(gradients, factors, out, length, groups, KIND: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr):
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    entries = gradients + at
    total = tl.zeros((TILE,), KIND)
    for first in range(0, groups, BLOCK):
        block = tl.zeros((TILE,), KIND)
        for number in tl.static_range(BLOCK):
            factor = tl.load(factors + first + number)
            # A group of factor 0 is not read: it need not be finite.
            block += (factor * tl.load(entries, mask=at < tl.where(factor > 0, length, 0), other=0.0)).to(KIND)
            entries += length
        total += block
    tl.store(out + at, total, mask=at < length)


def squares(gradients: Tensor) -> Tensor:
    """Computes the squared norm of each group's gradient.

    Args:
        gradients: Gradients ``(G, N)`` float32.

    Returns:
        Squared norms ``(G,)`` float64.
    """
    groups, length = gradients.shape
    pieces = triton.cdiv(length, _PIECE)
    out = torch.empty(groups, pieces, dtype=torch.float64, device=gradients.device)
    _square[(pieces, groups)](gradients.contiguous(), out, length, _PIECE, _TILE)
    return out.sum(1)


def weighted_sum(gradients: Tensor, factors: Tensor, block: int, kind: torch.dtype = torch.float32) -> Tensor:
    """Computes the sum of gradients, each times its factor. For an int32 sum, each product is truncated towards zero.

    Args:
        gradients: Gradients ``(G, N)`` float32; a gradient whose factor is 0 need not be finite.
        factors: Factors ``(G,)`` float32, none of them negative.
        block: Number of groups that are added up before their sum is added to the total; a divisor of G.
        kind: Dtype of the sum: float32 or int32.

    Returns:
        The sum ``(N,)``, of dtype `kind`.

    Raises:
        ValueError: If G is not a multiple of `block`.
    """
    groups, length = gradients.shape
    if groups % block:
        raise ValueError(f"expected a multiple of {block} groups, got {groups}")
    out = torch.empty(length, dtype=kind, device=gradients.device)
    number = tl.int32 if kind == torch.int32 else tl.float32
    _weigh[(triton.cdiv(length, _TILE),)](gradients.contiguous(), factors, out, length, groups, number, block, _TILE)
    return out
