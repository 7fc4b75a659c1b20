"""Covers parameters that are broadcast to every row.

They are added to the rows (as position embeddings are), multiply them (layer scale), or are copied for each row (class tokens).
Shapes: n records, k rows for each record.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dpfed.bounding.layer_rules.term import Materialised, Target, Term

if TYPE_CHECKING:
    from dpfed.bounding.layer_rules.recorder import Recorder


def view(recorder: Recorder, func: Callable, tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Computes and records views of parameters, such as the first L position embeddings, one row, or another shape."""
    seen = func(tensor.detach(), *args, **kwargs)
    if seen.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr():
        return NotImplemented
    return recorder.alias(seen, tensor, lambda part: func(part, *args, **kwargs))


def add(recorder: Recorder, _: Any, first: Tensor, second: Any, alpha: float = 1) -> Any:
    """Computes and records ``x + parameters`` on x ``(n k, ...)``, in either order.

    The parameters have no dimension for the rows, or one of size 1.
    """
    pair = _parameters_and_records(recorder, first, second)
    if pair is None or alpha != 1:
        return NotImplemented
    target, ours, x = pair
    return recorder.collect(x + ours.detach(), None, lambda g: [_sum(target, g, ours.shape, recorder)])


def multiply(recorder: Recorder, _: Any, first: Tensor, second: Any) -> Any:
    """Computes and records ``x * parameters`` on x ``(n k, ...)``, in either order.

    The parameters may be the scale of a layer or of each channel.
    """
    pair = _parameters_and_records(recorder, first, second)
    if pair is None:
        return NotImplemented
    target, ours, x = pair
    seen = x.detach()
    return recorder.collect(x * ours.detach(), seen, lambda g: [_sum(target, g * seen, ours.shape, recorder)])


def add_product(recorder: Recorder, _: Any, shift: Tensor, scale: Tensor, x: Tensor, value: float = 1) -> Any:
    """Computes and records ``torch.addcmul(shift, scale, x)``, as in global response normalisation.

    The parameters, shift and scale, are the same for all rows.
    """
    targets = recorder.target(shift), recorder.target(scale)
    fits = all(ours.dim() <= x.dim() and (ours.dim() < x.dim() or len(ours) == 1) for ours in (shift, scale))
    if value != 1 or recorder.source(x) is not None or not fits:
        return NotImplemented
    seen = x.detach()

    def terms(gradient: Tensor) -> list[Term]:
        parts = (gradient, shift), (gradient * seen, scale)
        pairs = zip(targets, parts, strict=True)
        return [_sum(target, part, ours.shape, recorder) for target, (part, ours) in pairs if target is not None]

    return recorder.collect(torch.addcmul(shift.detach(), scale.detach(), x), seen, terms)


def _parameters_and_records(recorder: Recorder, first: Any, second: Any) -> tuple[Target, Tensor, Tensor] | None:
    """Returns the parameters' target, the parameters, and the other operand, whose first dimension has the rows.

    Returns ``None`` if the rules do not cover the operands, or the parameters are not trained.
    """
    ours, x = (first, second) if recorder.source(first) is not None else (second, first)
    if not isinstance(x, Tensor) or recorder.source(x) is not None:
        return None
    if ours.dim() > x.dim() or ours.dim() == x.dim() and len(ours) > 1:
        return None
    target = recorder.target(ours)
    return None if target is None else (target, ours, x)


def expand(recorder: Recorder, _: Any, tensor: Tensor, *sizes: Any) -> Any:
    """Computes and records ``Tensor.expand`` of a parameter ``(1, ...)`` to ``(n k, ...)``, one copy for each row."""
    target = recorder.target(tensor)
    if target is None:
        return NotImplemented
    copies = tensor.detach().expand(*sizes).clone()  # not a view of the parameter, which other threads read at the same time
    return recorder.collect(copies, None, lambda g: [_sum(target, g, tensor.shape, recorder)])


def _sum(target: Target, gradient: Tensor, shape: torch.Size, recorder: Recorder) -> Term:
    """Adds up a gradient ``(n k, ...)`` over each group's rows and over all other dimensions that were broadcast."""
    grouping, sums = recorder.grouping, recorder.grouping.sums(gradient)
    if isinstance(sums, Tensor):
        last = shape[-(sums.dim() - 1) :]  # without a leading dimension of size 1
        full = (len(sums), *[1] * (sums.dim() - 1 - len(last)), *last)
        return Materialised(target, sums.sum_to_size(full).view(len(sums), *shape), grouping)
    return Materialised(target, [part[None].sum_to_size(shape) for part in sums], grouping)
