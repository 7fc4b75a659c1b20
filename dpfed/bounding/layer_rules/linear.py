"""Linear layers and products with a matrix of parameters.

Also here: low-rank adapters: two thin matrices whose gradients are sums of outer products like any linear layer's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dpfed.bounding.layer_rules.grouping import Grouping, precise
from dpfed.bounding.layer_rules.row_sums import RowSums
from dpfed.bounding.layer_rules.term import OuterProducts, Target, Term
from dpfed.models.lora import LowRankUpdate

if TYPE_CHECKING:
    from dpfed.bounding.layer_rules.recorder import Recorder


@dataclass(frozen=True)
class AdaptedWeight:
    """A frozen weight with an update ``scale * up @ down`` on some of its blocks of rows.

    Attributes:
        update: the adapter.
        up: where its ``up (blocks, out, r)`` lies among the trainable parameters.
        down: where its ``down (blocks, r, in)`` lies.
    """

    update: LowRankUpdate
    up: Target
    down: Target

    def terms(self, inputs: Tensor, gradients: Tensor, grouping: Grouping) -> Iterable[Term]:
        """Of both factors: with rows a_t and g_t the sums over t of ``g_t (down a_t)^T`` and ``(up^T g_t) a_t^T``.

        Args:
            inputs: ``(n k, ..., in)`` of the layer.
            gradients: ``(n k, ..., blocks * out)`` of its output.
            grouping: of the records.
        """
        x, blocks = precise(inputs), gradients.chunk(self.update.blocks, dim=-1)
        for number, (block, up, down) in enumerate(zip(self.update.chosen, self.update.up, self.update.down, strict=True)):
            g = blocks[block]
            low = x @ (self.update.scale * down.mT)
            yield OuterProducts(self.up.entry(number), low, g, grouping)
            high = g @ (self.update.scale * up)
            yield OuterProducts(self.down.entry(number), x, high, grouping)


def linear(recorder: Recorder, _: Any, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``F.linear`` on ``(n k, ..., d)``; the weight may be adapted."""
    output = F.linear(input, weight.detach(), None if bias is None else bias.detach())
    weights, biases, x = _source(recorder, weight), recorder.target(bias), input.detach()

    def terms(gradient: Tensor) -> Iterator[Term]:
        if isinstance(weights, AdaptedWeight):
            yield from weights.terms(x, gradient, recorder.grouping)
        elif weights is not None:
            yield OuterProducts(weights, x.to(output.dtype), gradient, recorder.grouping)
        if biases is not None:
            yield shift_term(biases, gradient, recorder)

    return recorder.collect(output, x, terms)


def _source(recorder: Recorder, weight: Tensor) -> Target | AdaptedWeight | None:
    source = recorder.source(weight)
    return source if isinstance(source, AdaptedWeight) else recorder.target(weight)


def matmul(recorder: Recorder, _: Any, input: Tensor, other: Tensor) -> Any:
    """``x @ W`` with parameters on the right, ``(n k, ..., d)`` times ``(d, p)``."""
    target = recorder.target(other)
    if target is None or recorder.source(input) is not None or other.dim() != 2:
        return NotImplemented
    turned, x = target.through(torch.t), input.detach()
    return recorder.collect(input @ other.detach(), x, lambda g: [OuterProducts(turned, x, g, recorder.grouping)])


def shift_term(target: Target, gradient: Tensor, recorder: Recorder) -> Term:
    """Of what is added along the last dimension of ``(n k, ..., p)``."""
    middle = tuple(range(1, gradient.dim() - 1))
    by_row = gradient.sum(middle) if middle else gradient
    return RowSums.of(target, by_row, recorder.grouping)
