"""How large the grid is on which the privacy losses of many steps are added up, before any of it is computed.

The grid's points decide time and memory of PLD accounting: a million take half a second, and careless numbers ask for billions.
"""

from __future__ import annotations

import functools
import math

import numpy as np

ROUNDING = 100 * float(np.finfo(np.float64).eps)  # per step; delta must be above it, so that rounding is a hundredth of it
_ONE = 14  # a point of a single step's losses takes as long as so many of the composed ones
# dp_accounting takes (points of one step) ** steps, an integer of millions of digits, to see that a sparse grid will not do.
_SPARSE, _BITS = 1000, 2.7e6  # from this number of bits on, that takes as long as a million points
_COARSEST = 64.0  # times the interval that is wanted
_TAIL = math.log(2e15)  # dp_accounting cuts off tails of 1e-15
_SAMPLES = 4001


def fitting_interval(noise_multiplier: float, sampling_rate: float, steps: int, wanted: float, points: int) -> float | None:
    """The wanted interval, or the least of its doubles at which the work is that of so many points; ``None``: none.

    Args:
        noise_multiplier: sigma.
        sampling_rate: q.
        steps: T.
        wanted: interval of the privacy loss.
        points: at most so many.
    """
    interval = wanted
    while interval <= _COARSEST * wanted:
        one, composed = grid_points(noise_multiplier, sampling_rate, steps, interval)
        power = 1e6 * (steps * math.log2(one) / _BITS) ** 1.6 if one <= _SPARSE else 0.0
        if _ONE * one + composed + power <= points:
            return interval
        interval *= 2
    return None


@functools.lru_cache(maxsize=256)
def grid_points(noise_multiplier: float, sampling_rate: float, steps: int, interval: float) -> tuple[float, float]:
    """About how many points the losses of one step, and those of all steps, take on dp_accounting's grid.

    The same Chernoff bounds, at the same orders, as `dp_accounting.pld.common.compute_self_convolve_bounds` takes, on a sampled
    distribution of the loss.

    Returns:
        Points of one step, and of all.
    """
    sigma, q = noise_multiplier, sampling_rate
    x = np.linspace(-10 * sigma, 1 + 10 * sigma, _SAMPLES)
    none = math.log1p(-q) if q < 1 else -math.inf
    loss = np.logaddexp(none, math.log(q) + (2 * x - 1) / (2 * sigma**2))
    log_mass = np.logaddexp(none - x**2 / (2 * sigma**2), math.log(q) - (x - 1) ** 2 / (2 * sigma**2))
    log_mass -= _log_sum(log_mass)
    place = (loss - loss[0]) / interval
    below, rest = np.floor(place), place - np.floor(place)  # a loss between two points is shared out between them
    one = max(float(place[-1]) + 1, 3.0)
    upper, lower = (one - 1) * steps, 0.0
    for order in np.arange(1, 21) / one:
        for sign in (1, -1):
            shared = np.log1p(rest * np.expm1(sign * order))
            bound = (steps * _log_sum(log_mass + sign * order * below + shared) + _TAIL) / order
            upper, lower = (min(upper, bound), lower) if sign > 0 else (upper, max(lower, -bound))
    return one, upper - lower


def _log_sum(logs: np.ndarray) -> float:
    most = float(logs.max())
    return most + math.log(float(np.exp(logs - most).sum()))
