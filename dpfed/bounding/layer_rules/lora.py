"""Low-rank adapters: two thin matrices whose gradients are sums of outer products like any linear layer's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from dpfed.bounding.layer_rules.grouping import Grouping, precise
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
        x, blocks = precise(inputs), gradients.chunk(self.update.blocks, dim=-1)
        for number, (block, up, down) in enumerate(zip(self.update.chosen, self.update.up, self.update.down, strict=True)):
            g = blocks[block]
            low = x @ (self.update.scale * down.mT)
            yield OuterProducts(self.up.entry(number), low, g, grouping)
            high = g @ (self.update.scale * up)
            yield OuterProducts(self.down.entry(number), x, high, grouping)
