"""What guesses about many canaries show, after a single run (Steinke, Nasr and Jagielski 2023).

m canaries are in the run or not, each by a fair coin of its own. Whoever sees what the run released guesses the coins of some
of them, and abstains from the others. Differential privacy limits how many of the guesses can be right. So one run is enough,
and no training is repeated. Two forms of the limit:

* (epsilon, delta): Steinke et al., theorem 5.2;
* f-DP: Mahloujifar, Melis and Chaudhuri 2024. It takes the whole trade-off function, and is tighter.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

from dpfed.audit.trade_off import TradeOff

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
