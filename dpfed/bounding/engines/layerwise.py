"""Many groups in one forward and one backward pass; every layer gives the groups' norms and one weighted sum.

The field calls it ghost clipping, and the use of one backward pass for norms and sum book-keeping (Bu et al. 2023).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from dpfed.bounding import foreach
from dpfed.bounding.bounded_sum import Clip
from dpfed.bounding.engines.engine import Engine, GroupBatch, LossOfViews, Precision, Views, shared_out
from dpfed.bounding.engines.lanes import Lanes
from dpfed.bounding.engines.same_rounding import require_same_rounding
from dpfed.bounding.engines.shared_pass import Reading, check_rows, chunks_of, clipped, terms_of
from dpfed.bounding.layer_rules.grouping import Grouping
from dpfed.bounding.layer_rules.lora import AdaptedWeight
from dpfed.bounding.layer_rules.recorder import Source
from dpfed.bounding.layer_rules.term import Target, Term
from dpfed.models.lora import adapted
from dpfed.models.norm import refuse_mixing
from dpfed.objectives import GroupLoss
from dpfed.objectives.infonce import group_loss

_CPU_RECORDS = 32  # of one pass: more no longer fit into the cache, fewer spread the cost of a weighted sum over less
_ROUNDED_RECORDS = 256  # of one pass in bf16 on other devices, where every pass has the same shape


class LayerwiseEngine(Engine):
    """One pass over the records of many groups, see `dpfed.bounding.layer_rules`.

    Layers must treat records apart (`dpfed.models.validation` sees to that) and keep them along the leading dimension.

    In bf16 only the model's two passes round to 8 bits; norms, factors and sums stay as they are in float32. A record must not
    change how others are rounded there, so all passes have one shape, filled up with blank records, and the device is asked
    whether it then treats records alike, wherever they stand and whoever stands beside them
    (`dpfed.bounding.engines.same_rounding`).

    Args:
        model: every trainable parameter is read once, by a function that has a rule.
        precision: of the forward pass.
        loss: of one group; torch.func.vmap must be able to batch it.
        records: at a time, or more where a single group has more. By default few on CPUs, and all elsewhere (in bf16: 256).
        group_size: S, expected records in a group, see `Grouping.typical`.
    """

    name = "layerwise"

    def __init__(
        self,
        model: nn.Module,
        precision: Precision = "fp32",
        loss: GroupLoss = group_loss,
        records: int | None = None,
        group_size: int | None = None,
    ) -> None:
        refuse_mixing(model, "bounding.engine = 'layerwise'")
        super().__init__(model)
        self._loss, self._group_size = LossOfViews(model, precision, loss), group_size
        self._one_shape = precision != "fp32"
        elsewhere = _ROUNDED_RECORDS if self._one_shape else 1 << 30
        self._records = records or (_CPU_RECORDS if self._vector.device.type == "cpu" else elsewhere)
        self._lanes = Lanes(model, self._vector)
        self._is_checked = False

    def add_clipped(
        self, batch: GroupBatch, clip_norm: float | Clip, into: Tensor, losses: list[Tensor] | None = None
    ) -> Tensor:
        """See `Engine`.

        Raises:
            Unsupported: if a layer uses a trainable parameter in a way that no rule covers, or uses it twice.
            UserError: in bf16, if records change how others are rounded.
        """
        with parametrize.cached():
            reading = Reading.of(self._loss, self._vector, self._sources())
            lanes = self._lanes.count
            if not self._is_checked:
                check_rows(self._loss, batch.views, reading.sources, self._vector.device)
                if self._one_shape:
                    self._check_rounding(batch.views, reading)
                self._is_checked = True
            chunks = _full_chunks(batch, self._records) if self._one_shape else chunks_of(batch, self._records, lanes)
            found = self._lanes.add(lambda k, part: self._lane(batch, chunks[k::lanes], clip_norm, part, reading), into)
            return shared_out(found, losses)

    def _check_rounding(self, views: Views, reading: Reading) -> None:
        """Refuses a device that rounds a group by who stands beside it, or by where it stands: groups of noise are compared."""
        size = max(2, min(self._group_size or _CPU_RECORDS // 4, self._records // 2))
        sizes = [max(2, size - number % 3) for number in range(self._records // size)]

        def squares(noise: Views, sizes: list[int]) -> Tensor:
            terms, _, _ = self._passed(noise, sizes, reading)
            return torch.stack([term.squares[: len(sizes)] for term in terms])

        require_same_rounding(squares, views, sizes, self._loss.model)

    def _sources(self) -> list[tuple[Tensor, Source]]:
        """What layers read: trainable parameters, and weights with adapters, which are merged once for all passes."""
        number = {id(parameter): index for index, parameter in enumerate(self._vector.parameters)}
        sources: list[tuple[Tensor, Source]] = [(p, Target(i)) for i, p in enumerate(self._vector.parameters)]
        for name, update in adapted(self._loss.model):
            path, _, leaf = name.rpartition(".")
            module = self._loss.model.get_submodule(path)
            adapters = getattr(module.parametrizations, leaf)
            if adapters.original.requires_grad or len(adapters) > 1:
                continue  # then the recorder will see it being computed, and refuse
            with torch.no_grad():
                merged = getattr(module, leaf)
            up, down = (Target(number[id(factor)]) for factor in (update.up, update.down))
            sources.append((merged, AdaptedWeight(update, up, down)))
        return sources

    def _lane(
        self, batch: GroupBatch, chunks: list[list[int]], clip_norm: float | Clip, into: Tensor, reading: Reading
    ) -> Tensor:
        """Adds a lane's groups; returns ``(3, g)``: norms, losses and numbers of records."""
        one_pass = torch.zeros_like(into, dtype=torch.float32)  # long sums would lose digits in float32
        parts = self._vector.split(one_pass)
        figures = [into.new_zeros(3, 0, dtype=self._exact)]
        for groups in chunks:
            some = batch.only(groups)
            terms, losses, blanks = self._passed(some.views, some.sizes, reading)
            norms = _add_weighted(terms, clip_norm, parts, blanks)
            figures.append(torch.stack([norms, losses.to(norms), norms.new_tensor(some.sizes)]))
            foreach.add_([into], [one_pass])
            one_pass.zero_()
        return torch.cat(figures, dim=1)

    def _passed(self, views: Views, sizes: list[int], reading: Reading) -> tuple[list[Term], Tensor, int]:
        """One pass over groups: terms of them and of the blank groups behind them, losses ``(G,)``, and how many are blank."""
        blanks: list[int] = []
        if self._one_shape:
            missing = -sum(sizes) % self._records
            blanks = [min(max(sizes), missing - seen) for seen in range(0, missing, max(sizes))]
            views = {name: torch.cat([view, view.new_zeros(missing, *view.shape[1:])]) for name, view in views.items()}
        grouping = Grouping(sizes + blanks, self._vector.device, self._exact, self._group_size)
        terms, losses = terms_of(self._loss, views, grouping, reading)
        return terms, losses[: len(sizes)], len(blanks)


def _full_chunks(batch: GroupBatch, records: int) -> list[list[int]]:
    """Groups of at least two records in passes of at most so many records; a larger group has a pass of its own."""
    chunks: list[list[int]] = []
    room = 0
    for g in batch.by_size():
        if batch.sizes[g] > room:
            chunks.append([])
            room = records
        chunks[-1].append(g)
        room -= batch.sizes[g]
    return chunks


@torch.no_grad()
def _add_weighted(terms: list[Term], clip_norm: float | Clip, parts: list[Tensor], blanks: int = 0) -> Tensor:
    """Adds every group's clipped gradient but those of the last, blank ones; returns the ``(G,)`` norms before clipping."""
    norms, factors = clipped(terms, clip_norm, blanks)
    for term in terms:
        term.add_weighted(factors, term.target.of(parts))
    return norms
