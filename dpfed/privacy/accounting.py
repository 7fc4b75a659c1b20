"""Epsilon of a composed, Poisson-subsampled Gaussian mechanism, and the noise that a promise needs.

A step is ``Poisson(q, Gaussian(sigma))`` under add-or-remove-one adjacency. The noise multiplier `sigma` is relative to the
step's sensitivity, whatever bounds that sensitivity, so nothing here knows of groups or clip norms.
"""

from __future__ import annotations

import functools
import logging
import math
from typing import TYPE_CHECKING, Literal

from dpfed.errors import UserError
from dpfed.privacy.loss_grid import ROUNDING, fitting_interval
from dpfed.report.promise import round_up

if TYPE_CHECKING:  # it takes a second to import, and a plan that cannot be is refused without
    import dp_accounting

Accountant = Literal["pld", "rdp"]

# The calibrated multiplier is rounded UP to this grid, so the promise holds for the number that is shown and stored.
_GRID = 1e-4
LEAST_NOISE = 0.1  # epsilon is in the thousands by then, and accounting takes ever longer
MOST_NOISE = 1e6  # a signal of a millionth: nothing is learnt any more
# Discretisation of the privacy loss. The result is an upper bound at any interval; this one is within 0.02% of the limit
# for the paper's settings (its Table 9) at a tenth of the library default's time.
_FINE, _FINEST = 1e-3, 1e-5
_POINTS, _POINTS_OF_SEARCH = 1 << 22, 1 << 20  # of the grid: about 2 s for one epsilon, half a second in a search of a dozen
_MOST_TICKS = 100  # by which a search may have come out too low


class Unresolved(UserError):
    """An accountant cannot say, in numbers of 64 bits or in a bearable time, what something costs; another one may."""


def default_delta(records: int) -> float:
    """1/(N ln N), the paper's choice (DP-GCL, appendix B.1), and never more than 1/N, as it would be for two records."""
    return 1.0 / (records * max(1.0, math.log(records)))


def _fresh(accountant: Accountant, fixed_of: int | None, interval: float = _FINE) -> dp_accounting.PrivacyAccountant:
    import dp_accounting
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    # The RDP accountant leaves out orders that do not converge, which can only raise its bound: not worth a warning each.
    logging.getLogger("absl").setLevel(logging.ERROR)
    if fixed_of is not None:
        if accountant == "pld":
            raise UserError(
                "samples of fixed size, drawn without replacement, are accounted for by RDP (Wang et al. 2019): set "
                "privacy.accountant to 'rdp'."
            )
        return RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    adjacency = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    if accountant == "pld":
        return PLDAccountant(adjacency, value_discretization_interval=interval)
    return RdpAccountant(neighboring_relation=adjacency)


def _event(noise_multiplier: float, sampling_rate: float, steps: int, fixed_of: int | None) -> dp_accounting.DpEvent:
    import dp_accounting

    release = dp_accounting.GaussianDpEvent(noise_multiplier)
    if fixed_of is None:
        step = dp_accounting.PoissonSampledDpEvent(sampling_rate, release)
    else:
        step = dp_accounting.SampledWithoutReplacementDpEvent(fixed_of, round(sampling_rate * fixed_of), release)
    return dp_accounting.SelfComposedDpEvent(step, steps)


def require_resolution(steps: int, delta: float) -> None:
    """Refuses what loss distributions cannot resolve: the rounding of `steps` convolutions must be far below delta.

    A transform of the losses is raised to the power of `steps`, so its rounding, about 2e-16 of probability, grows with them.
    Where delta is not a hundred times as much, epsilon could come out too low.

    Raises:
        Unresolved: saying which delta would do.
    """
    if delta < ROUNDING * steps:
        raise Unresolved(
            f"PLD accounting works with 64-bit numbers and resolves no delta below {ROUNDING * steps:.1e} over {steps:,} "
            f"steps, got {round_up(delta)}: set privacy.accountant = 'rdp', or raise delta."
        )


