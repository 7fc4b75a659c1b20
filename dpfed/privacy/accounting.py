"""Computes the epsilon of many steps of a mechanism, and calibrates the noise to a promised (epsilon, delta).

Both computations take the mechanism's event: an object of dp_accounting that describes the mechanism's draws and noise
(`dpfed.privacy.mechanism`). The noise multiplier sigma is the standard deviation of the noise divided by a release's
sensitivity, so this module needs to know neither groups nor clip norms.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
from typing import TYPE_CHECKING, Literal, get_args

from dpfed.errors import UserError
from dpfed.privacy.loss_grid import ROUNDING, fitting_interval
from dpfed.privacy.mechanism import Mechanism
from dpfed.privacy.plan_checks import plain_number, require, require_within
from dpfed.privacy.promise import round_up

if TYPE_CHECKING:  # dp_accounting takes a second to import, and impossible plans are refused without it
    import dp_accounting

Accountant = Literal["pld", "rdp"]

# The calibrated multiplier is rounded UP to this grid, so the promise holds for the number that is shown and stored.
_GRID = 1e-4
LEAST_NOISE = 0.1  # at this multiplier epsilon is already in the thousands; with less noise, accounting takes ever longer
MOST_NOISE = 1e6  # the signal is a millionth of the noise: nothing is learnt any more
# Discretisation of the privacy loss. The result is an upper bound at any interval; 1e-3 is within 0.02% of the limit
# for the paper's settings (its Table 9) at a tenth of the library default's time.
_FINE, _FINEST = 1e-3, 1e-5
# Largest numbers of grid points. With the first, one epsilon takes about 1 s. With the second, each of the dozen epsilons of a
# search takes a quarter of that.
_POINTS, _POINTS_OF_SEARCH = 1 << 21, 1 << 19
_MOST_TICKS = 100  # largest number of grid steps of 1e-4 by which a search's result may be too low


class Unresolved(UserError):
    """Raised if PLD accounting cannot compute a cost with 64-bit numbers or in acceptable time, or is looser than RDP.

    RDP accounting may be able to compute the cost.
    """


def default_delta(records: int) -> float:
    """Returns the default delta for N records: the smaller of 1/(N ln N) (DP-GCL, appendix B.1) and 1/N.

    The function returns a value for every number of records, even for numbers that a plan refuses later.
    """
    records = min(max(records, 2), 10**12)
    return 1.0 / (records * max(1.0, math.log(records)))


def _fresh(accountant: Accountant, mechanism: Mechanism, interval: float = _FINE) -> dp_accounting.PrivacyAccountant:
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    # The RDP accountant leaves out orders that do not converge. This can only raise its bound, so its warnings are silenced.
    logging.getLogger("absl").setLevel(logging.ERROR)
    relation = mechanism.sampler.relation.of_accountants
    if accountant == "pld":
        return PLDAccountant(relation, value_discretization_interval=interval)
    return RdpAccountant(neighboring_relation=relation)


def _spent(mechanism: Mechanism, steps: int, delta: float, accountant: Accountant, interval: float = _FINE) -> float:
    return float(_fresh(accountant, mechanism, interval).compose(mechanism.event(steps)).get_epsilon(delta))


def _poisson_steps(mechanism: Mechanism, steps: int) -> tuple[float, float, int]:
    """Returns noise multiplier, sampling rate and number of the Poisson-sampled releases that PLD accounting composes.

    Raises:
        UserError: If PLD accounting does not cover the mechanism's sampler.
    """
    same = mechanism.poisson_steps(steps)
    if same is None:
        raise UserError(
            "PLD accounting covers Poisson sampling only, but this mechanism samples otherwise "
            f"({mechanism.sampler.describe('record')}): set privacy.accountant to 'rdp'. [sampling-needs-rdp]"
        )
    return same


def require_resolution(steps: int, delta: float) -> None:
    """Refuses a delta that is not far above the rounding errors of PLD accounting over `steps` steps.

    PLD accounting raises a Fourier transform of the privacy losses to the power of `steps`. So its rounding error, about 2e-16
    of probability for one step, grows with the number of steps. Unless delta is at least a hundred times the error, the
    computed epsilon could be too low.

    Raises:
        Unresolved: If delta is too small; the message names the smallest delta that works.
    """
    if not delta >= ROUNDING * steps:
        raise Unresolved(
            f"PLD accounting works with 64-bit numbers and resolves no delta below {round_up(ROUNDING * steps)} over {steps:,} "
            f"steps, got {round_up(delta)}: set privacy.accountant = 'rdp', or raise delta. [delta-unresolved]"
        )


def _interval(noise_multiplier: float, sampling_rate: float, steps: int, wanted: float, points: int) -> float:
    """Returns the interval of the grid of privacy losses: the wanted one, or a coarser one if the wanted one takes too long.

    On a coarser grid, the computed epsilon is still an upper bound.

    Raises:
        Unresolved: If accounting takes too long at every acceptable interval.
    """
    interval = fitting_interval(noise_multiplier, sampling_rate, steps, wanted, points)
    if interval is None:
        raise Unresolved(
            f"PLD accounting of {steps:,} steps at noise multiplier {noise_multiplier:.4g} and sampling rate "
            f"{sampling_rate:.3g} would take too long (more than the work for {points:,} grid points): set "
            "privacy.accountant = 'rdp', or take more noise or fewer steps. [epsilon-pld-long]"
        )
    return interval


def epsilon(mechanism: Mechanism, steps: int, delta: float, accountant: Accountant = "pld") -> float:
    """Computes the epsilon that a number of steps of a mechanism spend.

    Args:
        mechanism: Mechanism of the run: its sampler and its noise.
        steps: Number of steps, T.
        delta: Delta of the promise.
        accountant: ``pld`` (privacy loss distributions, tight; Poisson samples only) or ``rdp`` (Renyi differential privacy,
            as in the DP-GCL paper).

    Returns:
        Epsilon; 0 if there are no steps, infinity if there is no noise.

    Raises:
        UserError: If the accountant is unknown or does not cover the mechanism's sampler, or `steps` is not a whole number of
            0 or more.
        Unresolved: If PLD accounting cannot compute epsilon; RDP accounting may be able to.
    """
    require(accountant in get_args(Accountant), f"accountant must be 'pld' or 'rdp', got {accountant!r}")
    steps = plain_number("steps", int, steps)
    require_within("steps", steps, 0)
    return _epsilon(_accounted(mechanism), steps, delta, accountant)


@functools.lru_cache(maxsize=4096)
def _epsilon(mechanism: Mechanism, steps: int, delta: float, accountant: Accountant) -> float:
    if steps == 0:
        return 0.0
    if mechanism.noise_multiplier == 0:
        return math.inf
    if accountant == "rdp":
        return _spent(mechanism, steps, delta, accountant)
    multiplier, rate, count = _poisson_steps(mechanism, steps)
    require_resolution(count, delta)
    interval = _interval(multiplier, rate, count, _FINE, _POINTS)
    spent = _spent(mechanism, steps, delta, accountant, interval)
    while interval > 1.01 * max(_FINEST, spent * _FINE):  # small epsilons need a finer grid to be tight
        wanted = max(_FINEST, spent * _FINE)
        finer = fitting_interval(multiplier, rate, count, wanted, _POINTS)
        if finer is None or finer >= interval:  # a finer grid takes too long; the epsilon found so far is an upper bound
            break
        interval = finer
        spent = _spent(mechanism, steps, delta, accountant, interval)
    return spent


def calibrate(target: float, draft: Mechanism, steps: int, delta: float, accountant: Accountant = "pld") -> Mechanism:
    """Finds the smallest noise multiplier (on a grid of 1e-4) at which the mechanism's steps cost at most `target`.

    For long runs, PLD accounting searches on a coarser grid of privacy losses, and may find a slightly larger multiplier.

    Args:
        target: Epsilon that must not be exceeded.
        draft: Mechanism to calibrate; its own noise multiplier is ignored.
        steps: Number of steps, T.
        delta: Delta of the promise.
        accountant: Accountant that computes epsilon, see `epsilon`.

    Returns:
        The mechanism with that noise multiplier.

    Raises:
        UserError: If epsilon exceeds `target` even at the largest noise multiplier, `MOST_NOISE`, or is at most `target` even
            at the smallest, `LEAST_NOISE`; if the search finds no multiplier; or if the accountant does not cover the
            mechanism's sampler.
        Unresolved: If PLD accounting cannot compute epsilon, or its bound is looser than that of RDP accounting; RDP
            accounting may then find a multiplier.
    """
    return _with(draft, _multiplier(target, _with(_accounted(draft), 1.0), steps, delta, accountant))


def _accounted(mechanism: Mechanism) -> Mechanism:
    """Returns the mechanism with the `accounted` sampler, so that mechanisms of equal cost share one entry of a cache."""
    return dataclasses.replace(mechanism, sampler=mechanism.sampler.accounted)


@functools.lru_cache(maxsize=256)
def _multiplier(target: float, draft: Mechanism, steps: int, delta: float, accountant: Accountant) -> float:
    from dp_accounting.mechanism_calibration import NoBracketIntervalFoundError

    numbers = (
        f"over {steps * draft.releases:,} releases at sampling rate {draft.sampler.participation:.3g} "
        f"and delta {round_up(delta)}"
    )
    if accountant == "pld":
        require_resolution(_poisson_steps(draft, steps)[-1], delta)
    least = epsilon(_with(draft, LEAST_NOISE), steps, delta, "rdp")
    if least <= target:
        raise _too_generous(target, least, numbers)
    too_strict = UserError(
        f"no noise multiplier up to {MOST_NOISE:g} keeps epsilon at or below {target!r} {numbers}: raise epsilon, or lower the "
        "batch or the number of steps. [epsilon-too-small]"
    )
    if epsilon(_with(draft, MOST_NOISE), steps, delta, "rdp") > target:
        raise too_strict
    try:
        multiplier = _search(target, draft, steps, delta, "rdp", _FINE, (LEAST_NOISE, 1.0))
    except (NoBracketIntervalFoundError, OverflowError) as error:
        raise too_strict from error
    if accountant == "pld":
        multiplier = _by_pld(target, draft, steps, delta, multiplier, numbers)
    ticks = math.ceil(multiplier / _GRID)
    for tick in range(ticks, ticks + _MOST_TICKS):
        if tick * _GRID > MOST_NOISE:
            raise too_strict
        if epsilon(_with(draft, tick * _GRID), steps, delta, accountant) <= target:
            return round(tick * _GRID, 10)
    if accountant == "pld":
        raise _too_coarse(target, numbers)
    raise UserError(
        f"RDP accounting finds no noise multiplier that keeps epsilon at or below {target!r} {numbers}: give a slightly "
        "different epsilon, or privacy.noise_multiplier instead. [epsilon-rdp-unsettled]"
    )


def _with(draft: Mechanism, noise_multiplier: float) -> Mechanism:
    return dataclasses.replace(draft, noise_multiplier=noise_multiplier)


def _by_pld(target: float, draft: Mechanism, steps: int, delta: float, by_rdp: float, numbers: str) -> float:
    """Returns the noise multiplier that PLD accounting finds, before it is rounded up.

    RDP accounting bounds epsilon less tightly, so the multiplier that it found is an upper limit.
    """
    from dp_accounting.mechanism_calibration import NoBracketIntervalFoundError

    lower = max(LEAST_NOISE, 0.5 * by_rdp)  # PLD usually needs more than half of RDP's multiplier
    wanted = max(_FINEST, _FINE * min(1.0, target))
    while True:
        interval = _interval(*_poisson_steps(_with(draft, lower), steps), wanted, _POINTS_OF_SEARCH)
        spent = _spent(_with(draft, lower), steps, delta, "pld", interval)
        if spent > target:
            break
        if lower == LEAST_NOISE:
            raise _too_generous(target, spent, numbers)
        lower = max(LEAST_NOISE, 0.5 * lower)
    try:
        guess = 0.95 * by_rdp
        guess = guess if guess > lower else 1.05 * lower
        multiplier = _search(target, draft, steps, delta, "pld", interval, (lower, guess))
    except (NoBracketIntervalFoundError, OverflowError) as error:
        raise _too_coarse(target, numbers) from error
    if multiplier > by_rdp + _GRID:
        raise _too_coarse(target, numbers)
    return multiplier


def _too_coarse(target: float, numbers: str) -> Unresolved:
    return Unresolved(
        f"PLD accounting on a grid of acceptable size is looser than RDP for epsilon {target!r} {numbers}: set "
        "privacy.accountant = 'rdp'. [epsilon-pld-coarse]"
    )


def _too_generous(target: float, least: float, numbers: str) -> UserError:
    return UserError(
        f"epsilon {target!r} would need less noise than the smallest allowed: multiplier {LEAST_NOISE} already gives epsilon "
        f"{round_up(least)} {numbers}. Lower epsilon, or train without privacy (bounding.method = 'none'). [epsilon-too-large]"
    )


def _search(
    target: float,
    draft: Mechanism,
    steps: int,
    delta: float,
    accountant: Accountant,
    interval: float,
    bracket: tuple[float, float],
) -> float:
    import dp_accounting

    return dp_accounting.calibrate_dp_mechanism(
        lambda: _fresh(accountant, draft, interval),
        lambda sigma: _with(draft, sigma).event(steps),
        target_epsilon=target,
        target_delta=delta,
        bracket_interval=dp_accounting.LowerEndpointAndGuess(*bracket),
        tol=_GRID / 4,
    )
