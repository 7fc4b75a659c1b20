"""How much one record can change the weights of the similarities: the constants of Logit-DP, derived in docs/methods.md.

The weights are the loss's derivatives with respect to the similarities (cosines, in [-1, 1]). Every constant here bounds the
sum of their absolute changes, for one direction of the contrast, over all batches of at most b records that differ as those of
neighbours do: one record more, or, where the cap b is met, one in the place of another. The gradients that the weights multiply
have norm C at most, so the sum of clipped gradients changes by at most C times the constant.
"""

from __future__ import annotations

import math


def contrastive_change(batch: int, temperature: float, candidates: int = 1) -> float:
    """Of the InfoNCE loss with temperature, one direction, at the cap.

    Args:
        batch: b, most records in a batch, at least 2.
        temperature: tau; the logits lie in [-1/tau, 1/tau].
        candidates: m, candidates of each record; of its own, only the first is contrasted with an anchor.

    Example:
        >>> round(contrastive_change(1_000, temperature=1.0), 2)
        18.67
    """
    others, one = _others_share(batch, temperature, candidates), _one_share(batch, temperature, candidates)
    return (4 * others + 2 * (batch - 1) * one) / temperature


def contrastive_change_below_cap(batch: int, temperature: float, candidates: int = 1) -> float:
    """Likewise where a batch of b - 1 records becomes one of b: what the Logit-DP paper's lemma 4.5 is about.

    The lemma's constant for one candidate at temperature 1, ``2 (1 + (b-2) e^2 / (e^2 + b-1))``, is smaller, and does not hold:
    its proof takes the new record's own positive to weigh as much as that record weighs for others.
    """
    others, one = _others_share(batch, temperature, candidates), _one_share(batch, temperature, candidates)
    return (2 * others + 2 * (batch - 1) * one) / temperature


def spread_out_change() -> float:
    """Of the spread-out regulariser, one direction, at the cap; the same for any batch and any number of candidates."""
    return 8.0


def _others_share(batch: int, temperature: float, candidates: int) -> float:
    """Largest softmax weight of all candidates of other records together: x."""
    return 1 / (1 + math.exp(-2 / temperature) / ((batch - 1) * candidates))


def _one_share(batch: int, temperature: float, candidates: int) -> float:
    """Largest softmax weight of the candidates of one other record together: r."""
    return 1 / (1 + math.exp(-2 / temperature) * ((batch - 2) * candidates + 1) / candidates)
