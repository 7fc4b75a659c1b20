"""How a gradient is clipped, and how clipped gradients are added up: the factors, and the room for rounding."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Of one clipped gradient, by the type of its norm: its factor and their product are rounded to float32. A norm in float32 (mps
# has nothing better) is itself short by up to a part in a thousand.
_SLACK = {torch.float64: 1e-5, torch.float32: 5e-3}
_LEAST_FACTOR = 1e-30  # smaller ones lose digits in float32, down to all of them
_ROUNDING = 2.0**-24  # of a number that becomes a float32, relative
GROUPS_OF_A_PASS = 16  # at most, where clipped gradients are added up one after the other in float32, before they are float64
# On a GPU they are added up in blocks, and then the blocks: as many additions one after the other, of more groups.
BLOCK, PLACES_OF_A_PASS = 8, 64
# Of C, what the rounding of these additions may move for each group, between two neighbours. An entry is multiplied by its
# factor and added up to 17 times, and each time errs by up to 2^-24 of a partial sum of clipped gradients (docs/guarantee.md).
_SHARED_PASS = 2 * (GROUPS_OF_A_PASS + 2) * _ROUNDING


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


def clip_norm_in_float32(bound: float, spread: float, owners: int, shared: float = _SHARED_PASS) -> float:
    """What gradients are clipped to, so that one record moves the *rounded* sum by no more than the sensitivity.

    Rounding goes by the length of a sum, and a record can change every rounding in it.

    Args:
        bound: C; infinity where nothing is clipped.
        spread: the longest sum there can be, over the sensitivity: K / 2 for K groups.
        owners: how many round a sum of their own and have them added up, in float32.
        shared: of the bound, for each group: what the rounding of sums in float32 may move between neighbours.
    """
    return bound / (1 + spread * (shared + 2 * _ROUNDING * owners))


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
    inverse = (norms + clip.stability).clamp(min=1e-30).reciprocal()
    factors = torch.clamp(inverse * (clip.bound * (1 - _SLACK[norms.dtype])), max=clip.most)
    return torch.where(torch.isfinite(norms) & (factors > _LEAST_FACTOR), factors, 0.0)


_FEW = 4  # gradients that are added up in float32


def add_weighted(gradients: Tensor, factors: Tensor, into: Tensor) -> None:
    """Adds clipped gradients up, a few at a time in float32, and these in the type of the sum.

    In float32 alone, the rounding of a long sum would grow with the square of its length.

    Args:
        gradients: ``(G, P)``; those of factor 0 need not be finite.
        factors: ``(G,)``, see `clip_factors`.
        into: ``(P,)``, added to in place.
    """
    gradients = torch.where((factors > 0)[:, None], gradients, 0.0)  # 0 * inf is not 0
    factors = factors.to(gradients.dtype)
    for start in range(0, len(factors), _FEW):
        some = slice(start, start + _FEW)
        into.add_(factors[some] @ gradients[some])
