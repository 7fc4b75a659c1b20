"""How far a figure may be off because the held-out records are a sample: 95% intervals, also for what training changed.

Queries are what a figure counts: held-out images, or captions. Queries that belong together (captions of one image, records of
one person) are one draw, a cluster, and not several: more of them from the same clusters tell little more.

- A share of right answers has Wilson's interval (Wilson 1927), which is honest for few queries and near 0 and 1. Clusters make
  the number of queries smaller: it is divided by the design effect, the variance between clusters over that of single draws.
- The change of a share between two models on the same queries is paired: only queries that one model has right and the other
  wrong count, as in McNemar's test. Agresti and Min's (2005) interval: two queries are added, one won and one lost by half.
- Ranks have percentile intervals of a bootstrap over clusters, the change that of a paired one.

What is not in them: another run has other noise, and other weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import stats

CONFIDENCE = 0.95
RESAMPLES = 1000
_AT_ONCE = 1 << 14  # numbers of several resamples that are counted in one go, which a cache holds
_SEED = 20240229  # of the bootstrap, so that the same outcomes give the same interval

Interval = tuple[float, float]


@dataclass(frozen=True)
class Outcomes:
    """What came of each query.

    Attributes:
        values: ``(n,)`` float64: 1 right, 0 wrong; or ranks, from 1.
        clusters: ``(n,)`` int64, equal for queries that belong together.
        statistic: ``share``, ``mean`` or ``median`` of the values.
    """

    values: np.ndarray
    clusters: np.ndarray
    statistic: str = "share"

    def __post_init__(self) -> None:
        if self.values.shape != self.clusters.shape or self.values.ndim != 1 or not len(self.values):
            raise ValueError(f"one cluster for each of one or more values, got {self.values.shape} and {self.clusters.shape}")

    def figure(self) -> float:
        """The statistic."""
        return float(np.median(self.values) if self.statistic == "median" else self.values.mean())

    def interval(self) -> Interval | None:
        """The interval of the statistic; ``None``: there is a single cluster of ranks, which tells nothing of others."""
        if self.statistic == "share":
            return wilson(float(self.values.mean()), _effective(self.values, self.clusters))
        return _bootstrap(self.clusters, _weighted(self))

    def change_from(self, before: Outcomes) -> Interval | None:
        """The interval of this statistic minus that of another model on the same queries; ``None``: see `interval`.

        Raises:
            ValueError: if the queries are not the same.
        """
        if self.statistic != before.statistic or not np.array_equal(self.clusters, before.clusters):
            raise ValueError("a change is one between figures of the same kind on the same queries")
        if self.statistic == "share":
            return _paired(self.values - before.values, self.clusters)
        after_, before_ = _weighted(self), _weighted(before)
        return _bootstrap(self.clusters, lambda weights: after_(weights) - before_(weights))


def wilson(share: float, count: float) -> Interval:
    """Wilson's interval of a share among so many draws; `count` need not be whole."""
    z = stats.norm.ppf((1 + CONFIDENCE) / 2)
    middle, scale = share + z**2 / (2 * count), 1 + z**2 / count
    half = z * math.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
    return max(0.0, min(share, (middle - half) / scale)), min(1.0, max(share, (middle + half) / scale))


def apart(after: float, after_interval: Interval, before: float, before_interval: Interval) -> Interval:
    """The interval of a difference whose two figures were measured on unrelated draws (Newcombe 1998)."""
    change = after - before
    down = math.hypot(after - after_interval[0], before_interval[1] - before)
    up = math.hypot(after_interval[1] - after, before - before_interval[0])
    return change - down, change + up


def _effective(values: np.ndarray, clusters: np.ndarray) -> float:
    """So many independent draws have the variance that these clusters have; never more than there are queries."""
    count, share = len(values), float(values.mean())
    sums, sizes = _by_cluster(values, clusters)
    if len(sums) == count:
        return float(count)
    if len(sums) == 1:
        return 1.0
    variance = _variance(sums - share * sizes, count)
    if variance <= 0:  # all right or all wrong: nothing tells how much clusters agree, so each counts once
        return float(len(sums))
    return min(float(count), max(1.0, share * (1 - share) / variance))


def _paired(differences: np.ndarray, clusters: np.ndarray) -> Interval:
    """Differences are -1, 0 and 1."""
    count, change = len(differences), float(differences.mean())
    sums, sizes = _by_cluster(differences, clusters)
    z = stats.norm.ppf((1 + CONFIDENCE) / 2)
    middle = change * count / (count + 2)
    # Agresti and Min: half a query more is won, half a query more is lost, twice.
    variance = (np.abs(differences).sum() + 1 - differences.sum() ** 2 / (count + 2)) / (count + 2) ** 2
    half = z * math.sqrt(max(0.0, variance))
    if 1 < len(sums) < count:
        spread = math.sqrt(_variance(sums - change * sizes, count))
        half = max(half, float(stats.t.ppf((1 + CONFIDENCE) / 2, len(sums) - 1)) * spread)
    if len(sums) == 1 < count:
        half = 1.0  # one cluster tells nothing of others
    return max(-1.0, min(change, middle - half)), min(1.0, max(change, middle + half))


def _variance(residuals: np.ndarray, count: int) -> float:
    """Of a mean over `count` queries, from what each cluster adds to it."""
    return float(len(residuals) / (len(residuals) - 1) * np.square(residuals).sum() / count**2)


def _by_cluster(values: np.ndarray, clusters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sum and number of the values of each cluster."""
    _, number, sizes = np.unique(clusters, return_inverse=True, return_counts=True)
    return np.bincount(number, weights=values), sizes


def _weighted(outcomes: Outcomes) -> Callable[[np.ndarray], np.ndarray]:
    """The statistic as a function of how often each query counts: ``(r, n)`` -> ``(r,)``."""
    values = outcomes.values
    if outcomes.statistic == "mean":
        return lambda weights: weights @ values / weights.sum(axis=1)
    order = np.argsort(values, kind="stable")
    ordered = values[order]

    def median(weights: np.ndarray) -> np.ndarray:
        below = np.cumsum(weights[:, order], axis=1)
        low, high = ((below < wanted[:, None]).sum(axis=1) for wanted in ((below[:, -1] + 1) // 2, below[:, -1] // 2 + 1))
        return (ordered[low] + ordered[high]) / 2

    return median


def _bootstrap(clusters: np.ndarray, statistic: Callable[[np.ndarray], np.ndarray]) -> Interval | None:
    """Percentiles of a statistic over resampled clusters."""
    _, number = np.unique(clusters, return_inverse=True)
    count = int(number.max()) + 1
    if count == 1:
        return None
    generator = np.random.default_rng(_SEED)
    rows = max(1, _AT_ONCE // len(clusters))
    found = []
    for first in range(0, RESAMPLES, rows):
        drawn = generator.integers(0, count, (min(rows, RESAMPLES - first), count))
        drawn += count * np.arange(len(drawn))[:, None]
        times = np.bincount(drawn.ravel(), minlength=drawn.size).reshape(drawn.shape)
        found.append(statistic(times[:, number]))
    low, high = np.quantile(np.concatenate(found), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)
