"""Sums of clipped gradients together with their sensitivity."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from dpfed.errors import UserError


@dataclass(frozen=True)
class BoundedSum:
    """Sum of clipped gradients over the groups of one or more workers: processes of a cluster, or clients of a federation.

    Attributes:
        values: Flat vector ``(P,)`` over the trainable parameters; ``(P + m,)`` if the plan releases m statistics of the groups
            (`dpfed.privacy.group_statistics`), which are then at the end. The values are int64 and count grid steps
            (`dpfed.privacy.sum_grid`). They are float32 if sites have already added noise, or if the run has no privacy.
        sensitivity: Largest L2 change of the sum when one record (or unit) is added or removed.
        groups: Public number of groups whose gradients are in the sum, empty groups included.
        noise_std: Standard deviation of the noise that the workers (or sites) have already added; 0 if they added none.
        unit: Size of one grid step: the sum that this object represents is `values` times `unit`.
    """

    values: Tensor
    sensitivity: float
    groups: int
    noise_std: float = 0.0
    unit: float = 1.0

    def __add__(self, other: BoundedSum) -> BoundedSum:
        """Returns the sum of this sum and another worker's.

        Only one worker has a given record, so the sensitivity of the result is the larger of the two sensitivities, not their
        total.

        Raises:
            UserError: If the two vectors differ in length, dtype or grid, or if a sensitivity is NaN.
        """
        if self.values.shape != other.values.shape:
            raise UserError(
                f"cannot add sums of {self.values.numel():,} and {other.values.numel():,} numbers: the workers (or sites) have "
                "different models or plans. Start all of them with the same configuration (sites: the same terms of the "
                "federation). [bounding-other-models]"
            )
        if math.isnan(self.sensitivity) or math.isnan(other.sensitivity):  # `max` would drop one of them
            raise UserError(
                "cannot add a sum whose sensitivity is not a number: its worker (or site) does not follow the plan. Start all "
                "of them with the same configuration (sites: the same terms of the federation). [bounding-sensitivity]"
            )
        if self.unit != other.unit or self.values.dtype != other.values.dtype:
            raise UserError(
                "cannot add sums on different grids: the workers (or sites) have different plans. Start all of them with the "
                "same configuration (sites: the same terms of the federation). [bounding-other-grids]"
            )
        return BoundedSum(
            self.values + other.values,
            max(self.sensitivity, other.sensitivity),
            self.groups + other.groups,
            math.hypot(self.noise_std, other.noise_std),
            self.unit,
        )

    def numbers(self) -> Tensor:
        """Returns the sum as float64 numbers, in the shape of `values`: the values times the unit."""
        return self.values.double() * self.unit
