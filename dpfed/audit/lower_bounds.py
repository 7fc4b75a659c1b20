"""From the scores of canaries to an upper bound on sigma, in the family of the plan's own mechanism (f-DP).

It uses the whole trade-off function that the plan claims. An outcome that rules out the claimed epsilon rules out the claimed
sigma as well.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dpfed.audit.rates import clopper_pearson
from dpfed.audit.trade_off import Family, TradeOff, trade_off

_THRESHOLDS = 200
_FIRST = 0.6  # of the error, for the noisy sums themselves
_SAME = 1e-2  # of two scores, which are logarithms of likelihood ratios


@dataclass(frozen=True)
class Shown:
    """A lower bound.

    Attributes:
        channel: where it was seen.
        noise: an upper bound on the noise multiplier; infinity: nothing.
    """

    channel: str
    noise: float


def shares(scores: Mapping[str, np.ndarray], error: float) -> dict[str, tuple[np.ndarray, float]]:
    """The channels that are looked at, each with its share of the error: the first gets most.

    One that says what the first says, as an optimizer's first moment does in a sound run, is not looked at twice.
    """
    first, *others = scores
    other = [name for name in others if np.abs(scores[name] - scores[first]).max() > _SAME]
    parts = {first: _FIRST if other else 1.0, **dict.fromkeys(other, (1 - _FIRST) / max(1, len(other)))}
    return {name: (scores[name], error * part) for name, part in parts.items()}


def of_repetitions(
    scores: Mapping[str, np.ndarray], there: np.ndarray, known: np.ndarray, family: Family, error: float
) -> list[Shown]:
    """What repeated experiments show: a threshold is chosen on a part of them, and its rates are measured on the rest.

    Args:
        scores: ``(n,)`` for each channel; experiments do not depend on each other.
        there: ``(n,)`` bool, whether the canary was there.
        known: ``(n,)`` bool, the part on which the threshold is chosen.
        family: the claim, for one experiment.
        error: probability that any result is too low.
    """
    found = []
    for channel, (values, each) in shares(scores, error).items():
        yes, no = values[known & there], values[known & ~there]
        threshold = _telling(yes, no, family, each)
        true, false = values[~known & there] > threshold, values[~known & ~there] > threshold
        low, high = _rates(int(true.sum()), len(true), int(false.sum()), len(false), each)
        noise = family.noise_shown(functools.partial(_reachable, low, high))
        found.append(Shown(channel, noise))
    return found


def _reachable(tpr: np.ndarray, fpr: np.ndarray, curve: TradeOff) -> bool:
    return bool((tpr <= curve.most_tpr(fpr)).all())


def _rates(
    true: np.ndarray | int, members: int, false: np.ndarray | int, others: int, error: float
) -> tuple[np.ndarray, np.ndarray]:
    """Lower bound of the true positive rate, upper bound of the false positive rate."""
    return clopper_pearson(true, members, error / 2)[0], clopper_pearson(false, others, error / 2)[1]


def _telling(yes: np.ndarray, no: np.ndarray, family: Family, error: float) -> float:
    """The threshold at which these scores rule out the most noise."""
    pooled = np.unique(np.concatenate([yes, no]))
    thresholds = pooled[np.unique(np.linspace(0, len(pooled) - 1, _THRESHOLDS).astype(int))]
    true, false = (len(x) - np.searchsorted(np.sort(x), thresholds, side="right") for x in (yes, no))
    low, high = _rates(true, len(yes), false, len(no), error)
    least = family.noise_shown(functools.partial(_reachable, low, high))
    margin = low - trade_off(min(least, family.most), family.rate, family.steps).most_tpr(high)
    return float(thresholds[margin.argmax()])
