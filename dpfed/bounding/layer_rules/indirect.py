"""Covers weights that are computed from trained parameters before a layer uses them: adapted and standardised weights.

A low-rank adapter consists of two thin matrices. Their gradients are sums of outer products, as for a linear layer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from dpfed.bounding.layer_rules.grouping import Grouping
from dpfed.bounding.layer_rules.term import OuterProducts, Target, Term
from dpfed.models.lora import LowRankUpdate


@dataclass(frozen=True)
class AdaptedWeight:
    """A frozen weight with a trained update ``scale * up @ down``, which is added to one or more of its blocks of rows.

    Attributes:
        update: Adapter of the weight.
        up: Destination of the gradient of the adapter's factor ``up``, ``(c, out, r)`` for c adapted blocks.
        down: Destination of the gradient of the adapter's factor ``down``, ``(c, r, in)``.
    """

    update: LowRankUpdate
    up: Target
    down: Target

    def terms(self, inputs: Tensor, gradients: Tensor, grouping: Grouping) -> Iterable[Term]:
        """Yields the terms of both factors: sums over t of ``scale g_t (down a_t)^T`` and ``scale (up^T g_t) a_t^T``.

        Args:
            inputs: Inputs of the layer, ``(n k, ..., in)``, with rows a_t.
            gradients: Gradients of the layer's output, ``(n k, ..., blocks * out)``, with rows g_t.
            grouping: Grouping of the records.
        """
        kind = gradients.dtype  # of lower precision where kernels take such gradients
        x, blocks = inputs.to(kind), gradients.chunk(self.update.blocks, dim=-1)
        for number, (block, up, down) in enumerate(zip(self.update.chosen, self.update.up, self.update.down, strict=True)):
            g = blocks[block]
            low = x @ (self.update.scale * down.mT).to(kind)
            yield OuterProducts(self.up.entry(number), low, g, grouping)
            high = g @ (self.update.scale * up).to(kind)
            yield OuterProducts(self.down.entry(number), x, high, grouping)


@dataclass(frozen=True)
class StandardisedWeight:
    """A kernel computed from a trained one: each output's weights minus their mean, divided by their standard deviation.

    The kernel has O outputs, and d weights for each of them.

    Attributes:
        plain: Destination of the trained kernel's gradient, in the shape ``(1, O, d)``.
        weight: Standardised kernel ``(1, O, d)``.
        inverse: Inverse standard deviation of each output's weights, ``(1, O, 1)``.
    """

    plain: Target
    weight: Tensor
    inverse: Tensor

    def pulled_back(self, gradient: Tensor) -> Tensor:
        """Computes the trained kernel's gradient ``(..., 1, O, d)`` from the standardised one's, ``(..., O, C, kH, kW)``."""
        g = gradient.flatten(-3).unsqueeze(-3)
        along = (g * self.weight).mean(-1, keepdim=True)
        return self.inverse * (g - g.mean(-1, keepdim=True) - self.weight * along)
