"""A sum that knows how far one record can move it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dpfed.errors import UserError

# By the type of the norms. A factor and its product are rounded in float32, and so are the gradients of other groups, which may
# change in their last bits with who shares a pass: the slack keeps all of it within 2C. A norm in float32 (mps has nothing
# better) is itself short by up to a part in a thousand.
_SLACK = {torch.float64: 1e-5, torch.float32: 5e-3}


@dataclass(frozen=True)
class BoundedSum:
    """Sum of clipped gradients over one or more owners' groups.

    Attributes:
        values: ``(P,)`` float32, flat over the trainable parameters.
        sensitivity: largest L2 change when one record is added or removed.
        groups: public number of groups summed over, empty ones included.
        noise_std: standard deviation of the Gaussian noise that the owners added to it already; 0: none.
    """

    values: Tensor
    sensitivity: float
    groups: int
    noise_std: float = 0.0

    def __add__(self, other: BoundedSum) -> BoundedSum:
        """Adds another owner's sum. A record has one owner, so the sensitivity is the larger one, not the total."""
        if self.values.shape != other.values.shape:
            raise UserError(
                f"cannot add sums over {self.values.numel():,} and {other.values.numel():,} parameters: the owners hold "
                "different models."
            )
        return BoundedSum(
            self.values + other.values,
            max(self.sensitivity, other.sensitivity),
            self.groups + other.groups,
            math.hypot(self.noise_std, other.noise_std),
        )


def clip_factors(norms: Tensor, clip_norm: float) -> Tensor:
    """What each gradient is multiplied by so that its norm is at most `clip_norm`.

    A gradient that is not finite gets factor 0: the group contributes nothing. Stopping the run instead would be an event that
    depends on a private record.

    Args:
        norms: ``(G,)`` L2 norms, summed in float64; in float32 where the device has no better.
        clip_norm: C.

    Returns:
        ``(G,)`` factors in [0, 1].
    """
    factors = torch.clamp(clip_norm * (1 - _SLACK[norms.dtype]) / norms.clamp(min=1e-30), max=1.0)
    return torch.where(torch.isfinite(norms), factors, 0.0)
