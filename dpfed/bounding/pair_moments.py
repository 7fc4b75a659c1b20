"""Computes each record's contribution to the two sums of private moments (proof: `dpfed.bounding.methods.moments`)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dpfed.bounding.clipping import Clip
from dpfed.bounding.engines.engine import Engine, GroupBatch
from dpfed.models.basis import Basis, Side
from dpfed.models.moments import MomentHeads, bridges
from dpfed.privacy.plan import PrivacyPlan

_SHORTEST = 1e-4  # vectors of a smaller norm are not normalised to unit length: rounding would decide their direction
# Shortens a vector by more than rounding to 2^-25 and in float64 may have lengthened it, for up to 65,536 entries.
_SHORTENED = 1 - 2.0**-18
_EXACT = 52  # binary digits that float64 adds up without rounding, less one
_PRODUCT = _EXACT // 2  # binary digits of each of two unit vectors, so that their product is exact
_UNIT = 25  # binary digits of a unit vector, so that the sum of its squares is exact


@dataclass(frozen=True)
class _Vectors:
    """One tower's vectors for n records. Entries are integers in float64, so all their products and sums are exact.

    V is the number of views or captions of a record, and k the number of dimensions. g is the number of binary digits of a
    vector, `layout.bits`.

    Attributes:
        views: Vectors of each view or caption, ``(n, V, k)``, each with a norm of at most 2^g / sqrt(V).
        means: Average of each record's vectors, ``(n, k)``, with a norm of at most 2^g.
    """

    views: Tensor
    means: Tensor

    def auto(self) -> Tensor:
        """Returns the sum of the outer products of all views with themselves, ``(k, k)``."""
        flat = self.views.flatten(0, 1)
        return flat.T @ flat


@dataclass(frozen=True)
class _Map:
    """Map of a tower's features: it subtracts a public centre and applies a public matrix.

    The features are scaled to unit length first.

    Centre and matrix are stored as integers, as multiples of a small step, so that sums are exact. F is the number of features,
    k the number of dimensions.

    Attributes:
        matrix: Public matrix ``(k, F)`` float64, in steps of 1 / `fine`; its largest singular value is at most `fine`.
        origin: Public centre ``(F,)`` float64, in steps of 1 / `steps`; ``None``: no centre is subtracted.
        steps: Number of steps in a unit of length of the features. The norm of features minus the centre is at most 2^26 steps.
        fine: Number of steps in a unit of the matrix's entries. Products with the matrix are exact.
    """

    matrix: Tensor
    origin: Tensor | None
    steps: float
    fine: float


class MomentsEngine(Engine):
    """Engine of private moments: it adds up the records' contributions, to the means in step 0 and to the moments in step 1.

    The views of a batch are not images or texts, but features of frozen towers, F numbers for an image and F_t for a text:
    ``{"image": (n, V, F)[, "text": (n, W, F_t)]}``.

    Args:
        model: Model with `MomentHeads`.
        plan: Plan of the private run.

    Raises:
        ValueError: If the model's heads and the plan divide 1 / sigma^2 differently between the two steps; or if a linear map
            lies between a tower and its head, and the head's basis has a centre.
    """

    name = "moments"

    def __init__(self, model: nn.Module, plan: PrivacyPlan) -> None:
        super().__init__(model)
        heads = getattr(model, "moments", None)
        assert isinstance(heads, MomentHeads)  # `dpfed.runs.build` gave them
        self._heads, self._layout = heads, heads.layout
        if self._layout.shares != plan.mechanism.shares:
            raise ValueError(
                f"expected heads that divide 1 / sigma^2 between the two steps by the plan's fractions, "
                f"{plan.mechanism.shares}, got {self._layout.shares}"
            )
        self._maps = {side: _map_of(bridge, heads.basis(side)) for side, bridge in bridges(model).items()}

    def add_clipped(
        self, batch: GroupBatch, clip_norm: float | Clip, into: Tensor, losses: list[Tensor] | None = None
    ) -> Tensor:
        """Adds the contribution of every record or unit to the sum of a step: to the means in step 0, to the moments in step 1.

        Args:
            batch: Records as groups: a group is one record, or the records of one unit, whose contributions are averaged.
            clip_norm: Largest norm of a record's contributions to both sums together. If the sum has integers, it is the
                layout's `radius`, in grid steps.
            into: Flat vector ``(P,)`` of all moments, see `Engine.add_clipped`; only the slice of the step is changed.
            losses: Not used: there are no losses.

        Returns:
            An empty tensor: no norms are computed.

        Raises:
            ValueError: If `into` has integers, and `clip_norm` is not the radius of the heads' layout; or if the model has only
                an image tower, and an image has another number of views than in that layout.
        """
        bound = Clip.of(clip_norm).bound
        sizes = torch.tensor(batch.sizes, device=into.device)
        shares = (1 / sizes.double()).repeat_interleave(sizes)[:, None]
        if not into.is_floating_point() and bound != self._layout.radius:
            raise ValueError(
                f"expected a clip norm of {self._layout.radius:g} grid steps, the radius of the heads' layout, got {bound:g}"
            )
        views = max(view.shape[1] for view in batch.views.values())
        if self._layout.towers == 1 and views != self._layout.views:
            raise ValueError(f"expected {self._layout.views} views of an image, as in the heads' layout, got {views}")
        exact = max(1, (1 << _EXACT - 2 * self._layout.bits) // views)  # number of records whose products have an exact sum
        for rows in torch.arange(len(shares), device=into.device).split(exact):
            sides = {side: self._unit(self._maps[side], batch.views[side][rows]) for side in self._maps}
            added = self._layout.whole(batch.step, *self._sums(batch.step, sides, shares[rows]))
            into[self._layout.place(batch.step)] += added * (bound / self._layout.radius) if into.is_floating_point() else added
        return torch.zeros(0, dtype=self._exact, device=into.device)

    def _sums(self, step: int, sides: dict[Side, Tensor], shares: Tensor) -> tuple[Tensor, ...]:
        """Returns sums over the given records: of their means in step 0, of products of their vectors in step 1.

        Step 1 has two kinds of products. The first are products of image with text or, without text, of two different views.
        The second are products of each tower's vectors with themselves.
        """
        if step == 0:
            return (torch.stack([self._vectors(unit, shares, shares).means.sum(0) for unit in sides.values()]),)
        centred = (self._centred(side, unit) for side, unit in sides.items())
        first, *others = (self._vectors(unit, shares.sqrt(), shares.sqrt()) for unit in centred)
        autos = torch.stack([vectors.auto() for vectors in (first, *others)])
        if others:
            return first.means.T @ others[0].means, autos
        every = first.views.sum(1)  # products of two different views: all products, less those of each view with itself
        return every.T @ every - autos[0], autos

    def _vectors(self, unit: Tensor, of_means: Tensor, of_views: Tensor) -> _Vectors:
        """Converts unit vectors ``(n, V, k)`` to integers, scaled for each record by `of_means` and `of_views`, ``(n, 1)``."""
        steps, views = 2.0**self._layout.bits * _SHORTENED, unit.shape[1]
        total = (unit * 2.0**_UNIT).round().sum(1)
        means = (total * (of_means * (steps / (views * 2.0**_UNIT)))).trunc()
        if views == 1:
            return _Vectors(means[:, None], means)
        return _Vectors((unit * (of_views * (steps / math.sqrt(views)))[:, None]).trunc(), means)

    def _unit(self, tower: _Map, features: Tensor) -> Tensor:
        """Maps features to vectors of unit length, ``(n, V, k)`` float64.

        Features that are zero or not finite give the vector 0.

        All sums are sums of integers, so a record's vector has the same bits whichever records are computed beside it.
        """
        raw = features.double()  # in float64, squares of float32 numbers are finite
        raw = torch.where(raw.isfinite().all(-1, keepdim=True), raw, 0.0)
        largest = raw.abs().amax(-1, keepdim=True)
        raw = raw / torch.where(largest > 0, largest, 1.0)
        digits = 2.0 ** ((_EXACT - math.ceil(math.log2(raw.shape[-1]))) // 2)
        whole = (_of_length_one((raw * digits).round(), 1.0) * tower.steps).round()
        if tower.origin is not None:
            whole = torch.where(largest > 0, whole - tower.origin, 0.0)
        projected = whole @ tower.matrix.T
        return _of_length_one((projected * (2.0**_UNIT / (tower.steps * tower.fine))).round(), _SHORTEST * 2.0**_UNIT)

    def _centred(self, side: Side, unit: Tensor) -> Tensor:
        """Subtracts the released centre from unit vectors ``(n, V, k)``, and normalises the differences; a vector 0 stays 0."""
        centre = self._heads.centre(side).to(unit)
        steps = 2.0 ** math.floor(_PRODUCT - math.log2(1 + centre.norm().item()))
        moved = (unit * steps).round() - (centre * steps).round()
        return _of_length_one(torch.where((unit == 0).all(-1, keepdim=True), 0.0, moved), _SHORTEST * steps)


def _of_length_one(whole: Tensor, least: float) -> Tensor:
    """Divides integer vectors by their norms, or by `least` if that is larger; squares must add up to less than 2^53."""
    return whole / whole.square().sum(-1, keepdim=True).sqrt().clamp(min=least)


def _map_of(bridge: nn.Module, basis: Basis) -> _Map:
    """Builds the map from a tower's features to vectors in the public basis, which `_unit` then normalises.

    Raises:
        ValueError: If the basis has a centre, and `bridge` is a linear layer: a centre is subtracted from the tower's own
            features, and not from what a linear layer makes of them.
    """
    matrix, origin, steps, fine = basis.rows.double(), None, 2.0**_PRODUCT, 2.0**_PRODUCT
    if isinstance(bridge, nn.Linear):
        if basis.centre is not None:
            raise ValueError(
                "expected a basis without a centre, because a linear layer comes between the tower and the basis: a centre "
                "is subtracted from the tower's features, so none can be subtracted from what the linear layer returns"
            )
        matrix = matrix @ bridge.weight.double()
    if basis.centre is not None:
        centre = basis.centre.double()
        steps = 2.0 ** math.floor(_PRODUCT - math.log2(1 + centre.norm().item()))
        origin = (centre * steps).round()
    longest = torch.linalg.matrix_norm(matrix.cpu(), 2).item()
    return _Map((matrix * (fine * _SHORTENED / longest)).round(), origin, steps, fine)
