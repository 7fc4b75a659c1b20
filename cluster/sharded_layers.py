"""Clipped group gradients of a sharded model by ghost norms: one forward and one backward pass over several groups of a rank.

The recorded pass of the layerwise engine (`dpfed.bounding.engines.shared_pass`) reads detached weights, so FSDP2 finds no
gradient to add up. It gathers the blocks' parameters, one block after the other, and lets them go. What a layer keeps are its
groups' norms, and what their gradients follow from. When all norms are known, and with them the clip factors, the ranks compute
the weighted gradients of one block after the other, and add them together shard by shard.

A rank holds whole gradients of one block at a time, and of what lies outside the blocks (embeddings, small layers); while a
layer's norms are measured, one group's gradient of that layer. Beside activations, it keeps per layer and chunk of groups the
rows that went into it and came back, or every group's gradient, where those are fewer numbers (`Grouping.sparing`). So what is
kept grows with the records of a chunk, and never with the model alone. A standardised kernel is the exception: every group's
gradient of it is kept.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cluster.fsdp_internals import whole_parameters
from cluster.lockstep import LockstepEngine
from dpfed.bounding.bounded_sum import Clip
from dpfed.bounding.engines import GroupBatch, LossOfViews
from dpfed.bounding.engines.engine import shared_out
from dpfed.bounding.engines.shared_pass import Reading, Sources, check_rows, chunks_of, clipped, terms_of
from dpfed.bounding.layer_rules.grouping import Grouping
from dpfed.bounding.layer_rules.refusal import Unsupported
from dpfed.bounding.layer_rules.term import Target, Term
from dpfed.models.lora import adapted
from dpfed.models.norm import refuse_mixing
from dpfed.objectives import GroupLoss
from dpfed.objectives.infonce import group_loss

_CPU_RECORDS, _RECORDS = 64, 256  # of one pass; fewer spread the cost of gathering and adding over less


class ShardedLayerwiseEngine(LockstepEngine):
    """One pass over the records of several groups of each rank, in fp32. All ranks make it at once.

    Args:
        model: sharded, the same on all ranks; every trainable parameter is read once, by a function that has a rule.
        loss: of one group; torch.func.vmap must be able to batch it.
        records: at a time on a rank, or more where a single group has more. By default 64 on CPUs, and 256 elsewhere.
        group_size: S, expected records in a group, see `Grouping.typical`.
        dummy_batch: noise in the shape of the groups, never private; its first group is what a rank without groups computes.

    Raises:
        Unsupported: for adapters, and if a layer has no records in its first dimension.
    """

    name = "layerwise"

    def __init__(
        self,
        model: nn.Module,
        loss: GroupLoss = group_loss,
        records: int | None = None,
        group_size: int | None = None,
        *,
        dummy_batch: GroupBatch,
    ) -> None:
        refuse_mixing(model, "bounding.engine = 'layerwise'")
        if next(adapted(model), None) is not None:
            raise Unsupported("adapters on a sharded model")
        super().__init__(model)
        device = self.vector.whole.device
        self._loss, self._group_size = LossOfViews(model, "fp32", loss), group_size
        self._records = records or (_CPU_RECORDS if device.type == "cpu" else _RECORDS)
        self._dummy_batch = dummy_batch.first(1)
        blocks = whole_parameters(model, self.vector.whole.names)
        self._blocks = [list(block) for block in blocks]
        self._sources: Sources = [(tensor, Target(number)) for block in blocks for number, tensor in block.items()]
        names = {name: number for number, name in enumerate(self.vector.whole.names)}
        self._scalars = [names[name] for name, p in zip(names, self.vector.whole.parameters, strict=True) if not p.dim()]
        self._sources += [(self.vector.whole.parameters[number], Target(number)) for number in self._scalars]
        check_rows(self._loss, dummy_batch.views, self._sources, device)

    def add_clipped(
        self, batch: GroupBatch, clip_norm: float | Clip, into: Tensor, losses: list[Tensor] | None = None
    ) -> Tensor:
        """Adds the clipped gradients of a chunk of groups of each rank at a time, of this rank's shards, to a flat vector.

        Returns only when the other ranks, too, have called it or `finish` as often as this rank has chunks.

        Args:
            batch: this rank's groups.
            clip_norm: C, or another `Clip`.
            into: see `zeros`; added to in place.
            losses: see `Engine`; of this rank's groups.

        Returns:
            Gradient norms before clipping, of this rank's groups that have at least two records: private.
        """
        figures = [into.new_zeros(3, 0, dtype=self._exact)]
        for groups in chunks_of(batch, self._records, 1):
            self._anyone_has_a_group(True)
            some = batch.only(groups)
            terms, of_groups = self._pass(some)
            norms, factors = clipped(terms, clip_norm)
            self._add(terms, factors, into)
            figures.append(torch.stack([norms, of_groups.to(norms), norms.new_tensor(some.sizes)]))
        return shared_out(torch.cat(figures, dim=1), losses)

    def _idle(self, into: Tensor) -> None:
        self._pass(self._dummy_batch)
        self._add([], torch.empty(0), into)

    def _pass(self, batch: GroupBatch) -> tuple[list[Term], Tensor]:
        grouping = Grouping(batch.sizes, self.vector.whole.device, self._exact, self._group_size, sparing=True)
        return terms_of(self._loss, batch.views, grouping, Reading.of(self._loss, self.vector.whole, self._sources))

    @torch.no_grad()
    def _add(self, terms: list[Term], factors: Tensor, into: Tensor) -> None:
        """Adds all ranks' weighted gradients, of this rank's shards, block by block; scalars stay on their ranks.

        Lets go of the terms, one after the other.
        """
        of_parameter: dict[int, list[Term]] = {}
        while terms:
            term = terms.pop()
            of_parameter.setdefault(term.target.parameter, []).append(term)

        def fill(number: int, gradient: Tensor) -> None:
            for term in of_parameter.pop(number, []):
                term.add_weighted(factors, term.target.of({number: gradient}))

        parts = self.vector.split(into)
        for number in self._scalars:
            gradient = torch.zeros((), device=into.device)
            fill(number, gradient)
            parts[number].add_(gradient)
        for numbers in self._blocks:
            self.vector.add_up(numbers, fill, into)
