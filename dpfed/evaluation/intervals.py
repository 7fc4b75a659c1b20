"""Computes 95% intervals of figures and of their changes by training. They allow for the draw of held-out records.

A figure is a fraction of queries; a query is a held-out image or caption. Queries that belong together (captions of one image,
records of one person) form a cluster, which is drawn as a whole: more queries from the same clusters add little information.

- A fraction of right answers has Wilson's interval (Wilson 1927), which is reliable for few queries and for fractions near 0
  and 1. With clusters, the number of queries is divided by the design effect: the fraction's variance if clusters are drawn,
  over its variance if single queries are drawn.
- The change of a fraction between two models on the same queries is paired: only queries count that one model answers right and
  the other wrong, as in McNemar's test. The interval of Agresti and Min (2005) adds two imaginary queries: half
  a query that only one model answers right, half a query that only the other does, and one query that both answer alike.
- Noise changes figures even if nothing is learnt. `beyond_noise` widens the interval of a change by Student's prediction
  interval of the figures that noise alone gives (`dpfed.runs.noise_alone`). The errors from the draw of records and from noise
  are added as if they were independent. As the spread of the figures of noise alone includes a part of the error from the draw,
  the interval of a run without signal is too wide: it excludes zero in about one of 100 cases, not in five of 100.

The intervals do not cover how trained models vary from run to run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri, stdtrit  # quantiles; scipy.stats has them too, but takes a second to import

CONFIDENCE = 0.95

Interval = tuple[float, float]


@dataclass(frozen=True)
class Outcomes:
    """The outcome of each query.

    Attributes:
        values: Outcomes, float64 ``(n,)``: 1 right, 0 wrong.
        clusters: Cluster numbers, int64 ``(n,)``, equal for queries that belong together.

    Raises:
        ValueError: If the shapes differ, or there is no query.
    """

    values: np.ndarray
    clusters: np.ndarray

    def __post_init__(self) -> None:
        if self.values.shape != self.clusters.shape or self.values.ndim != 1 or not len(self.values):
            raise ValueError(
                f"expected values and clusters of shape (n,), n >= 1, got {self.values.shape} and {self.clusters.shape}"
            )

    def figure(self) -> float:
        """Returns the fraction of right answers."""
        return float(self.values.mean())

    def interval(self) -> Interval:
        """Returns the 95% interval of the fraction of right answers: its lower and upper end, in [0, 1]."""
        return wilson(self.figure(), _effective(self.values, self.clusters))

    def change_from(self, before: Outcomes, noise: Sequence[float] = ()) -> Interval:
        """Returns the 95% interval of the fraction of right answers minus another model's fraction on the same queries.

        Args:
            before: Outcomes of the same queries with the other model.
            noise: Fractions of right answers to these queries, one for each model whose weights noise alone may have produced
                (`dpfed.runs.noise_alone`); none, or at least two.

        Raises:
            ValueError: If the clusters of the queries differ, or `noise` has only one figure.
        """
        if not np.array_equal(self.clusters, before.clusters):
            raise ValueError("a change needs two figures on the same queries")
        change = _paired(self.values - before.values, self.clusters)
        return beyond_noise(change, self.figure() - before.figure(), noise) if noise else change


def wilson(fraction: float, count: float) -> Interval:
    """Returns Wilson's 95% interval of a fraction among `count` independent draws; `count` need not be a whole number."""
    z = ndtri((1 + CONFIDENCE) / 2)
    middle, scale = fraction + z**2 / (2 * count), 1 + z**2 / count
    half = z * math.sqrt(fraction * (1 - fraction) / count + z**2 / (4 * count**2))
    return max(0.0, min(fraction, (middle - half) / scale)), min(1.0, max(fraction, (middle + half) / scale))


def apart(after: float, after_interval: Interval, before: float, before_interval: Interval) -> Interval:
    """Returns the 95% interval of ``after - before``, two figures that were measured on independent draws (Newcombe 1998)."""
    change = after - before
    down = math.hypot(after - after_interval[0], before_interval[1] - before)
    up = math.hypot(after_interval[1] - after, before - before_interval[0])
    return change - down, change + up


def beyond_noise(change: Interval, figure: float, draws: Sequence[float]) -> Interval:
    """Returns the 95% interval of a change, widened by the spread of the figures that noise alone gives.

    Args:
        change: Interval of the change over the draw of held-out records.
        figure: The change itself.
        draws: Figures of models whose weights noise alone may have produced, at least two.

    Raises:
        ValueError: If there are fewer than two figures, which have no spread.
    """
    count = len(draws)
    if count < 2:
        raise ValueError(f"expected the figures of at least two models of noise alone, got {count}")
    spread = float(np.std(draws, ddof=1)) * math.sqrt(1 + 1 / count)
    half = float(stdtrit(count - 1, (1 + CONFIDENCE) / 2)) * spread
    down, up = math.hypot(figure - change[0], half), math.hypot(change[1] - figure, half)
    return max(-1.0, figure - down), min(1.0, figure + up)


def _effective(values: np.ndarray, clusters: np.ndarray) -> float:
    """Returns the number of independent queries whose fraction of hits would vary as much as that of these clustered queries.

    It is at most the number of queries.
    """
    count, fraction = len(values), float(values.mean())
    sums, sizes = _by_cluster(values, clusters)
    if len(sums) == count:
        return float(count)
    if len(sums) == 1:
        return 1.0
    variance = _variance(sums - fraction * sizes, count)
    if variance <= 0:  # all right or all wrong: the agreement within clusters is unknown, so each cluster counts once
        return float(len(sums))
    return min(float(count), max(1.0, fraction * (1 - fraction) / variance))


def _paired(differences: np.ndarray, clusters: np.ndarray) -> Interval:
    """Returns the 95% interval of the mean of paired differences, each -1, 0 or 1."""
    count, change = len(differences), float(differences.mean())
    sums, sizes = _by_cluster(differences, clusters)
    z = ndtri((1 + CONFIDENCE) / 2)
    middle = change * count / (count + 2)
    # Agresti and Min add two queries: half a query is won, half is lost, and one is equal.
    variance = (np.abs(differences).sum() + 1 - differences.sum() ** 2 / (count + 2)) / (count + 2) ** 2
    half = z * math.sqrt(max(0.0, variance))
    if 1 < len(sums) < count:
        spread = math.sqrt(_variance(sums - change * sizes, count))
        half = max(half, float(stdtrit(len(sums) - 1, (1 + CONFIDENCE) / 2)) * spread)
    if len(sums) == 1 < count:
        half = 1.0  # one cluster says nothing about others
    return max(-1.0, min(change, middle - half)), min(1.0, max(change, middle + half))


def _variance(residuals: np.ndarray, count: int) -> float:
    """Returns the variance of the mean of the values of `count` queries that are drawn in clusters.

    Args:
        residuals: For each cluster, the sum of its values, minus the mean of all values times the cluster's number of queries.
        count: Number of queries in all clusters.
    """
    return float(len(residuals) / (len(residuals) - 1) * np.square(residuals).sum() / count**2)


def _by_cluster(values: np.ndarray, clusters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the sum and the number of the values of each cluster."""
    _, number, sizes = np.unique(clusters, return_inverse=True, return_counts=True)
    return np.bincount(number, weights=values), sizes
