"""Parameters that are added to every record (positions) or handed to every record (class tokens)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dpfed.bounding.layer_rules.term import Materialised, Target, Term

if TYPE_CHECKING:
    from dpfed.bounding.layer_rules.recorder import Recorder


def view(recorder: Recorder, func: Callable, tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
    """A view of parameters: positions ``[:L]``, a row of them, another shape."""
    seen = func(tensor.detach(), *args, **kwargs)
    if seen.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr():
        return NotImplemented
    return recorder.alias(seen, tensor, lambda part: func(part, *args, **kwargs))


def add(recorder: Recorder, _: Any, first: Tensor, second: Any, alpha: float = 1) -> Any:
    """``x + parameters`` on ``(n k, ...)``, either way round; the parameters have no dimension of records."""
    ours, x = (first, second) if recorder.source(first) is not None else (second, first)
    if not isinstance(x, Tensor) or recorder.source(x) is not None or alpha != 1:
        return NotImplemented
    if ours.dim() > x.dim() or ours.dim() == x.dim() and len(ours) > 1:
        return NotImplemented
    target = recorder.target(ours)
    if target is None:
        return NotImplemented
    return recorder.collect(x + ours.detach(), None, lambda g: [_sum(target, g, ours.shape, recorder)])


def expand(recorder: Recorder, _: Any, tensor: Tensor, *sizes: Any) -> Any:
    """One copy for each record: ``(1, ...)`` -> ``(n k, ...)``."""
    target = recorder.target(tensor)
    if target is None:
        return NotImplemented
    copies = tensor.detach().expand(*sizes)
    return recorder.collect(copies, None, lambda g: [_sum(target, g, tensor.shape, recorder)])


def _sum(target: Target, gradient: Tensor, shape: torch.Size, recorder: Recorder) -> Term:
    """Adds up a gradient ``(n k, ...)`` over records and whatever else was broadcast."""
    by_group = recorder.grouping.sums(gradient)
    return Materialised(target, torch.stack([part[None].sum_to_size(shape) for part in by_group]), recorder.grouping)
