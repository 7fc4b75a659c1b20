"""Makes matrix products on a CPU give a record the same bits at every position in a pass.

With torch 2.15 and MKL, `torch.bmm` may give the same matrix different bits at another index of the batch, unless each product
begins at a multiple of 64 bytes. A product with fewer than 12 columns may give the same row different bits at another position.
So may attention, unless the width of its heads is a multiple of 16. This module pads such products. Most products are wider and
aligned, and remain unchanged.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

_LINE = 64  # bytes of a cache line, to which new memory of a CPU is aligned
_NEW = 256  # bytes to which new memory of a GPU is aligned
_WIDE = 16  # least number of columns of a product; heads are padded to a multiple of it


def aligned(rows: Tensor) -> Tensor:
    """Returns the rows as a contiguous tensor, which is aligned like newly allocated memory.

    The bits of some small products depend on the alignment.
    """
    rows = rows.contiguous()
    return rows.clone() if rows.data_ptr() % (_LINE if rows.device.type == "cpu" else _NEW) else rows


class Watched(TorchDispatchMode):
    """Torch mode that inspects the operations of a pass, and leaves its computation unchanged.

    Args:
        tokens: Tokens of the texts in the pass; ``None`` if the pass reads no texts.

    Attributes:
        by_place: Whether the pass has a matrix product or attention whose last bits may depend on a record's position in the
            pass.
        vocabulary: Number of rows of the embedding table that the pass indexes with exactly `tokens`. If there is no such
            table, it is 3, a small default for the texts of later checks.
    """

    def __init__(self, tokens: Tensor | None = None) -> None:
        super().__init__()
        self.by_place, self.vocabulary, self._tokens = False, 3, tokens

    def __torch_dispatch__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        """Runs in place of every operation while the mode is on."""
        rule = _RULES.get(func)
        self.by_place |= rule is not None and rule(*args) is not None
        self.by_place |= "scaled_dot_product" in str(func) and args[0].shape[-1] % _WIDE > 0
        if func is torch.ops.aten.embedding.default and self._tokens is not None:
            if args[1].numel() == self._tokens.numel() and torch.equal(args[1].flatten(), self._tokens.flatten()):
                self.vocabulary = len(args[0])
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def same_at_all_places() -> Iterator[None]:
    """Opens a block in which matrix products on a CPU give a record the same bits at every position in a pass."""
    with _Heads(), _Products():
        yield


def _bmm(left: Tensor, right: Tensor) -> Callable[[], Tensor] | None:
    rows, columns = left.shape[1], right.shape[2]
    each = _LINE // left.element_size()
    if rows * columns % each == 0:
        return None

    def product() -> Tensor:
        stride = -(-rows * columns // each) * each
        out = left.new_empty(len(left) * stride).as_strided((len(left), rows, columns), (stride, columns, 1))
        return torch.bmm(left, right, out=out).contiguous()

    return product


def _mm(left: Tensor, right: Tensor) -> Callable[[], Tensor] | None:
    columns = right.shape[1]
    if columns >= _WIDE:
        return None
    return lambda: (left @ F.pad(right, (0, _WIDE - columns)))[:, :columns].contiguous()


def _addmm(bias: Tensor, left: Tensor, right: Tensor) -> Callable[[], Tensor] | None:
    product = _mm(left, right)
    return None if product is None else lambda: product() + bias


# A rule gets the arguments of an operation and returns a function that computes the operation with padding; ``None``: the
# operation needs no padding.
_RULES: dict[Any, Callable[..., Callable[[], Tensor] | None]] = {
    torch.ops.aten.bmm.default: _bmm,
    torch.ops.aten.mm.default: _mm,
    torch.ops.aten.addmm.default: _addmm,
}


class _Products(TorchDispatchMode):
    """Torch mode that stores each matrix of a `torch.bmm` result at a multiple of 64 bytes, and pads other products.

    A product of two matrices gets at least 16 columns.
    """

    def __torch_dispatch__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        """Runs in place of every operation while the mode is on."""
        rule = _RULES.get(func)
        product = None if rule is None or kwargs else rule(*args)
        return func(*args, **(kwargs or {})) if product is None else product()


class _Heads(TorchFunctionMode):
    """Torch mode that pads the width of each attention head with zeros to a multiple of 16."""

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        """Runs in place of every function of torch while the mode is on."""
        if func is F.scaled_dot_product_attention:
            return _attention(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _attention(query: Tensor, key: Tensor, value: Tensor, *rest: Any, **options: Any) -> Tensor:
    missing, width = -query.shape[-1] % _WIDE, value.shape[-1]
    if not missing and not width % _WIDE:
        return F.scaled_dot_product_attention(query, key, value, *rest, **options)
    if options.get("scale") is None:
        options["scale"] = query.shape[-1] ** -0.5
    query, key, value = F.pad(query, (0, missing)), F.pad(key, (0, missing)), F.pad(value, (0, -width % _WIDE))
    return F.scaled_dot_product_attention(query, key, value, *rest, **options)[..., :width]
