"""Many groups in one forward and one backward pass; every layer gives the groups' norms and one weighted sum.

The field calls it ghost clipping, and the use of one backward pass for norms and sum book-keeping (Bu et al. 2023).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.utils import parametrize

from dpfed.bounding import foreach
from dpfed.bounding.bounded_sum import Clip, clip_factors
from dpfed.bounding.engines.engine import Engine, GroupBatch, LossOfViews, Precision, Views, shared_out
from dpfed.bounding.engines.lanes import Lanes
from dpfed.bounding.engines.same_rounding import require_same_rounding
from dpfed.bounding.layer_rules.grouping import Grouping
from dpfed.bounding.layer_rules.lora import AdaptedWeight
from dpfed.bounding.layer_rules.recorder import Recorder, Source
from dpfed.bounding.layer_rules.refusal import Unsupported
from dpfed.bounding.layer_rules.term import Materialised, Target, Term
from dpfed.models.lora import adapted
from dpfed.models.norm import refuse_mixing
from dpfed.models.parameters import TrainableVector
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
            reading = _Reading(self._sources(), [_Scalar(self._vector, scalar) for scalar in self._loss.scalars()])
            lanes = self._lanes.count
            if not self._is_checked:
                self._check_rows(batch.views, reading.sources)
                if self._one_shape:
                    self._check_rounding(batch.views, reading)
                self._is_checked = True
            chunks = _full_chunks(batch, self._records) if self._one_shape else _chunks(batch, self._records, lanes)
            found = self._lanes.add(lambda k, part: self._lane(batch, chunks[k::lanes], clip_norm, part, reading), into)
            return shared_out(found, losses)

    def _check_rows(self, views: Views, sources: list[tuple[Tensor, Source]]) -> None:
        """Refuses layers that have no rows of records: a table may have as many rows as there are records by chance.

        Such a layer has as many rows for two records as for one. The records are blank.
        """
        rows: list[list[int]] = []
        device = self._vector.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            for records in (1, 2):
                with Recorder(sources, Grouping([records], device, self._exact)) as recorder:
                    self._loss.embed({name: view.new_zeros(records, *view.shape[1:]) for name, view in views.items()})
                rows.append(recorder.rows)
        if rows[1] != [2 * number for number in rows[0]]:
            raise Unsupported("a layer does not have its records in the first dimension")

    def _check_rounding(self, views: Views, reading: _Reading) -> None:
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
        self, batch: GroupBatch, chunks: list[list[int]], clip_norm: float | Clip, into: Tensor, reading: _Reading
    ) -> Tensor:
        """Adds a lane's groups; returns ``(3, g)``: norms, losses and numbers of records."""
        one_pass = torch.zeros_like(into, dtype=torch.float32)  # long sums would lose digits in float32
        parts = self._vector.split(one_pass)
        figures = [into.new_zeros(3, 0, dtype=self._exact)]
        for groups in chunks:
            ranges = [(batch.starts[g], batch.starts[g + 1]) for g in groups]
            rows = torch.cat([torch.arange(first, end) for first, end in ranges]).to(into.device)
            sizes = [end - first for first, end in ranges]
            terms, losses, blanks = self._passed({name: view[rows] for name, view in batch.views.items()}, sizes, reading)
            norms = _add_weighted(terms, clip_norm, parts, blanks)
            figures.append(torch.stack([norms, losses.to(norms), norms.new_tensor(sizes)]))
            foreach.add_([into], [one_pass])
            one_pass.zero_()
        return torch.cat(figures, dim=1)

    def _passed(self, views: Views, sizes: list[int], reading: _Reading) -> tuple[list[Term], Tensor, int]:
        """One pass over groups: terms of them and of the blank groups behind them, losses ``(G,)``, and how many are blank."""
        blanks: list[int] = []
        if self._one_shape:
            missing = -sum(sizes) % self._records
            blanks = [min(max(sizes), missing - seen) for seen in range(0, missing, max(sizes))]
            views = {name: torch.cat([view, view.new_zeros(missing, *view.shape[1:])]) for name, view in views.items()}
        grouping = Grouping(sizes + blanks, self._vector.device, self._exact, self._group_size)
        terms, losses = self._terms(views, grouping, reading)
        return terms, losses[: len(sizes)], len(blanks)

    def _terms(self, views: Views, grouping: Grouping, reading: _Reading) -> tuple[list[Term], Tensor]:
        """One forward and one backward pass; returns the groups' losses ``(G,)`` beside the terms."""
        with Recorder(reading.sources, grouping) as recorder:
            embeddings = self._loss.embed(views)
        by_group = {name: z[grouping.slots] for name, z in embeddings.items()}
        scalars = [scalar.of_groups(grouping.count) for scalar in reading.scalars]
        temperature, bias = scalars
        assert temperature is not None  # only the bias may be missing
        in_dims = (0, 0, *(None if scalar is None else 0 for scalar in scalars))
        losses = vmap(self._loss.of, in_dims)(by_group, grouping.present, temperature, bias)
        losses.sum().backward()
        terms = list(recorder.terms)
        for scalar, values in zip(reading.scalars, scalars, strict=True):
            terms.extend(scalar.terms(values, grouping))
        _check_once(terms, self._vector.names)
        return terms, losses.detach()


