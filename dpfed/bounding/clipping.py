"""How a gradient is clipped, and how clipped gradients are added up: the factors, and the room for rounding."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# How much shorter a gradient is clipped than C, relative, by the type of its norm. A norm errs by up to 3.1e-5 of itself
# (`dpfed.bounding.foreach`). Its factor, and the product with the gradient, are rounded to float32. A norm in float32 alone
# (mps has nothing better) errs by up to a part in a thousand.
_SLACK = {torch.float64: 5e-5, torch.float32: 5e-3}
# Squares of float32 numbers below 1e-22 vanish, so no gradient is taken for shorter than this. No C is smaller.
_SHORTEST = 1e-9
_LEAST_FACTOR = 1e-30  # smaller ones lose digits in float32, down to all of them
# Groups of a pass at most, and of a GPU's: so many clipped gradients of 2^24 steps at most have a sum that fits into int32.
GROUPS_OF_A_PASS, PLACES_OF_A_PASS = 16, 64
BLOCK = 8  # groups that a GPU's kernel reads in a row


@dataclass(frozen=True)
class Clip:
    """How a gradient g is scaled so that its norm is at most C: by min(most, C / (norm of g + stability)).

    Args:
        bound: C; infinity where nothing is clipped.
        most: the largest factor. 1: g is clipped to C. C / c: g is clipped to c, and what comes out is in units of c / C.
            Infinity: every gradient is normalised.
        stability: added to the norm, so that a gradient close to zero is not blown up.

    Each may be a scalar tensor, which a device reads when it computes.
    """

    bound: float | Tensor
    most: float | Tensor = 1.0
    stability: float | Tensor = 0.0

    @classmethod
    def of(cls, clip_norm: float | Clip) -> Clip:
        """What a clip norm alone means."""
        return clip_norm if isinstance(clip_norm, Clip) else cls(clip_norm)


def clip_factors(norms: Tensor, clip_norm: float | Clip) -> Tensor:
    """What each gradient is multiplied by so that its norm is at most C.

    A gradient that is not finite, or so long that its factor has no digits in float32, gets factor 0: the group contributes
    nothing. Stopping the run instead would be an event that depends on a private record.

    Args:
        norms: ``(G,)`` L2 norms, summed in float64; in float32 where the device has no better.
        clip_norm: C, to which longer ones are clipped; or another `Clip`.

    Returns:
        ``(G,)`` factors, of which none is negative.
    """
    clip = Clip.of(clip_norm)
    inverse = (norms + clip.stability).clamp(min=_SHORTEST).reciprocal()
    factors = torch.clamp(inverse * (clip.bound * (1 - _SLACK[norms.dtype])), max=clip.most)
    return torch.where(torch.isfinite(norms) & (factors > _LEAST_FACTOR), factors, 0.0)
