"""A sum that knows how far one record can move it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from dpfed.errors import UserError


@dataclass(frozen=True)
class BoundedSum:
    """Sum of clipped gradients over one or more owners' groups.

    Attributes:
        values: ``(P,)`` flat over the trainable parameters; with `dpfed.privacy.group_statistics`, these come behind. int64
            before the noise: steps of the plan's grid (`dpfed.privacy.sum_grid`). float32 with noise, and without privacy.
        sensitivity: largest L2 change when one record is added or removed.
        groups: public number of groups summed over, empty ones included.
        noise_std: standard deviation of the Gaussian noise that the owners added to it already; 0: none.
        unit: what 1 stands for.
    """

    values: Tensor
    sensitivity: float
    groups: int
    noise_std: float = 0.0
    unit: float = 1.0

    def __add__(self, other: BoundedSum) -> BoundedSum:
        """Adds another owner's sum. A record has one owner, so the sensitivity is the larger one, not the total."""
        if self.values.shape != other.values.shape:
            raise UserError(
                f"cannot add sums over {self.values.numel():,} and {other.values.numel():,} parameters: the owners hold "
                "different models. [bounding-other-models]"
            )
        if math.isnan(self.sensitivity) or math.isnan(other.sensitivity):  # `max` would drop one of them
            raise UserError("cannot add a sum without a sensitivity: its owner ignores the plan. [bounding-sensitivity]")
        if self.unit != other.unit or self.values.dtype != other.values.dtype:
            raise UserError("cannot add sums on different grids: the owners have different plans. [bounding-other-grids]")
        return BoundedSum(
            self.values + other.values,
            max(self.sensitivity, other.sensitivity),
            self.groups + other.groups,
            math.hypot(self.noise_std, other.noise_std),
            self.unit,
        )

    def numbers(self) -> Tensor:
        """``(P,)`` float64: what the values stand for."""
        return self.values.double() * self.unit
