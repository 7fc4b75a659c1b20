"""Sums of clipped gradients together with their sensitivity."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from dpfed.errors import UserError


@dataclass(frozen=True)
class BoundedSum:
    """Sum of clipped gradients over one or more owners' groups.

    Attributes:
        values: Flat vector ``(P,)`` over the trainable parameters, followed by the entries of `dpfed.privacy.group_statistics`,
            if the plan releases these statistics. Before the noise, the values are int64 and count grid steps
            (`dpfed.privacy.sum_grid`). With noise, and in runs without privacy, they are float32.
        sensitivity: Largest L2 change of the sum when one record (or unit) is added or removed.
        groups: Public number of groups summed over, empty ones included.
        noise_std: Standard deviation of the Gaussian noise that the owners have already added; 0 if they added none.
        unit: Size of one grid step: the sum that this object represents is `values` times `unit`.
    """

    values: Tensor
    sensitivity: float
    groups: int
    noise_std: float = 0.0
    unit: float = 1.0

    def __add__(self, other: BoundedSum) -> BoundedSum:
        """Returns the sum of this sum and another owner's.

        A record has one owner, so the sensitivity of the result is the larger of the two sensitivities, not their total.
        """
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
        """Returns the sum as float64 numbers ``(P,)``: the values times the unit."""
        return self.values.double() * self.unit
