"""Estimates, before the computation, the size of the grid on which PLD accounting composes privacy losses.

Time and memory of PLD accounting depend on the number of grid points. A million points take half a second, and careless
settings would need billions.
"""

from __future__ import annotations

import functools
import math

import numpy as np

ROUNDING = 100 * float(np.finfo(np.float64).eps)  # least delta per step, so that rounding errors are a hundredth of delta
_ONE = 14  # time for a point of a single step's losses, over the time for a point of the composed losses
# dp_accounting computes (points of one step) ** steps, an integer of millions of digits, to decide against a sparse grid.
_SPARSE, _BITS = 1000, 2.7e6  # with this number of bits, that computation takes as long as a million points
_COARSEST = 64.0  # largest interval, as a multiple of the wanted one
_TAIL = math.log(2e15)  # dp_accounting cuts off tails of 1e-15
_SAMPLES = 4001


def fitting_interval(noise_multiplier: float, sampling_rate: float, steps: int, wanted: float, points: int) -> float | None:
    """Returns the wanted interval, or the smallest power-of-two multiple of it at which accounting is fast enough.

    Args:
        noise_multiplier: Noise multiplier, sigma.
        sampling_rate: Sampling probability, q.
        steps: Number of steps, T.
        wanted: Wanted distance between neighbouring grid points, in units of the privacy loss.
        points: Largest acceptable amount of work, in units of the work for one grid point of the composed losses.

    Returns:
        The interval; ``None`` if no interval up to 64 times the wanted one is fast enough.
    """
    interval = wanted
    while interval <= _COARSEST * wanted:
        single, composed = grid_points(noise_multiplier, sampling_rate, steps, interval)
        power = 1e6 * (steps * math.log2(single) / _BITS) ** 1.6 if single <= _SPARSE else 0.0
        if _ONE * single + composed + power <= points:
            return interval
        interval *= 2
    return None


@functools.lru_cache(maxsize=256)
def grid_points(noise_multiplier: float, sampling_rate: float, steps: int, interval: float) -> tuple[float, float]:
    """Estimates the number of points on dp_accounting's grid, for the losses of one step and for the sums over all steps.

    The estimate uses the Chernoff bounds of `dp_accounting.pld.common.compute_self_convolve_bounds`, at the same orders, on the
    distribution of the loss, evaluated at a few thousand points.

    Args:
        noise_multiplier: Noise multiplier, sigma.
        sampling_rate: Sampling probability, q.
        steps: Number of steps, T.
        interval: Distance between neighbouring grid points, in units of the privacy loss.

    Returns:
        Number of points of one step, and of all steps.
    """
    sigma, q = noise_multiplier, sampling_rate
    x = np.linspace(-10 * sigma, 1 + 10 * sigma, _SAMPLES)
    none = math.log1p(-q) if q < 1 else -math.inf
    loss = np.logaddexp(none, math.log(q) + (2 * x - 1) / (2 * sigma**2))
    log_mass = np.logaddexp(none - x**2 / (2 * sigma**2), math.log(q) - (x - 1) ** 2 / (2 * sigma**2))
    log_mass -= _log_sum(log_mass)
    place = (loss - loss[0]) / interval
    below, rest = np.floor(place), place - np.floor(place)  # the mass of a loss between two points is split between them
    single = max(float(place[-1]) + 1, 3.0)
    upper, lower = (single - 1) * steps, 0.0
    for order in np.arange(1, 21) / single:
        for sign in (1, -1):
            shared = np.log1p(rest * np.expm1(sign * order))
            bound = (steps * _log_sum(log_mass + sign * order * below + shared) + _TAIL) / order
            upper, lower = (min(upper, bound), lower) if sign > 0 else (upper, max(lower, -bound))
    return single, upper - lower


def _log_sum(logs: np.ndarray) -> float:
    most = float(logs.max())
    return most + math.log(float(np.exp(logs - most).sum()))
