"""Many tensors in one call, by torch's ``_foreach`` functions: much faster than one call for each parameter.

They have no public names. torch's own optimizers and ``torch.nn.utils.clip_grad_norm_`` are made of them; last checked with
torch 2.15. On an upgrade, run the test of this file, and see whether ``clip_grad_norm_`` still uses them.
"""

from __future__ import annotations

import threading

import torch
from torch import Tensor

Tensors = tuple[Tensor, ...] | list[Tensor]


WHOLE = {torch.float32: torch.int32, torch.float64: torch.int64}  # of a pass over a model in such numbers
_ROW = 1024
_LONG = 1 << 14  # numbers of a tensor whose rows are added up in float32


def norms(tensors: Tensors, dtype: torch.dtype) -> Tensor:
    """``(n,)`` L2 norms of n tensors, added up in a type.

    On CPUs, squares of a long float32 tensor are added up in float32 within rows of 1,024, which takes a fifth of the time, and
    the rows in the type. In any order, the sum of n positive numbers errs by n - 1 roundings of itself at most: a norm by
    3.1e-5 of itself, or by 1e-22 a number where squares vanish. `dpfed.bounding.clipping` leaves room for that.
    """
    norms = list(torch._foreach_norm(tensors, 2, dtype)) if not any(map(_is_long, tensors)) else []
    return torch.stack(norms or [_norm(tensor, dtype) for tensor in tensors])


def _is_long(tensor: Tensor) -> bool:
    return tensor.numel() >= _LONG and tensor.dtype == torch.float32 and tensor.device.type == "cpu"


def _norm(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    if not _is_long(tensor):
        return torch.linalg.vector_norm(tensor, dtype=dtype)
    flat = tensor.reshape(-1)
    whole = len(flat) // _ROW * _ROW
    rows = torch.linalg.vector_norm(flat[:whole].view(-1, _ROW), dim=1)
    return torch.hypot(torch.linalg.vector_norm(rows, dtype=dtype), torch.linalg.vector_norm(flat[whole:], dtype=dtype))


_PIECE = 1 << 16  # numbers that stay in a core's cache


def add_(sums: Tensors, terms: Tensors, factor: float = 1.0) -> None:
    """Adds to each tensor its term, times a factor, in place.

    Sums of whole numbers get whole numbers: of each term times the factor, what stands before the point. So a term never
    becomes longer, and a sum is exact, whoever adds it up and in which order.

    On CPUs, torch writes a term of another type than the sum's down as a whole, in the sum's type, before it adds. A piece at
    a time, a long term of float32 is added to float64 in a fifth of the time, and to the same bits.
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


class _Buffers(threading.local):
    """Where a thread writes the pieces of a term down: new memory for each piece would cost more than the arithmetic."""

    def __init__(self) -> None:
        self.scaled, self.whole = torch.empty(_WHOLE_PIECE), torch.empty(_WHOLE_PIECE, dtype=torch.int32)


_buffers = _Buffers()


def add_whole_(total: Tensor, term: Tensor, factor: float = 1.0) -> None:
    """See `add_`, of one term and a sum of whole numbers. A float32, times the factor, must lie within int32."""
    if total.device.type == "cpu" and total.is_contiguous() and not term.is_floating_point():
        for some, part in zip(total.view(-1).split(_PIECE), term.reshape(-1).split(_PIECE), strict=True):
            some.add_(part)
        return
    if total.device.type != "cpu" or term.dtype != torch.float32 or not total.is_contiguous():
        kind = torch.int32 if term.dtype == torch.float32 else total.dtype
        total.add_(whole(term, factor, kind).view(total.shape))
        return
    for some, part in zip(total.view(-1).split(_WHOLE_PIECE), term.reshape(-1).split(_WHOLE_PIECE), strict=True):
        scaled = torch.mul(part, factor, out=_buffers.scaled[: len(part)])
        some.add_(_buffers.whole[: len(part)].copy_(scaled))


def whole(term: Tensor, factor: float | Tensor, kind: torch.dtype) -> Tensor:
    """What stands before the point of a term times a factor; of whole numbers, themselves."""
    return (term * factor).to(kind) if term.is_floating_point() else term
