"""Engines that contrast the whole batch and clip smaller parts of its gradient: each similarity's, or each record's.

Both engines reweight the similarities of the batch, one direction of the loss (`Contrast`) after the other, and then apply the
weights to the Jacobians of the embeddings. They compute the norms of the gradients to clip, and not these gradients themselves.
Each embedding and each Jacobian is computed from one view alone, and everything after them in float64. So the clipped gradient
of a similarity is a function of its two views alone, except for rounding far below C. Shapes: n records, R embedding rows, D
dimensions, m candidates of a record.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor, nn

from dpfed.baselines.whole_batch.jacobian_norms import (
    Contrast,
    ExactNorms,
    NormBounds,
    Norms,
    contrastive_derivatives,
    contrasts,
    spread_out_derivatives,
)
from dpfed.baselines.whole_batch.jacobians import Jacobians
from dpfed.bounding.clipping import Clip, clip_factors
from dpfed.bounding.engines import Engine, GroupBatch, Views
from dpfed.bounding.engines.gradient_cache import refuse_random
from dpfed.errors import UserError
from dpfed.models.contract import method_of, temperature_of

WhichNorms = Literal["auto", "exact", "bound"]
_MOST_MEMORY = 1 << 31  # exact norms are chosen up to this many bytes of factors of Jacobians
_MOST_WORK = 1e10  # exact norms are chosen up to this many pairs times parameters: about half a minute on two cores
_SUM_WORKSPACE = 1 << 24  # floats of the cotangents that are held at a time


class _PairEngine(Engine):
    """Base class of `LogitEngine` and `SampleEngine`. They hold no single clipped gradient, so they round only the whole sum.

    Args:
        model: Model with towers ``embed_images`` and, for records with text, ``embed_text``; its temperature is fixed.
        max_batch: Largest number of records in a batch. It is public, so the choice of norms depends on no record.
        norms: Norms to clip by: ``exact`` norms, upper bounds (``bound``), or ``auto``. With ``auto``, norms are exact if the
            towers share no trained parameter, and a full batch needs at most 2 GiB for factors, and its number of pairs times
            the number of parameters is at most 10^10.
    """

    adds_whole_parts = False

    def __init__(self, model: nn.Module, max_batch: int, norms: WhichNorms = "auto") -> None:
        super().__init__(model)
        refuse_random(model)
        self._model, self._max_batch, self._asked = model, max_batch, norms
        self._temperature = float(temperature_of(model))
        self._towers: dict[str, Jacobians] = {}
        self.norms = norms

    def add_clipped(
        self, batch: GroupBatch, clip_norm: float | Clip, into: Tensor, losses: list[Tensor] | None = None
    ) -> Tensor:
        """Adds the clipped gradients of a batch, which is one group; see `Engine.add_clipped`.

        Records whose embeddings or Jacobians are not finite are left out. If fewer than two records remain, nothing is added.

        Returns:
            Norms before clipping, or upper bounds of them, of all gradients that are clipped; private. If nothing is added, the
            tensor is empty.

        Raises:
            UserError: If exact norms are configured, and the towers share a parameter.
        """
        views = batch.views
        if len(views["image"]) < 2:
            return into.new_zeros(0, dtype=torch.float64)
        if not self._towers:
            self._prepare(views)
        rows, jacobian_norms = self._jacobians(views)
        finite = self._finite_records(views, rows, jacobian_norms)
        if not finite.all():
            # A record without finite derivatives counts as not drawn; this depends on the record alone. If it stayed, it would
            # spoil the sum of all others.
            kept = {name: view[finite] for name, view in views.items()}
            return self.add_clipped(GroupBatch(kept, [0, int(finite.sum())]), clip_norm, into)
        shape = {name: (view.shape[0], view.shape[1]) for name, view in views.items() if name in self._towers}
        cotangents, norms = self._clipped(rows, contrasts(shape, rows.device), jacobian_norms, clip_norm)
        parts = {f"model.{name}": part for name, part in zip(self._vector.names, self._vector.split(into), strict=True)}
        for name, rows_of_tower in _parts(views, self._towers).items():
            self._towers[name].pull_back(views[name].flatten(0, 1), cotangents[rows_of_tower], parts)
        return norms

    @abstractmethod
    def _clipped(
        self, rows: Tensor, directions: list[Contrast], norms: Norms, clip_norm: float | Clip
    ) -> tuple[Tensor, Tensor]:
        """Computes the derivatives ``(R, D)`` of the clipped sum with respect to the embeddings, and norms before clipping."""

    def _prepare(self, views: Views) -> None:
        """Inspects the model's layers, and chooses the norms."""
        embed = {"image": method_of(self._model, "embed_images")}
        if "text" in views:
            embed["text"] = method_of(self._model, "embed_text")
        for name, tower in embed.items():
            probe = views[name][:1, 0]
            probe = torch.randn_like(probe) if probe.is_floating_point() else torch.ones_like(probe)
            self._towers[name] = Jacobians(self._model, tower, probe)
        names = [name for tower in self._towers.values() for name in tower.names]
        self._disjoint = len(set(names)) == len(names)
        counts = {name: self._max_batch * views[name].shape[1] for name in self._towers}
        memory = sum(4 * counts[name] * tower.floats_per_row for name, tower in self._towers.items())
        pairs = self._max_batch * max(counts.values())
        work = 2 * pairs * sum(tower.parameters for tower in self._towers.values())
        if self._asked == "auto":
            small = self._disjoint and memory <= _MOST_MEMORY and work <= _MOST_WORK
            self.norms = "exact" if small else "bound"
        elif self._asked == "exact" and not self._disjoint:
            raise UserError(
                "bounding.options.norms = 'exact' needs towers that share no trained parameter, but these towers share some: "
                "set it to 'bound' or 'auto'. [baseline-shared-towers]"
            )

    def _jacobians(self, views: Views) -> tuple[Tensor, Norms]:
        parts = _parts(views, self._towers)
        flat = {name: views[name].flatten(0, 1) for name in self._towers}
        if self.norms == "exact":
            every = {name: tower.all(flat[name]) for name, tower in self._towers.items()}
            rows = torch.cat([embeddings for embeddings, _ in every.values()]).double()
            return rows, ExactNorms({name: blocks for name, (_, blocks) in every.items()}, parts, rows.device)
        grams = [tower.grams(flat[name]) for name, tower in self._towers.items()]
        rows = torch.cat([embeddings for embeddings, _ in grams]).double()
        return rows, NormBounds(torch.cat([gram for _, gram in grams]), parts, self._disjoint)

    def _finite_records(self, views: Views, rows: Tensor, norms: Norms) -> Tensor:
        finite = torch.isfinite(rows).all(1) & norms.finite
        each = [finite[part].view(views[name].shape[:2]).all(1) for name, part in _parts(views, self._towers).items()]
        return torch.stack(each).all(0)