class _Scalar:
    """Temperature or bias: a function of parameters, of which every group gets a copy of its own."""

    def __init__(self, vector: TrainableVector, value: Tensor | None) -> None:
        self._value = None if value is None else value.detach()
        self._slopes: list[tuple[Target, Tensor]] = []
        if value is not None and value.requires_grad:
            slopes = torch.autograd.grad(value, vector.parameters, allow_unused=True)
            self._slopes = [(Target(i), slope) for i, slope in enumerate(slopes) if slope is not None]

    def of_groups(self, count: int) -> Tensor | None:
        """``(G,)`` copies."""
        return None if self._value is None else self._value.repeat(count).requires_grad_(bool(self._slopes))

    def terms(self, values: Tensor | None, grouping: Grouping) -> list[Term]:
        """Of the parameters that it comes from, once the copies have their gradients."""
        if values is None or values.grad is None:
            return []
        return [
            Materialised(target, values.grad.view(-1, *[1] * slope.dim()) * slope, grouping) for target, slope in self._slopes
        ]


@dataclass(frozen=True)
class _Reading:
    """What all passes of a step read alike."""

    sources: list[tuple[Tensor, Source]]
    scalars: list[_Scalar]


def _chunks(batch: GroupBatch, records: int, lanes: int) -> list[list[int]]:
    """Groups of at least two records in passes of about so many records.

    Alike sizes share a pass, so that little is padded; every lane gets as many passes.
    """
    sizes, order = batch.sizes, batch.by_size()
    passes = -(-sum(sizes[g] for g in order) // (records * lanes)) * lanes
    share = sum(sizes[g] for g in order) / max(1, passes)
    chunks: list[list[int]] = []
    seen = 0
    for g in order:
        if not chunks or seen >= share * len(chunks):
            chunks.append([])
        chunks[-1].append(g)
        seen += sizes[g]
    return chunks


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


def _check_once(terms: list[Term], names: list[str]) -> None:
    """Raises `Unsupported` unless each parameter has one term, or one for each of its parts."""
    seen = {(term.target.parameter, term.target.part) for term in terms}
    if len(seen) < len(terms):
        raise Unsupported("a layer is used more than once")
    if missing := set(range(len(names))) - {parameter for parameter, _ in seen}:
        raise Unsupported(f"'{names[min(missing)]}' takes no part in the loss")


@torch.no_grad()
def _add_weighted(terms: list[Term], clip_norm: float | Clip, parts: list[Tensor], blanks: int = 0) -> Tensor:
    """Adds every group's clipped gradient but those of the last, blank ones; returns the ``(G,)`` norms before clipping."""
    squares = torch.stack([term.squares for term in terms]).sum(0)
    slack = sum(term.slack for term in terms)
    factors = clip_factors((squares + slack).sqrt(), clip_norm).float()
    counted = len(factors) - blanks
    factors[counted:] = 0.0
    if not (factors > 0).all():  # 0 * inf is not 0: leave the gradients out altogether
        for term in terms:
            term.drop(factors == 0)
    for term in terms:
        term.add_weighted(factors, term.target.of(parts))
    return squares[:counted].sqrt()
