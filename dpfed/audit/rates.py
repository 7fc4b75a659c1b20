"""Rates with intervals from the scores of a membership attack, and the largest rates that differential privacy allows.

A score is higher for records that are more likely members. Intervals refer to the draw of the records: members and
non-members are treated as two independent samples, and the model and the attack as fixed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Rate:
    """A measured rate with its interval.

    Attributes:
        value: Measured value, in [0, 1].
        low: Lower end of the interval.
        high: Upper end of the interval.
    """

    value: float
    low: float
    high: float


def clopper_pearson(successes: int | np.ndarray, trials: int, error: float) -> tuple[np.ndarray, np.ndarray]:
    """Computes one-sided bounds on the probability of a success (Clopper and Pearson 1934).

    Args:
        successes: Numbers of successes, 0 .. trials.
        trials: Number of independent trials.
        error: Largest probability that the lower bound is too high; the same for an upper bound that is too low.

    Returns:
        Lower and upper bound, each in the shape of `successes`.
    """
    successes = np.asarray(successes)
    low = np.where(successes == 0, 0.0, stats.beta.ppf(error, np.maximum(successes, 1), trials - successes + 1))
    high = np.where(successes == trials, 1.0, stats.beta.ppf(1 - error, successes + 1, np.maximum(trials - successes, 1)))
    return low, high


def tpr_at_fpr(members: np.ndarray, non_members: np.ndarray, fpr: float, confidence: float = CONFIDENCE) -> Rate:
    """Measures the true positive rate at a fixed false positive rate.

    The value uses the lowest threshold that at most a fraction `fpr` of the given non-members exceeds; ties count against the
    attack. The interval is for the rate at another threshold, which a fraction `fpr` of ALL non-members exceeds: two order
    statistics of the given non-members enclose it, and Clopper-Pearson bounds the members' rate at each of the two. Each of the
    four bounds gets a quarter of the error. The interval holds for any distribution of scores.

    Args:
        members: Scores of members, ``(n,)``.
        non_members: Scores of non-members, ``(m,)``.
        fpr: False positive rate, in (0, 1).
        confidence: Confidence of the interval.
    """
    error, m = (1 - confidence) / 4, len(non_members)
    # Thresholds in descending order, between infinity (no score is positive) and minus infinity (every score is positive).
    thresholds = np.concatenate([[np.inf], np.sort(non_members)[::-1], [-np.inf]])

    def positives(rank: int) -> int:
        """Counts the members above the non-member of a rank, 1 being the highest.

        Rank 0 stands for infinity, and every rank above m for minus infinity.
        """
        return int((members > thresholds[min(rank, m + 1)]).sum())

    exceed = stats.binom(m, fpr)  # non-members above the true threshold
    low, _ = clopper_pearson(positives(int(exceed.ppf(error))), len(members), error)
    _, high = clopper_pearson(positives(int(exceed.ppf(1 - error)) + 1), len(members), error)
    return Rate(positives(math.floor(fpr * m + 1e-9) + 1) / len(members), float(low), float(high))


def auc(members: np.ndarray, non_members: np.ndarray, confidence: float = CONFIDENCE) -> Rate:
    """Estimates the probability that a member's score is higher than a non-member's; ties count half.

    The interval is the normal approximation with the variance of DeLong et al. (1988).

    Args:
        members: Scores of members, ``(n,)``.
        non_members: Scores of non-members, ``(m,)``.
        confidence: Confidence of the interval.
    """
    n, m = len(members), len(non_members)
    ranks = stats.rankdata(np.concatenate([members, non_members]))
    # For a member, the fraction of non-members with lower scores; for a non-member, the fraction of members with higher scores.
    beats = (ranks[:n] - stats.rankdata(members)) / m
    beaten = 1 - (ranks[n:] - stats.rankdata(non_members)) / n
    value = float(beats.mean())
    reach = stats.norm.ppf((1 + confidence) / 2) * math.sqrt(beats.var(ddof=1) / n + beaten.var(ddof=1) / m)
    return Rate(value, max(0.0, value - reach), min(1.0, value + reach))


def most_tpr(fpr: float, epsilon: float, delta: float) -> float:
    """Returns the highest true positive rate of any attack on an (epsilon, delta)-private release (Kairouz et al. 2015).

    Args:
        fpr: False positive rate of the attack, in [0, 1].
        epsilon: Epsilon of the release.
        delta: Delta of the release.

    Example:
        >>> round(most_tpr(0.01, epsilon=1.0, delta=1e-5), 4)
        0.0272
    """
    return min(1.0, math.exp(min(epsilon, 700.0)) * fpr + delta, 1 - math.exp(-epsilon) * (1 - delta - fpr))
