"""From the scores of canaries to lower bounds on epsilon, in two forms each.

`Shown.epsilon` holds for every mechanism: none with a smaller epsilon, at the same delta, is compatible with the outcome.
`Shown.noise` is the f-DP form: an upper bound on sigma, in the family of the plan's own mechanism. It uses the whole trade-off
function, which the plan claims, and so says more.

What guesses about many canaries show, after a single run (Steinke, Nasr and Jagielski 2023).

m canaries are in the run or not, each by a fair coin of its own. Whoever sees what the run released guesses the coins of some
of them, and abstains from the others. Differential privacy limits how many of the guesses can be right. So one run is enough,
and no training is repeated. Two forms of the limit:

* (epsilon, delta): Steinke et al., theorem 5.2;
* f-DP: Mahloujifar, Melis and Chaudhuri 2024. It takes the whole trade-off function, and is tighter.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy import stats

from dpfed.audit.rates import best_threshold, clopper_pearson, least_epsilon
from dpfed.audit.trade_off import Family, TradeOff, trade_off

# Guesses of a run: what share of the canaries, and whether from both ends of the scores or the upper one only.
_GUESSES = ((1.0, True), (0.5, True), (0.25, True), (0.125, True), (0.5, False), (0.25, False), (0.125, False))
_THRESHOLDS = 200
_FIRST = 0.6  # of the error, for the noisy sums themselves
_SAME = 1e-2  # of two scores, which are logarithms of likelihood ratios


@dataclass(frozen=True)
class Shown:
    """A lower bound.

    Attributes:
        channel: where it was seen.
        epsilon: at the delta that was asked for; 0: nothing.
        noise: an upper bound on the noise multiplier; infinity: nothing.
        guesses: how many were made, or experiments measured.
        right: how many were right, or the threshold's true positive rate.
    """

    channel: str
    epsilon: float
    noise: float
    guesses: int
    right: float


def shares(scores: Mapping[str, np.ndarray], error: float) -> dict[str, tuple[np.ndarray, float]]:
    """The channels that are looked at, each with its share of the error: the first gets most.

    One that says what the first says, as an optimizer's first moment does in a sound run, is not looked at twice.
    """
    first, *others = scores
    other = [name for name in others if np.abs(scores[name] - scores[first]).max() > _SAME]
    parts = {first: _FIRST if other else 1.0, **dict.fromkeys(other, (1 - _FIRST) / max(1, len(other)))}
    return {name: (scores[name], error * part) for name, part in parts.items()}


def of_one_run(scores: Mapping[str, np.ndarray], coins: np.ndarray, family: Family, delta: float, error: float) -> list[Shown]:
    """What the canaries of one run show, by Steinke et al. and by Mahloujifar et al.; see `dpfed.audit.lower_bounds`.

    Args:
        scores: ``(m,)`` for each channel.
        coins: ``(m,)`` bool.
        family: the claim, for all steps of the run.
        delta: of the claim.
        error: probability that any result of a form is too high.
    """
    found = []
    for channel, (values, part) in shares(scores, error).items():
        each = part / len(_GUESSES)
        order = np.argsort(-values, kind="stable")
        outcomes = [_guessed(coins[order], *guess) for guess in _GUESSES]
        count = len(coins)
        epsilon, guesses, right = max((epsilon_shown(count, r, v, delta, each), r, v) for r, v in outcomes)
        noise = family.noise_shown(functools.partial(_all_compatible, outcomes=outcomes, canaries=count, error=each))
        found.append(Shown(channel, epsilon, noise, guesses, right))
    return found


def _all_compatible(curve: TradeOff, outcomes: list[tuple[int, int]], canaries: int, error: float) -> bool:
    return all(compatible(curve, canaries, guesses, right, error) for guesses, right in outcomes)


def _guessed(ordered: np.ndarray, share: float, both: bool) -> tuple[int, int]:
    """Number of guesses, and of right ones, of coins in the order of their scores."""
    count = max(1, int(len(ordered) * share) // (2 if both else 1))
    right = ordered[:count].sum() + ((~ordered[-count:]).sum() if both else 0)
    return count * (2 if both else 1), int(right)


def of_repetitions(
    scores: Mapping[str, np.ndarray], there: np.ndarray, known: np.ndarray, family: Family, delta: float, error: float
) -> list[Shown]:
    """What repeated experiments show: a threshold is chosen on a part of them, and its rates are measured on the rest.

    Args:
        scores: ``(n,)`` for each channel; experiments do not depend on each other.
        there: ``(n,)`` bool, whether the canary was there.
        known: ``(n,)`` bool, the part on which the threshold is chosen.
        family: the claim, for one experiment.
        delta: of the claim.
        error: probability that any result of a form is too high.
    """
    found = []
    for channel, (values, each) in shares(scores, error).items():
        yes, no = values[known & there], values[known & ~there]
        measured = values[~known & there], values[~known & ~there]
        epsilon = float(least_epsilon(*_counts(*measured, best_threshold(yes, no, delta, each)), delta, each))
        true, members, false, others = _counts(*measured, _telling(yes, no, family, each))
        low, high = _rates(true, members, false, others, each)
        noise = family.noise_shown(functools.partial(_reachable, low, high))
        found.append(Shown(channel, epsilon, noise, members + others, true / max(1, members)))
    return found


def _reachable(tpr: np.ndarray, fpr: np.ndarray, curve: TradeOff) -> bool:
    return bool((tpr <= curve.most_tpr(fpr)).all())


def _counts(yes: np.ndarray, no: np.ndarray, threshold: float) -> tuple[int, int, int, int]:
    return int((yes > threshold).sum()), len(yes), int((no > threshold).sum()), len(no)


def _rates(
    true: np.ndarray | int, members: int, false: np.ndarray | int, others: int, error: float
) -> tuple[np.ndarray, np.ndarray]:
    """Lower bound of the true positive rate, upper bound of the false positive rate."""
    return clopper_pearson(true, members, error / 2)[0], clopper_pearson(false, others, error / 2)[1]


def _telling(yes: np.ndarray, no: np.ndarray, family: Family, error: float) -> float:
    """The threshold at which these scores rule out the most noise."""
    pooled = np.unique(np.concatenate([yes, no]))
    thresholds = pooled[np.unique(np.linspace(0, len(pooled) - 1, _THRESHOLDS).astype(int))]
    true, false = (len(x) - np.searchsorted(np.sort(x), thresholds, side="right") for x in (yes, no))
    low, high = _rates(true, len(yes), false, len(no), error)
    least = family.noise_shown(functools.partial(_reachable, low, high))
    margin = low - trade_off(min(least, family.most), family.rate, family.steps).most_tpr(high)
    return float(thresholds[margin.argmax()])


_MOST = 100.0  # epsilon; no audit shows as much
_WITHIN = 1e-4  # of epsilon


def p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Most probability that so many guesses are right, under (epsilon, delta)-differential privacy.

    Without delta, each guess is right with probability e^epsilon / (1 + e^epsilon) at most, whatever came of the others. Delta
    adds a failure for each canary, which can lift the number of right guesses from just below `correct`.

    Args:
        canaries: m.
        guesses: r, fixed beforehand.
        correct: v of them.
        epsilon: of the promise.
        delta: of the promise.
    """
    rate = 1 / (1 + math.exp(-epsilon))
    tail = float(stats.binom.sf(correct - 1, guesses, rate))
    lifts = np.arange(1, correct + 1)
    near = np.cumsum(stats.binom.pmf(correct - lifts, guesses, rate)) / lifts
    return min(1.0, tail + 2 * canaries * delta * float(near.max(initial=0.0)))


