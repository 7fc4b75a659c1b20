"""Computes with many tensors in one call of torch's ``_foreach`` functions, much faster than with one call for each tensor.

torch's ``_foreach`` functions are not part of its public interface. But torch's own optimizers and
``torch.nn.utils.clip_grad_norm_`` are built on them; last checked with torch 2.15. After an upgrade of torch, run the test of
this file, and check that ``clip_grad_norm_`` still uses them.
"""

from __future__ import annotations

import threading

import torch
from torch import Tensor

Tensors = tuple[Tensor, ...] | list[Tensor]


WHOLE = {torch.float32: torch.int32, torch.float64: torch.int64}  # dtype of a pass's integer sum, by the model's dtype
_ROW = 1024
_LONG = 1 << 14  # a tensor with at least this many entries is divided into rows, which are added up in float32


def norms(tensors: Tensors, dtype: torch.dtype) -> Tensor:
    """Returns the L2 norms ``(n,)`` of n tensors, added up in `dtype`.

    On CPUs, a long float32 tensor is divided into rows of 1,024 numbers. The squares of a row are added up in float32, which
    takes a fifth of the time, and the sums of the rows in `dtype`. In any order, the sum of n positive numbers has a relative
    error of at most n - 1 roundings. So a norm is wrong by at most a fraction of 3.1e-5, or 1e-22 per entry if squares
    underflow. `dpfed.bounding.clipping` has a margin for this.
    """
    if not any(map(_is_long, tensors)):
        return torch.stack(torch._foreach_norm(tensors, 2, dtype))
    return torch.stack([_norm(tensor, dtype) for tensor in tensors])


def _is_long(tensor: Tensor) -> bool:
    return tensor.numel() >= _LONG and tensor.dtype == torch.float32 and tensor.device.type == "cpu"


def _norm(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    if not _is_long(tensor):
        return torch.linalg.vector_norm(tensor, dtype=dtype)
    flat = tensor.reshape(-1)
    whole = len(flat) // _ROW * _ROW
    norm = torch.linalg.vector_norm(torch.linalg.vector_norm(flat[:whole].view(-1, _ROW), dim=1), dtype=dtype)
    return norm if whole == len(flat) else torch.hypot(norm, torch.linalg.vector_norm(flat[whole:], dtype=dtype))


_PIECE = 1 << 16  # entries that stay in a core's cache


def add_(sums: Tensors, terms: Tensors, factor: float = 1.0) -> None:
    """Adds to each tensor of `sums`, in place, the tensor of `terms` at the same position, times a factor.

    If a sum has integers, the product of term and factor is truncated towards zero to integers. So the truncation
    increases no term's norm, and a sum is exact, in whatever order its terms are added.

    On CPUs, torch converts a term to the dtype of the sum as a whole before it adds. This function converts a long float32 term
    piece by piece, which takes a fifth of the time and gives the same bits.
    """
    if not sums[0].is_floating_point():
        for total, term in zip(sums, terms, strict=True):
            add_whole_(total, term, factor)
        return
    if sums[0].device.type != "cpu" or sums[0].dtype == terms[0].dtype:
        torch._foreach_add_(sums, terms, alpha=factor)
        return
    for total, term in zip(sums, terms, strict=True):
        for whole, part in zip(total.view(-1).split(_PIECE), term.reshape(-1).split(_PIECE), strict=True):
            whole.add_(part, alpha=factor)


_WHOLE_PIECE = 1 << 18
_SHORT = 1 << 15  # entries up to which calls for a term alone cost more than its arithmetic


def add_side_by_side_(total: Tensor, terms: Tensors, factors: list[float]) -> bool:
    """Adds several short float32 terms, each times its factor, to one integer sum on a CPU, if the buffers can hold them.

    Args:
        total: Sum, which is changed in place.
        terms: Terms with as many entries as the sum.
        factors: Factor of each term, a float32 number.

    Returns:
        Whether the terms were added; if not, nothing is changed.
    """
    entries = len(terms) * total.numel()
    on_cpu = total.device.type == "cpu" and all(term.dtype == torch.float32 for term in terms)
    if not on_cpu or len(terms) < 2 or total.numel() > _SHORT or entries > _WHOLE_PIECE:
        return False
    scaled, whole = (buffer[:entries].view(len(terms), -1) for buffer in (_buffers.scaled, _buffers.whole))
    torch.cat([term.reshape(1, -1) for term in terms], out=scaled)
    whole.copy_(scaled.mul_(torch.tensor(factors, dtype=torch.float32).unsqueeze(1)))
    total.add_(whole.sum(0, dtype=total.dtype).view(total.shape))
    return True


class _Buffers(threading.local):
    """Buffers of one thread for the pieces of a term; to allocate memory for each piece would cost more than the arithmetic."""

    def __init__(self) -> None:
        self.scaled, self.whole = torch.empty(_WHOLE_PIECE), torch.empty(_WHOLE_PIECE, dtype=torch.int32)


_buffers = _Buffers()


def add_whole_(total: Tensor, term: Tensor, factor: float = 1.0) -> None:
    """Adds one term to an integer sum in place, see `add_`. A float32 entry, times the factor, must lie within int32.

    A term of integers is added without the factor.
    """
    if total.device.type == "cpu" and total.is_contiguous() and not term.is_floating_point():
        for piece, part in zip(total.view(-1).split(_PIECE), term.reshape(-1).split(_PIECE), strict=True):
            piece.add_(part)
        return
    if total.device.type != "cpu" or term.dtype != torch.float32 or not total.is_contiguous():
        kind = torch.int32 if term.dtype == torch.float32 else total.dtype
        total.add_(whole(term, factor, kind).view(total.shape))
        return
    for piece, part in zip(total.view(-1).split(_WHOLE_PIECE), term.reshape(-1).split(_WHOLE_PIECE), strict=True):
        scaled = torch.mul(part, factor, out=_buffers.scaled[: len(part)])
        piece.add_(_buffers.whole[: len(part)].copy_(scaled))


def whole(term: Tensor, factor: float | Tensor, kind: torch.dtype) -> Tensor:
    """Returns a term times a factor, truncated towards zero, in the dtype `kind`; returns an integer term unchanged."""
    return (term * factor).to(kind) if term.is_floating_point() else term
