"""How far a figure may be off because the held-out records are a sample: 95% intervals, also for what training changed.

Queries are what a figure counts: held-out images, or captions. Queries that belong together (captions of one image, records of
one person) are one draw, a cluster, and not several: more of them from the same clusters tell little more.

- A share of right answers has Wilson's interval (Wilson 1927), which is honest for few queries and near 0 and 1. Clusters make
  the number of queries smaller: it is divided by the design effect, the variance between clusters over that of single draws.
- The change of a share between two models on the same queries is paired: only queries that one model has right and the other
  wrong count, as in McNemar's test. Agresti and Min's (2005) interval: two queries are added, one won and one lost by half.
- Noise moves figures even where nothing is learnt. `beyond_noise` widens the interval of a change by Student's prediction
  interval of the figures that noise alone gives (`dpfed.runs.noise_alone`). Both are added as independent errors. As the second
  has a part of the first in it, a figure of a run without signal is outside in about one of 100 cases, not in five.

What is not in them: how much the figures of trained models differ from run to run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri, stdtrit  # quantiles; scipy.stats, which asks the same, takes a second to import

CONFIDENCE = 0.95

Interval = tuple[float, float]


@dataclass(frozen=True)
class Outcomes:
    """What came of each query.

    Attributes:
        values: ``(n,)`` float64: 1 right, 0 wrong.
        clusters: ``(n,)`` int64, equal for queries that belong together.
    """

    values: np.ndarray
    clusters: np.ndarray

    def __post_init__(self) -> None:
        if self.values.shape != self.clusters.shape or self.values.ndim != 1 or not len(self.values):
            raise ValueError(f"one cluster for each of one or more values, got {self.values.shape} and {self.clusters.shape}")

    def figure(self) -> float:
        """The share of right answers."""
        return float(self.values.mean())

    def interval(self) -> Interval:
        """The interval of the share."""
        return wilson(self.figure(), _effective(self.values, self.clusters))

    def change_from(self, before: Outcomes, noise: Sequence[float] = ()) -> Interval:
        """The interval of this share minus that of another model on the same queries.

        Args:
            before: what came of the same queries with the other model.
            noise: the same share of models that noise alone may have made, none or two at least.

        Raises:
            ValueError: if the queries are not the same.
        """
        if not np.array_equal(self.clusters, before.clusters):
            raise ValueError("a change is one between figures of the same kind on the same queries")
        change = _paired(self.values - before.values, self.clusters)
        return beyond_noise(change, self.figure() - before.figure(), noise) if noise else change


def wilson(share: float, count: float) -> Interval:
    """Wilson's interval of a share among so many draws; `count` need not be whole."""
    z = ndtri((1 + CONFIDENCE) / 2)
    middle, scale = share + z**2 / (2 * count), 1 + z**2 / count
    half = z * math.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
    return max(0.0, min(share, (middle - half) / scale)), min(1.0, max(share, (middle + half) / scale))


def apart(after: float, after_interval: Interval, before: float, before_interval: Interval) -> Interval:
    """The interval of a difference whose two figures were measured on unrelated draws (Newcombe 1998)."""
    change = after - before
    down = math.hypot(after - after_interval[0], before_interval[1] - before)
    up = math.hypot(after_interval[1] - after, before - before_interval[0])
    return change - down, change + up


def beyond_noise(change: Interval, figure: float, draws: Sequence[float]) -> Interval:
    """The interval of a change, widened by how far apart the figures are that noise alone gives.

    Args:
        change: its interval over the draw of held-out records.
        figure: the change itself.
        draws: figures of models that noise alone may have made, two at least.
    """
    count = len(draws)
    spread = float(np.std(draws, ddof=1)) * math.sqrt(1 + 1 / count)
    half = float(stdtrit(count - 1, (1 + CONFIDENCE) / 2)) * spread
    down, up = math.hypot(figure - change[0], half), math.hypot(change[1] - figure, half)
    return max(-1.0, figure - down), min(1.0, figure + up)


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
    z = ndtri((1 + CONFIDENCE) / 2)
    middle = change * count / (count + 2)
    # Agresti and Min: half a query more is won, half a query more is lost, twice.
    variance = (np.abs(differences).sum() + 1 - differences.sum() ** 2 / (count + 2)) / (count + 2) ** 2
    half = z * math.sqrt(max(0.0, variance))
    if 1 < len(sums) < count:
        spread = math.sqrt(_variance(sums - change * sizes, count))
        half = max(half, float(stdtrit(len(sums) - 1, (1 + CONFIDENCE) / 2)) * spread)
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