def epsilon_shown(canaries: int, guesses: int, correct: int, delta: float, error: float) -> float:
    """The largest epsilon that an outcome rules out, at a delta; 0: it shows nothing.

    Args:
        canaries: m.
        guesses: r, fixed beforehand.
        correct: v of them.
        delta: of the promise.
        error: probability that the result is too high.
    """
    if p_value(canaries, guesses, correct, 0.0, delta) > error:
        return 0.0
    low, high = 0.0, _MOST
    while high - low > _WITHIN:
        middle = (low + high) / 2
        low, high = (middle, high) if p_value(canaries, guesses, correct, middle, delta) <= error else (low, middle)
    return low


def compatible(curve: TradeOff, canaries: int, guesses: int, correct: int, error: float) -> bool:
    """Whether as many right guesses can have a probability above `error`, under a trade-off function.

    Let p_k be the probability of k right guesses. Turning canary i's coin turns "i is guessed right, and at least j guesses
    are" into "i is guessed wrong, and at least j - 1 are right". The trade-off function relates the two; summed over i, and
    by its concavity:

        (1/m) sum_{k >= j} k p_k  <=  most_tpr( (1/m) sum_{k >= j-1} (r - k) p_k )     for every j.

    Suppose that `error` lies on k >= v, where it is the least restrictive on k = v alone. Each j then asks for some
    probability on k = j - 1; going down, the least of it is added. All of it together must not exceed 1.

    Args:
        curve: what is promised.
        canaries: m.
        guesses: r, fixed beforehand.
        correct: v of them.
        error: in (0, 1).
    """
    right, wrong = error * correct / canaries, error * (guesses - correct) / canaries  # the two sums, from j on
    for number in range(correct - 1, -1, -1):
        needed = max(wrong, curve.least_fpr(min(right, 1.0)))
        if needed == wrong:
            break
        right += number / (guesses - number) * (needed - wrong)
        wrong = needed
    return right + wrong <= guesses / canaries * (1 + 1e-9)
