"""Covers linear layers and products with a matrix of parameters.

Shapes: n records, k rows for each record.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dpfed.bounding.layer_rules.grouping import precise, precise_type
from dpfed.bounding.layer_rules.indirect import AdaptedWeight
from dpfed.bounding.layer_rules.row_sums import RowSums
from dpfed.bounding.layer_rules.term import OuterProducts, Target, Term

if TYPE_CHECKING:
    from dpfed.bounding.layer_rules.recorder import Recorder


def linear(recorder: Recorder, _: Any, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Computes and records ``F.linear`` on ``(n k, ..., d)``; the weight may be a frozen weight with a trained adapter."""
    output = F.linear(input, weight.detach(), None if bias is None else bias.detach())
    weights, biases, x = _source(recorder, weight), recorder.target(bias), input.detach()

    def terms(gradient: Tensor) -> Iterator[Term]:
        if isinstance(weights, AdaptedWeight):
            yield from weights.terms(x, gradient, recorder.grouping)
        elif weights is not None:
            yield OuterProducts(weights, x.to(output.dtype), gradient, recorder.grouping)
        if biases is not None:
            middle = tuple(range(1, gradient.dim() - 1))
            rows = gradient.sum(middle, dtype=precise_type(gradient)) if middle else precise(gradient)
            yield RowSums.of(biases, rows, recorder.grouping)

    return recorder.collect(output, x, terms, rounded=True)


def _source(recorder: Recorder, weight: Tensor) -> Target | AdaptedWeight | None:
    source = recorder.source(weight)
    return source if isinstance(source, AdaptedWeight) else recorder.target(weight)


def matmul(recorder: Recorder, _: Any, input: Tensor, other: Tensor) -> Any:
    """Computes and records ``x @ W`` for activations x ``(n k, ..., d)`` and a matrix of parameters W ``(d, p)``."""
    target = recorder.target(other)
    if target is None or recorder.source(input) is not None or other.dim() != 2:
        return NotImplemented
    turned, x = target.through(torch.t), input.detach()
    return recorder.collect(input @ other.detach(), x, lambda g: [OuterProducts(turned, x, g, recorder.grouping)])
