"""What the scores of a membership attack show: rates with intervals, and what differential privacy leaves room for.

A score is higher for a record that the attack takes for a member. Intervals are over the draw of the records: members and
non-members are taken as two independent samples, and the model and the attack as given.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Rate:
    """A measured share.

    Attributes:
        value: in [0, 1].
        low: lower end of its interval.
        high: upper end.
    """

    value: float
    low: float
    high: float


def clopper_pearson(successes: int | np.ndarray, trials: int, error: float) -> tuple[np.ndarray, np.ndarray]:
    """One-sided bounds on the probability of a success (Clopper and Pearson 1934).

    Args:
        successes: how often, 0 .. trials.
        trials: independent ones.
        error: probability that the lower bound is too high, and the same for the upper bound.

    Returns:
        lower and upper bound, each in the shape of `successes`.
    """
    successes = np.asarray(successes)
    low = np.where(successes == 0, 0.0, stats.beta.ppf(error, np.maximum(successes, 1), trials - successes + 1))
    high = np.where(successes == trials, 1.0, stats.beta.ppf(1 - error, successes + 1, np.maximum(trials - successes, 1)))
    return low, high


def tpr_at_fpr(members: np.ndarray, non_members: np.ndarray, fpr: float, confidence: float = CONFIDENCE) -> Rate:
    """True positive rate at a fixed false positive rate.

    The value takes the lowest threshold that at most a share `fpr` of the given non-members exceeds; ties count against the
    attack. The interval is for the rate at the threshold that a share `fpr` of ALL non-members exceeds: two order statistics
    of the non-members enclose that threshold, and Clopper-Pearson bounds the members' rate at each, a quarter of the error
    going to each of the four bounds. It holds for any distribution of scores.

    Args:
        members: ``(n,)`` scores.
        non_members: ``(m,)`` scores.
        fpr: in (0, 1).
        confidence: of the interval.
    """
    error, m = (1 - confidence) / 4, len(non_members)
    # A threshold between infinities, from which on every score, or none, is positive.
    thresholds = np.concatenate([[np.inf], np.sort(non_members)[::-1], [-np.inf]])

    def positives(rank: int) -> int:
        """Members above the non-member of that rank, 1 being the highest; rank 0: above infinity."""
        return int((members > thresholds[min(rank, m + 1)]).sum())

    exceed = stats.binom(m, fpr)  # non-members above the true threshold
    low, _ = clopper_pearson(positives(int(exceed.ppf(error))), len(members), error)
    _, high = clopper_pearson(positives(int(exceed.ppf(1 - error)) + 1), len(members), error)
    return Rate(positives(math.floor(fpr * m + 1e-9) + 1) / len(members), float(low), float(high))


def auc(members: np.ndarray, non_members: np.ndarray, confidence: float = CONFIDENCE) -> Rate:
    """Probability that a member's score is higher than a non-member's; ties count half.

    The interval is the normal one with the variance of DeLong et al. (1988).
    """
    n, m = len(members), len(non_members)
    ranks = stats.rankdata(np.concatenate([members, non_members]))
    # Share of the other sample that each score beats (of a non-member: is beaten by).
    beats = (ranks[:n] - stats.rankdata(members)) / m
    beaten = 1 - (ranks[n:] - stats.rankdata(non_members)) / n
    value = float(beats.mean())
    reach = stats.norm.ppf((1 + confidence) / 2) * math.sqrt(beats.var(ddof=1) / n + beaten.var(ddof=1) / m)
    return Rate(value, max(0.0, value - reach), min(1.0, value + reach))


def most_tpr(fpr: float, epsilon: float, delta: float) -> float:
    """The highest true positive rate that any attack on an (epsilon, delta)-private release can have (Kairouz et al. 2015).

    Example:
        >>> round(most_tpr(0.01, epsilon=1.0, delta=1e-5), 4)
        0.0272
    """
    return min(1.0, math.exp(min(epsilon, 700.0)) * fpr + delta, 1 - math.exp(-epsilon) * (1 - delta - fpr))
