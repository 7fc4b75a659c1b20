"""Computes an upper bound on the noise multiplier sigma from the scores of canaries (f-DP).

The outcome of an attack is compared with the whole trade-off functions of the plan's mechanism, and of mechanisms that differ
from it in sigma only. An outcome that rules out the claimed epsilon rules out the claimed sigma as well.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dpfed.audit.rates import clopper_pearson
from dpfed.audit.trade_off import Family, TradeOff, trade_off

_THRESHOLDS = 200  # largest number of thresholds to try
_FIRST = 0.6  # fraction of the error for the first channel, the noisy sums
_SAME = 1e-2  # scores that differ by at most this count as equal; they are logarithms of likelihood ratios


@dataclass(frozen=True)
class Shown:
    """The bound that one channel gives.

    Attributes:
        channel: Output of the mechanism (`dpfed.audit.leaving`) whose scores give the bound.
        noise: Upper bound on the noise multiplier; infinity: no bound.
    """

    channel: str
    noise: float


def divided(scores: Mapping[str, np.ndarray], error: float) -> dict[str, tuple[np.ndarray, float]]:
    """Selects the channels to test, and divides the error probability among them. The first channel gets the largest part.

    A channel whose scores differ from those of the first channel by at most 0.01 is left out, such as an optimizer's first
    moment in a sound run.

    Args:
        scores: Scores by channel, that is, by output of the mechanism (`dpfed.audit.leaving`), ``(n,)`` each.
        error: Total error probability.

    Returns:
        Scores and error probability of each selected channel.
    """
    first, *others = scores
    other = [name for name in others if np.abs(scores[name] - scores[first]).max() > _SAME]
    parts = {first: _FIRST if other else 1.0, **dict.fromkeys(other, (1 - _FIRST) / max(1, len(other)))}
    return {name: (scores[name], error * part) for name, part in parts.items()}


def of_repetitions(
    scores: Mapping[str, np.ndarray], there: np.ndarray, known: np.ndarray, family: Family, error: float
) -> list[Shown]:
    """Bounds the noise multiplier from above by repeated experiments, for each channel separately.

    The attack guesses that the canary is present if the score exceeds a threshold. The threshold is chosen on some of the
    experiments; the attack's true and false positive rates are measured on all others.

    Args:
        scores: Scores of independent experiments by channel, that is, by output of the mechanism (`dpfed.audit.leaving`),
            ``(n,)`` each.
        there: Presence of the canary in each experiment, ``(n,)`` bool.
        known: Whether an experiment serves to choose the threshold, ``(n,)`` bool.
        family: Claimed mechanism of one experiment, with its variants.
        error: Probability that any of the bounds is too low.

    Returns:
        The bound of each channel that `divided` selects.
    """
    bounds = []
    for channel, (values, each) in divided(scores, error).items():
        yes, no = values[known & there], values[known & ~there]
        threshold = _telling(yes, no, family, each)
        true, false = values[~known & there] > threshold, values[~known & ~there] > threshold
        low, high = _rates(int(true.sum()), len(true), int(false.sum()), len(false), each)
        noise = family.noise_shown(functools.partial(_reachable, low, high))
        bounds.append(Shown(channel, noise))
    return bounds


def _reachable(tpr: np.ndarray, fpr: np.ndarray, curve: TradeOff) -> bool:
    return bool((tpr <= curve.most_tpr(fpr)).all())


def _rates(
    true: np.ndarray | int, members: int, false: np.ndarray | int, others: int, error: float
) -> tuple[np.ndarray, np.ndarray]:
    """Returns a lower bound on the true positive rate, and an upper bound on the false positive rate."""
    return clopper_pearson(true, members, error / 2)[0], clopper_pearson(false, others, error / 2)[1]


def _telling(yes: np.ndarray, no: np.ndarray, family: Family, error: float) -> float:
    """Returns the threshold at which the scores with the canary (`yes`) and without it (`no`) bound the noise most strongly."""
    pooled = np.unique(np.concatenate([yes, no]))
    thresholds = pooled[np.unique(np.linspace(0, len(pooled) - 1, _THRESHOLDS).astype(int))]
    true, false = (len(x) - np.searchsorted(np.sort(x), thresholds, side="right") for x in (yes, no))
    low, high = _rates(true, len(yes), false, len(no), error)
    least = family.noise_shown(functools.partial(_reachable, low, high))
    margin = low - trade_off(min(least, family.most), family.rate, family.steps).most_tpr(high)
    return float(thresholds[margin.argmax()])
