"""The engine of private moments: what each record adds to the two sums (`dpfed.bounding.methods.moments` has the proof)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dpfed.bounding.clipping import Clip
from dpfed.bounding.engines.engine import Engine, GroupBatch
from dpfed.models.moment_layout import Moments
from dpfed.models.moments import MomentHeads, Side, bridges
from dpfed.privacy.plan import PrivacyPlan

_SHORTEST = 1e-4  # shorter vectors are not brought to unit length: rounding would decide where they point
# Of a record's part, what rounding in float64 may move it by, between two neighbours: 2^-53 times a few hundred operations, and
# twice the slope of what follows a projection.
_ROUNDED = 1e-11
_EXACT = 2.0**-53


@dataclass(frozen=True)
class _Vectors:
    """Unit vectors of a tower.

    Attributes:
        all: ``(n, V, k)`` of every view, or caption.
        means: ``(n, k)`` over these.
    """

    all: Tensor
    means: Tensor

    @classmethod
    def of(cls, vectors: Tensor) -> _Vectors:
        return cls(vectors, vectors.mean(1))

    def auto(self, weights: Tensor) -> Tensor:
        """``(k, k)`` the weighted sum over records of the mean product of a view with itself."""
        views = self.all.shape[1]
        flat = self.all.flatten(0, 1)
        return (flat * (weights / views).repeat_interleave(views)[:, None]).T @ flat


class MomentsEngine(Engine):
    """Adds up records' parts: of the means in step 0, of the moments in step 1.

    Its views are features of frozen towers: ``{"image": (n, V, F)[, "text": (n, W, F_t)]}``.

    Args:
        model: with `MomentHeads`.
        plan: what is promised.
    """

    name = "moments"

    def __init__(self, model: nn.Module, plan: PrivacyPlan) -> None:
        super().__init__(model)
        heads = getattr(model, "moments", None)
        assert isinstance(heads, MomentHeads)  # `dpfed.runs.assembly` gave them
        self._heads, self._layout, self._plan = heads, heads.layout, plan
        self._maps = {side: _map_of(bridge, heads.projection(side)) for side, bridge in bridges(model).items()}
        # A sum of N parts errs by up to N^2 / 2 roundings of one of them, in each of two neighbours.
        self._room = 1 + plan.sampling.records * _ROUNDED + plan.sampling.records**2 * _EXACT

    def add_clipped(
        self, batch: GroupBatch, clip_norm: float | Clip, into: Tensor, losses: list[Tensor] | None = None
    ) -> Tensor:
        """See `Engine.add_clipped`: adds every group's part; a group is a record, or a unit whose records are averaged."""
        assert isinstance(clip_norm, float)
        sizes = torch.tensor(batch.sizes, device=into.device)
        weights = (1 / sizes.double()).repeat_interleave(sizes)
        sides = [self._unit(side, batch.views[side]) for side in self._maps]
        if batch.step == 0:
            means = torch.stack([weights @ side.mean(1) for side in sides])
            moments = Moments(means, *[means.new_zeros(0)] * 2)
        else:
            vectors = [_Vectors.of(self._centred(side, own)) for side, own in zip(self._maps, sides, strict=True)]
            autos = torch.stack([own.auto(weights) for own in vectors])
            moments = Moments(autos.new_zeros(0), self._cross(vectors, weights, autos), autos)
        share = self._plan.mechanism.shares[batch.step] ** 0.5
        scale = clip_norm * self._plan.sensitivity_of(batch.step) / share / self._room
        into[self._layout.place(batch.step)] += scale * self._layout.encoded(batch.step, moments)
        return into.new_zeros(0)

    def _cross(self, vectors: list[_Vectors], weights: Tensor, autos: Tensor) -> Tensor:
        """``(k, k)`` the weighted sum of the mean product of an image with a text, or of one view with another."""
        first, last = vectors[0], vectors[-1]
        products = (first.means * weights[:, None]).T @ last.means
        if len(vectors) == 2:
            return products
        views = first.all.shape[1]
        return (views * products - autos[0]) / (views - 1)

    def _unit(self, side: Side, features: Tensor) -> Tensor:
        """Projected features of unit length ``(n, V, k)`` float64; 0 for those that are not finite or zero."""
        raw = features.double()  # squares of what was a float32 are finite now
        raw = torch.where(raw.isfinite().all(-1, keepdim=True), raw, 0.0)
        matrix, most = self._maps[side]
        projected, least = raw @ matrix.T, _SHORTEST * most * raw.norm(dim=-1, keepdim=True)
        return projected / torch.maximum(projected.norm(dim=-1, keepdim=True), torch.where(least > 0, least, 1.0))

    def _centred(self, side: Side, unit: Tensor) -> Tensor:
        """``(n, V, k)``: without the released centre, and of unit length again; 0 stays 0."""
        moved = unit - self._heads.centre(side).to(unit)
        moved = torch.where((unit == 0).all(-1, keepdim=True), 0.0, moved)
        return moved / moved.norm(dim=-1, keepdim=True).clamp(min=_SHORTEST)


def _map_of(bridge: nn.Module, projection: Tensor) -> tuple[Tensor, float]:
    """What a tower's features are multiplied by, ``(k, F)`` float64, and the most that it lengthens a vector."""
    matrix = projection.double()
    if isinstance(bridge, nn.Linear):
        matrix = matrix @ bridge.weight.double()
    return matrix, torch.linalg.matrix_norm(matrix.cpu(), 2).item()
