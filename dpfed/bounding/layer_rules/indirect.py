"""Weights that a layer uses and that follow from trained ones: adapted, or standardised.

Low-rank adapters are two thin matrices whose gradients are sums of outer products like any linear layer's.
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
        kind = gradients.dtype  # which is rounded where kernels take it
        x, blocks = inputs.to(kind), gradients.chunk(self.update.blocks, dim=-1)
        for number, (block, up, down) in enumerate(zip(self.update.chosen, self.update.up, self.update.down, strict=True)):
            g = blocks[block]
            low = x @ (self.update.scale * down.mT).to(kind)
            yield OuterProducts(self.up.entry(number), low, g, grouping)
            high = g @ (self.update.scale * up).to(kind)
            yield OuterProducts(self.down.entry(number), x, high, grouping)


@dataclass(frozen=True)
class StandardisedWeight:
    """A kernel that was computed from a trained one: every output's weights minus their mean, over their deviation.

    Attributes:
        plain: where the trained kernel's gradient goes, in the shape ``(1, O, d)``.
        weight: ``(1, O, d)`` the standardised kernel.
        inverse: ``(1, O, 1)`` one over the standard deviation of each output's weights.
    """

    plain: Target
    weight: Tensor
    inverse: Tensor

    def pulled_back(self, gradient: Tensor) -> Tensor:
        """The gradient of the plain kernel, ``(..., 1, O, d)``, from that of the standardised one, ``(..., O, C, kH, kW)``."""
        g = gradient.flatten(-3).unsqueeze(-3)
        along = (g * self.weight).mean(-1, keepdim=True)
        return self.inverse * (g - g.mean(-1, keepdim=True) - self.weight * along)