def _interval(noise_multiplier: float, sampling_rate: float, steps: int, wanted: float, points: int) -> float:
    """The grid's interval: the wanted one, or a coarser one (whose result is an upper bound as well) where that takes too long.

    Raises:
        Unresolved: if none will do.
    """
    found = fitting_interval(noise_multiplier, sampling_rate, steps, wanted, points)
    if found is None:
        raise Unresolved(
            f"PLD accounting of {steps:,} steps at noise multiplier {noise_multiplier:.4g} and sampling rate "
            f"{sampling_rate:.3g} takes too long, more than a grid of {points:,} points: set privacy.accountant = 'rdp', or "
            "take more noise or fewer steps."
        )
    return found


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

    Raises:
        Unresolved: if PLD accounting cannot say; RDP can.
    """
    if steps == 0:
        return 0.0
    if noise_multiplier == 0:
        return math.inf
    event = _event(noise_multiplier, sampling_rate, steps, fixed_of)
    if accountant == "rdp" or fixed_of is not None:
        return float(_fresh(accountant, fixed_of).compose(event).get_epsilon(delta))
    require_resolution(steps, delta)
    interval = _interval(noise_multiplier, sampling_rate, steps, _FINE, _POINTS)
    spent = float(_fresh(accountant, None, interval).compose(event).get_epsilon(delta))
    while interval > max(_FINEST, spent * _FINE):  # small epsilons need a finer grid to be tight
        wanted = max(_FINEST, spent * _FINE)
        finer = fitting_interval(noise_multiplier, sampling_rate, steps, wanted, _POINTS)
        if finer is None or finer >= interval:  # it would take too long; what was found is an upper bound
            break
        interval = finer
        spent = float(_fresh(accountant, None, interval).compose(event).get_epsilon(delta))
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
        UserError: if no noise multiplier between `LEAST_NOISE` and `MOST_NOISE` meets the promise.
        Unresolved: if PLD accounting cannot say; RDP can.
    """
    from dp_accounting.mechanism_calibration import NoBracketIntervalFoundError

    numbers = f"over {steps:,} steps at sampling rate {sampling_rate:.3g} and delta {round_up(delta)}"
    if accountant == "pld" and fixed_of is None:
        require_resolution(steps, delta)
    if (least := epsilon(LEAST_NOISE, sampling_rate, steps, delta, "rdp", fixed_of)) <= target:
        raise _too_generous(target, least, numbers)
    too_strict = UserError(
        f"no noise multiplier up to {MOST_NOISE:g} keeps epsilon {target:g} {numbers}: raise epsilon, or lower the batch or "
        "the number of steps."
    )
    if epsilon(MOST_NOISE, sampling_rate, steps, delta, "rdp", fixed_of) > target:
        raise too_strict
    try:
        found = _search(target, sampling_rate, steps, delta, "rdp", _FINE, (LEAST_NOISE, 1.0), fixed_of)
    except (NoBracketIntervalFoundError, OverflowError) as error:
        raise too_strict from error
    if accountant == "pld":
        found = _by_pld(target, sampling_rate, steps, delta, found, numbers)
    ticks = math.ceil(found / _GRID)
    for tick in range(ticks, ticks + _MOST_TICKS):
        if tick * _GRID > MOST_NOISE:
            raise too_strict
        if epsilon(tick * _GRID, sampling_rate, steps, delta, accountant, fixed_of) <= target:
            return round(tick * _GRID, 10)
    raise _too_coarse(target, numbers)


def _by_pld(target: float, sampling_rate: float, steps: int, delta: float, by_rdp: float, numbers: str) -> float:
    """The noise multiplier by PLD, before it is rounded up; RDP's bound is looser, so RDP's answer lies above."""
    from dp_accounting.mechanism_calibration import NoBracketIntervalFoundError

    lower = max(LEAST_NOISE, 0.5 * by_rdp)  # less than a factor of two, as a rule
    wanted = max(_FINEST, _FINE * min(1.0, target))
    while True:
        interval = _interval(lower, sampling_rate, steps, wanted, _POINTS_OF_SEARCH)
        spent = _fresh("pld", None, interval).compose(_event(lower, sampling_rate, steps, None)).get_epsilon(delta)
        if spent > target:
            break
        if lower == LEAST_NOISE:
            raise _too_generous(target, float(spent), numbers)
        lower = max(LEAST_NOISE, 0.5 * lower)
    try:
        found = _search(target, sampling_rate, steps, delta, "pld", interval, (lower, max(0.95 * by_rdp, lower)))
    except (NoBracketIntervalFoundError, OverflowError) as error:
        raise _too_coarse(target, numbers) from error
    if found > by_rdp + _GRID:
        raise _too_coarse(target, numbers)
    return found


def _too_coarse(target: float, numbers: str) -> Unresolved:
    return Unresolved(
        f"PLD accounting on a grid that takes a bearable time is looser than RDP for epsilon {target:g} {numbers}: set "
        "privacy.accountant = 'rdp'."
    )


def _too_generous(target: float, least: float, numbers: str) -> UserError:
    return UserError(
        f"epsilon {target:g} would need less noise than the least there is: multiplier {LEAST_NOISE} already gives epsilon "
        f"{least:.4g} {numbers}. Lower epsilon, or train without privacy (bounding.method = 'none')."
    )


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
    import dp_accounting

    return dp_accounting.calibrate_dp_mechanism(
        lambda: _fresh(accountant, fixed_of, interval),
        lambda sigma: _event(sigma, sampling_rate, steps, fixed_of),
        target_epsilon=target,
        target_delta=delta,
        bracket_interval=dp_accounting.LowerEndpointAndGuess(*bracket),
        tol=_GRID / 4,
    )
