"""Trade-off functions: the highest true positive rate of any attack on a private mechanism, at every false positive rate.

A mechanism is (epsilon, delta(epsilon))-private for every epsilon at once. Each pair bounds an attack by a line (Kairouz et
al. 2015), and all lines together are the mechanism's trade-off function (f-DP; Dong, Roth and Su 2022). An attack that exceeds
the trade-off function of a claim at any false positive rate contradicts the claim.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import stats

from dpfed.privacy.loss_grid import fitting_interval

_EPSILONS = np.concatenate([[0.0], np.geomspace(1e-3, 700.0, 1200)])
_NOTCHES = 64  # steps from a noise multiplier to its double: about one percent each
_LEAST, _MOST = -3 * _NOTCHES, 4 * _NOTCHES  # from an eighth of the claimed noise to sixteen times as much
_INTERVAL, _POINTS = 1e-3, 1 << 20  # interval and largest size of the grid of privacy losses


@dataclass(frozen=True)
class TradeOff:
    """A promise (epsilon, delta) for every epsilon, which defines a trade-off function.

    Attributes:
        epsilons: Values of epsilon, ``(n,)``, at least 0.
        deltas: Delta at each epsilon, ``(n,)``.
    """

    epsilons: np.ndarray
    deltas: np.ndarray

    def most_tpr(self, fpr: float | np.ndarray) -> np.ndarray:
        """Returns the highest true positive rate at a false positive rate, in the shape of `fpr`."""
        with np.errstate(over="ignore"):
            a, grown, shrunk = np.asarray(fpr, float)[..., None], np.exp(self.epsilons), np.exp(-self.epsilons)
            bounds = np.minimum(a * grown + self.deltas, 1 - shrunk * (1 - self.deltas - a))
        return np.minimum(bounds.min(-1), 1.0)

    def epsilon(self, delta: float) -> float:
        """Returns the epsilon at a delta, rounded down to the next value in `epsilons`."""
        above = np.flatnonzero(self.deltas > delta)
        return float(self.epsilons[above[-1]]) if len(above) else 0.0


@functools.lru_cache(maxsize=128)
def trade_off(noise_multiplier: float, rate: float, steps: int) -> TradeOff:
    """Returns the trade-off function of Poisson-sampled Gaussian steps; approximations can only raise it.

    Args:
        noise_multiplier: Noise multiplier, sigma.
        rate: Sampling rate, q.
        steps: Number of steps, T.
    """
    if steps == 1:
        return TradeOff(_EPSILONS, _deltas_of_one(noise_multiplier, rate))
    from dp_accounting.pld import privacy_loss_distribution as losses

    interval = fitting_interval(noise_multiplier, rate, steps, _INTERVAL, _POINTS) or 64 * _INTERVAL
    one_step = losses.from_gaussian_mechanism(noise_multiplier, value_discretization_interval=interval, sampling_prob=rate)
    return TradeOff(_EPSILONS, np.clip(one_step.self_compose(steps).get_delta_for_epsilon(_EPSILONS), 0.0, 1.0))


def _deltas_of_one(sigma: float, rate: float) -> np.ndarray:
    """Computes delta of one step at every epsilon, in closed form, when a record is added or removed.

    The mixture (1 - q) N(0, sigma^2) + q N(1, sigma^2) and N(0, sigma^2) have a monotone likelihood ratio. So the worst set of
    outcomes is a half-line that starts where the ratio is e^epsilon.
    """

    def mixed(tail: Callable[[np.ndarray], np.ndarray], x: np.ndarray) -> np.ndarray:
        return (1 - rate) * tail(x / sigma) + rate * tail((x - 1) / sigma)

    # log((e^epsilon - 1 + q) / q), which does not overflow.
    above = 0.5 + sigma**2 * (_EPSILONS + np.log1p(-(1 - rate) * np.exp(-_EPSILONS)) - math.log(rate))
    removed = mixed(stats.norm.sf, above) - np.exp(_EPSILONS + stats.norm.logsf(above / sigma))
    with np.errstate(divide="ignore", invalid="ignore"):
        below = 0.5 + sigma**2 * np.log(np.maximum(np.exp(-_EPSILONS) - 1 + rate, 0.0) / rate)
        added = np.where(
            np.isfinite(below), stats.norm.cdf(below / sigma) - np.exp(_EPSILONS) * mixed(stats.norm.cdf, below), 0
        )
    return np.clip(np.maximum(removed, added), 0.0, 1.0)


@dataclass(frozen=True)
class Family:
    """A claimed mechanism, and its variants with more or less noise.

    Attributes:
        noise_multiplier: Claimed noise multiplier, sigma.
        rate: Sampling rate in the accounting, q.
        steps: Number of steps, T.
    """

    noise_multiplier: float
    rate: float
    steps: int

    @property
    def claimed(self) -> TradeOff:
        """Trade-off function of the claim."""
        return self.at(0)

    @property
    def most(self) -> float:
        """Largest noise multiplier that is tried."""
        return self._multiplier(_MOST)

    def at(self, notch: int) -> TradeOff:
        """Returns the trade-off function with 2^(notch/64) times the claimed noise."""
        return trade_off(self._multiplier(notch), self.rate, self.steps)

    def _multiplier(self, notch: int) -> float:
        return self.noise_multiplier * 2 ** (notch / _NOTCHES)

    def noise_shown(self, compatible: Callable[[TradeOff], bool]) -> float:
        """Returns an upper bound on the noise multiplier from an outcome, rounded up; infinity: the outcome gives no bound.

        Args:
            compatible: Function that returns whether the outcome is possible under a trade-off function. An outcome that
                is possible must also be possible under the functions of less noise.
        """
        low, high = (0, _MOST) if compatible(self.claimed) else (_LEAST, 0)
        if compatible(self.at(_MOST)):
            return np.inf
        if high == 0 and not compatible(self.at(_LEAST)):
            return self._multiplier(_LEAST)
        while high - low > 1:  # compatible at low, and not at high
            middle = (low + high) // 2
            low, high = (middle, high) if compatible(self.at(middle)) else (low, middle)
        return self._multiplier(high)
