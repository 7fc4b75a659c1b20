"""Epsilon of a composed, Poisson-subsampled Gaussian mechanism, and the noise that a promise needs.

A step is ``Poisson(q, Gaussian(sigma))`` under add-or-remove-one adjacency. The noise multiplier `sigma` is relative to the
step's sensitivity, whatever bounds that sensitivity, so nothing here knows of groups or clip norms.
"""

from __future__ import annotations

import functools
import logging
import math
from typing import Literal

import dp_accounting
from dp_accounting.mechanism_calibration import NoBracketIntervalFoundError
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from dpfed.errors import UserError

Accountant = Literal["pld", "rdp"]

# The RDP accountant leaves out orders that do not converge, which can only raise its bound: not worth a warning each.
logging.getLogger("absl").setLevel(logging.ERROR)

_ADJACENCY = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
# The calibrated multiplier is rounded UP to this grid, so the promise holds for the number that is shown and stored.
_GRID = 1e-4
LEAST_NOISE = 0.1  # epsilon is in the thousands by then, and accounting takes ever longer
# Discretisation of the privacy loss. The result is an upper bound at any interval; this one is within 0.02% of the limit
# for the paper's settings (its Table 9) at a tenth of the library default's time.
_FINE, _FINEST = 1e-3, 1e-5


def default_delta(records: int) -> float:
    """1/(N ln N), the paper's choice (DP-GCL, appendix B.1), and never more than 1/N, as it would be for two records."""
    return 1.0 / (records * max(1.0, math.log(records)))


def _fresh(accountant: Accountant, fixed_of: int | None, interval: float = _FINE) -> dp_accounting.PrivacyAccountant:
    if fixed_of is not None:
        if accountant == "pld":
            raise UserError(
                "samples of fixed size, drawn without replacement, are accounted for by RDP (Wang et al. 2019): set "
                "privacy.accountant to 'rdp'."
            )
        return RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    if accountant == "pld":
        return PLDAccountant(_ADJACENCY, value_discretization_interval=interval)
    return RdpAccountant(neighboring_relation=_ADJACENCY)


def _event(noise_multiplier: float, sampling_rate: float, steps: int, fixed_of: int | None) -> dp_accounting.DpEvent:
    release = dp_accounting.GaussianDpEvent(noise_multiplier)
    if fixed_of is None:
        step = dp_accounting.PoissonSampledDpEvent(sampling_rate, release)
    else:
        step = dp_accounting.SampledWithoutReplacementDpEvent(fixed_of, round(sampling_rate * fixed_of), release)
    return dp_accounting.SelfComposedDpEvent(step, steps)


@functools.lru_cache(maxsize=4096)
def epsilon(
    noise_multiplier: float,
    sampling_rate: float,
    steps: int,
    delta: float,
    accountant: Accountant = "pld",
    fixed_of: int | None = None,
) -> float:
    """Epsilon spent by `steps` noisy steps.

    Args:
        noise_multiplier: sigma, standard deviation of the noise over the sensitivity.
        sampling_rate: q, the probability of each record to be in a step.
        steps: T.
        delta: the promise's delta.
        accountant: ``pld`` (privacy loss distributions, tight) or ``rdp`` (Renyi, what the DP-GCL paper uses).
        fixed_of: N where every step takes exactly qN of N records without replacement, and one record is replaced by another
            (Wang et al. 2019); RDP only. ``None``: Poisson samples, and a record is added or removed.

    Returns:
        Epsilon; 0 for no steps, infinity for no noise.
    """
    if steps == 0:
        return 0.0
    if noise_multiplier == 0:
        return math.inf
    event = _event(noise_multiplier, sampling_rate, steps, fixed_of)
    interval = _FINE
    spent = float(_fresh(accountant, fixed_of, interval).compose(event).get_epsilon(delta))
    while accountant == "pld" and interval > max(_FINEST, spent * _FINE):  # small epsilons need a finer grid to be tight
        interval = max(_FINEST, spent * _FINE)
        spent = float(_fresh(accountant, fixed_of, interval).compose(event).get_epsilon(delta))
    return spent


@functools.lru_cache(maxsize=256)
def calibrate(
    target: float,
    sampling_rate: float,
    steps: int,
    delta: float,
    accountant: Accountant = "pld",
    fixed_of: int | None = None,
) -> float:
    """The smallest noise multiplier (on a grid of 1e-4) whose `steps` steps cost at most `target`; see `epsilon`.

    Raises:
        UserError: if no reasonable amount of noise keeps the promise.
    """
    try:
        found = _search(target, sampling_rate, steps, delta, "rdp", _FINE, (LEAST_NOISE, 1.0), fixed_of)
        if accountant == "pld":  # RDP's bound is looser, so its answer lies above, by less than a factor of two as a rule
            found = _search(
                target, sampling_rate, steps, delta, "pld", max(_FINEST, _FINE * min(1.0, target)), (0.5 * found, 0.95 * found)
            )
    except (NoBracketIntervalFoundError, OverflowError) as error:
        least = epsilon(LEAST_NOISE, sampling_rate, steps, delta, "rdp", fixed_of)
        if least <= target:
            raise UserError(
                f"epsilon {target:g} promises nothing: the least noise multiplier there is, {LEAST_NOISE}, keeps epsilon "
                f"{math.ceil(least):,} over {steps} steps at sampling rate {sampling_rate:.3g}. Give a smaller epsilon, such as 8."
            ) from error
        raise UserError(
            f"no noise multiplier keeps epsilon {target} over {steps} steps at sampling rate {sampling_rate:.3g} and delta "
            f"{delta:.3g}: raise epsilon, or lower the batch or the number of steps."
        ) from error
    ticks = math.ceil(found / _GRID)
    while epsilon(ticks * _GRID, sampling_rate, steps, delta, accountant, fixed_of) > target:
        ticks += 1
    return round(ticks * _GRID, 10)


def _search(
    target: float,
    sampling_rate: float,
    steps: int,
    delta: float,
    accountant: Accountant,
    interval: float,
    bracket: tuple[float, float],
    fixed_of: int | None = None,
) -> float:
    return dp_accounting.calibrate_dp_mechanism(
        lambda: _fresh(accountant, fixed_of, interval),
        lambda sigma: _event(sigma, sampling_rate, steps, fixed_of),
        target_epsilon=target,
        target_delta=delta,
        bracket_interval=dp_accounting.LowerEndpointAndGuess(*bracket),
        tol=_GRID / 4,
    )