def _parts(views: Views, towers: dict[str, Jacobians]) -> dict[str, slice]:
    """Returns the embedding rows of each tower, see `dpfed.baselines.whole_batch.jacobian_norms`."""
    parts, start = {}, 0
    for name in towers:
        count = math.prod(views[name].shape[:2])
        parts[name] = slice(start, start + count)
        start += count
    return parts


class LogitEngine(_PairEngine):
    """Clips the gradients of all similarities, and adds them up, weighted by the loss's derivatives (Kong et al., Logit-DP).

    Args:
        model: Model with a method ``embed_images`` and, for records with text, ``embed_text``; its temperature is fixed.
        max_batch: Largest number of records in a batch, public.
        norms: Norms to clip by: ``exact`` norms, upper bounds (``bound``), or ``auto``. With ``auto``, norms are exact if the
            towers share no trained parameter, and exact norms need little memory and work.
        one_sided: Whether the loss has only the direction of the paper, in which the first views (with text, the images) are
            anchors.
        spread_out: Weight of the spread-out regulariser.

    Raises:
        UserError: If the model draws random numbers, or has no trainable parameter or no temperature.
    """

    name = "logit"

    def __init__(
        self, model: nn.Module, max_batch: int, norms: WhichNorms = "auto", one_sided: bool = False, spread_out: float = 0.0
    ) -> None:
        super().__init__(model, max_batch, norms)
        self._one_sided, self._spread_out = one_sided, spread_out

    def _clipped(
        self, rows: Tensor, directions: list[Contrast], norms: Norms, clip_norm: float | Clip
    ) -> tuple[Tensor, Tensor]:
        cotangents, all_norms = torch.zeros_like(rows), list[Tensor]()
        for contrast in directions[:1] if self._one_sided else directions:
            similarities = contrast.similarities(rows)
            weights = contrastive_derivatives(similarities, self._temperature)
            if self._spread_out:
                weights += self._spread_out * spread_out_derivatives(similarities)
            # With one candidate per record, the other direction has the same pairs.
            mirrored = all_norms and similarities.shape[2] == all_norms[0].shape[2] == 1
            pairs = all_norms[0].transpose(0, 1) if mirrored else norms.of_pairs(rows, contrast)
            cotangents += contrast.cotangents(rows, weights * clip_factors(pairs, clip_norm))
            all_norms.append(pairs)
        return cotangents, torch.cat([pairs.flatten() for pairs in all_norms])


class SampleEngine(_PairEngine):
    """Clips the gradient of each record's loss. The loss contrasts this record with the batch both ways (DP-GCL, eq. 6).

    The arguments `model`, `max_batch` and `norms`, and the errors, are those of `LogitEngine`.
    """

    name = "sample"

    def _clipped(
        self, rows: Tensor, directions: list[Contrast], norms: Norms, clip_norm: float | Clip
    ) -> tuple[Tensor, Tensor]:
        weights = [contrastive_derivatives(contrast.similarities(rows), self._temperature) for contrast in directions]
        sums = norms.of_sums(_each_record(rows, directions, weights))
        factors = clip_factors(sums, clip_norm)[:, None, None]
        cotangents = [contrast.cotangents(rows, weight * factors) for contrast, weight in zip(directions, weights, strict=True)]
        return sum(cotangents[1:], cotangents[0]), sums


def _each_record(rows: Tensor, directions: list[Contrast], weights: list[Tensor]) -> Iterator[Tensor]:
    """Yields the derivatives of the records' losses with respect to all embeddings, ``(k, R, D)`` for k records at a time."""
    count = len(weights[0])
    step = max(1, _SUM_WORKSPACE // rows.numel())
    for start in range(0, count, step):
        end = min(start + step, count)
        numbers = torch.arange(end - start, device=rows.device)
        result = rows.new_zeros(end - start, *rows.shape)
        for contrast, weight in zip(directions, weights, strict=True):
            anchors, others, mine = contrast.anchors[start:end], contrast.candidates.reshape(-1), weight[start:end].flatten(1)
            result.index_add_(1, others, mine[:, :, None] * rows[anchors][:, None])
            result[numbers, anchors] += mine @ rows[others]
        yield result
