"""Computes the factors that clip gradients, with a margin for rounding, and states how many groups a pass may have."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Relative margin by which a gradient is clipped below C, by the dtype of its norm. A norm has a relative error of up to 3.1e-5
# (`dpfed.bounding.foreach`). Its factor, and the product with the gradient, are rounded to float32. A norm that is summed in
# float32 alone (mps has no float64) has a relative error of up to 1e-3.
_SLACK = {torch.float64: 5e-5, torch.float32: 5e-3}
# Squares of float32 numbers below 1e-22 underflow, so norms are clamped to at least this. C is never smaller.
_SHORTEST = 1e-9
_LEAST_FACTOR = 1e-30  # smaller factors lose digits in float32, eventually all of them
# Largest number of groups in a pass, without and with the kernels for GPUs: the sum of that many clipped gradients, each with
# a norm of at most 2^24 grid steps, fits into int32.
GROUPS_OF_A_PASS, PLACES_OF_A_PASS = 16, 64
BLOCK = 8  # groups that a GPU kernel adds up as one block


@dataclass(frozen=True)
class Clip:
    """Rule that scales a gradient g to a norm of at most C: its factor is min(most, C / (norm of g + stability)).

    Args:
        bound: Norm C; infinity if nothing is to be clipped.
        most: Largest factor. With 1, g is clipped to norm C. With C / c, g is clipped to another norm c, and then
            multiplied by C / c. With infinity, every gradient is scaled to norm C.
        stability: Term added to the norm, so that a gradient close to zero is not amplified without limit.

    Each of these three values may be a scalar tensor, which the device reads when it computes the factors.
    """

    bound: float | Tensor
    most: float | Tensor = 1.0
    stability: float | Tensor = 0.0

    @classmethod
    def of(cls, clip_norm: float | Clip) -> Clip:
        """Returns the rule that clips to norm C, if a number C is given; returns a given `Clip` unchanged."""
        return clip_norm if isinstance(clip_norm, Clip) else cls(clip_norm)


def clip_factors(norms: Tensor, clip_norm: float | Clip) -> Tensor:
    """Returns for each gradient the factor that limits the gradient's norm to C.

    The factor is 0 if the norm is not finite, or so large that the factor would be too small for float32. The group then
    contributes nothing. If the run stopped instead, the stop itself would reveal something about a private record.

    Args:
        norms: L2 norms ``(G,)`` of the G gradients. Their squares are summed in float64, or in float32 on devices without
            float64.
        clip_norm: Norm C, to which gradients of a larger norm are clipped, or another rule as a `Clip`.

    Returns:
        Factors ``(G,)``, none of them negative.
    """
    clip = Clip.of(clip_norm)
    inverse = (norms + clip.stability).clamp(min=_SHORTEST).reciprocal()
    factors = torch.clamp(inverse * (clip.bound * (1 - _SLACK[norms.dtype])), max=clip.most)
    return torch.where(torch.isfinite(norms) & (factors > _LEAST_FACTOR), factors, 0.0)
