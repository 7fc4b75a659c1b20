"""Decides whether a further run fits into a privacy budget, even if runs depend on results of earlier runs (a privacy filter).

Every run costs a Renyi divergence at each of a few orders. At one order the costs of runs add up, even if a run was chosen
adaptively from earlier results (Feldman and Zrnic 2021; Lecuyer 2021). The delta of a budget (epsilon, delta) is divided among
orders that are fixed before the first release. So each order has a limit of its own. A run is admitted if, at one order or
more, the total cost stays within the limit. To give the whole delta to every order would be wrong: docs/guarantee.md has the
proof of the filter, and an attack on that variant.
"""

from __future__ import annotations

import functools
import logging
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dpfed.privacy.mechanism import Mechanism

RenyiCurve = tuple[float, ...]

# The main order is the best one for Gaussian noise, to which many noisy steps tend. Runs of few steps, or of steps with little
# noise, cost less at smaller orders. The largest orders are for a budget that is lowered later.
# Pairs: (order - 1) / (main order - 1), and share of delta.
_ORDERS = ((0.35, 0.1), (0.5, 0.1), (0.65, 0.1), (0.82, 0.1), (1.0, 0.5), (1.6, 0.06), (3.0, 0.02), (6.0, 0.02))
_MAIN_SHARE = 0.5
_TENTHS_UP_TO, _MOST = 11.0, 1024.0  # orders from 11 on are whole numbers, up to 1024: accountants take long for others


@dataclass(frozen=True)
class RenyiFilter:
    """A budget, and the Renyi orders at which costs are counted.

    Args:
        epsilon: Epsilon of all releases together.
        delta: Delta of all releases together.
        orders: Renyi orders alpha_j > 1, fixed before the first release.
        shares: Fractions of delta w_j > 0, one for each order; they add up to at most 1.

    Raises:
        ValueError: If a number is out of its range, or orders and shares differ in number.
    """

    epsilon: float
    delta: float
    orders: tuple[float, ...]
    shares: tuple[float, ...]

    def __post_init__(self) -> None:
        # Each condition is written so that NaN, which a damaged budget ledger may hold, fails it.
        if not (0 < self.epsilon < math.inf and 0 < self.delta < 1):
            raise ValueError(
                f"epsilon must be positive and finite, and delta must lie between 0 and 1; got {self.epsilon} and {self.delta}"
            )
        if len(self.orders) != len(self.shares) or not all(1 < order < math.inf for order in self.orders):
            raise ValueError(
                "every order must be above 1 and finite, and must have a share of delta; got the orders "
                f"{self.orders} and the shares {self.shares}"
            )
        if not all(0 < share for share in self.shares) or not math.fsum(self.shares) <= 1 + 1e-12:
            raise ValueError(f"the shares of delta must be positive and add up to at most 1; got {self.shares}")

    @classmethod
    def of(cls, epsilon: float, delta: float) -> RenyiFilter:
        """Makes the filter of a new budget."""
        main = max(_grid(), key=lambda order: limit(epsilon, _MAIN_SHARE * delta, order) / order)
        orders = tuple(_rounded(1 + part * (main - 1)) for part, _ in _ORDERS)
        return cls(epsilon, delta, orders, tuple(share for _, share in _ORDERS))

    @functools.cached_property
    def limits(self) -> RenyiCurve:
        """Largest cost that the budget allows, for each order; a negative limit allows nothing at its order."""
        orders = zip(self.orders, self.shares, strict=True)
        return tuple(limit(self.epsilon, share * self.delta, order) for order, share in orders)

    def part(self, cost: RenyiCurve) -> float:
        """Returns the fraction of the budget that a cost takes; the fraction is above 1 if the cost does not fit.

        The fraction differs from order to order. The smallest of these fractions is returned, because a cost has to fit at one
        order only.

        Args:
            cost: Cost at each order.
        """
        known = (spent if spent >= 0 else math.inf for spent in cost)  # NaN never fits, and a negative cost returns no budget
        parts = (spent / most for spent, most in zip(known, self.limits, strict=True) if most > 0)
        return min(parts, default=0.0 if not any(cost) else math.inf)

    def admits(self, cost: RenyiCurve) -> bool:
        """Returns whether the budget admits releases of this total cost."""
        return self.part(cost) <= 1

    def times(self, spent: RenyiCurve, once: RenyiCurve) -> int:
        """Returns how many further releases, all of the same cost, fit into the rest of the budget; at most `sys.maxsize`.

        Args:
            spent: Cost so far at each order.
            once: Cost of one further release at each order; 0 if it is too small for a floating-point number.
        """
        most = 0
        for limit_, before, each in zip(self.limits, spent, once, strict=True):
            if 0 <= each < math.inf and before <= limit_ and limit_ > 0:
                count = math.floor(min((limit_ - before) / each if each else math.inf, sys.maxsize))
                most = max(most, count - (before + count * each > limit_))  # the division may have rounded up
        return most

    def curve(self, mechanism: Mechanism, steps: int) -> RenyiCurve:
        """Returns the cost of a number of steps of a mechanism at each order; see `renyi_curve`."""
        return renyi_curve(mechanism, steps, self.orders)


def limit(epsilon: float, delta: float, order: float) -> float:
    """Returns the largest Renyi divergence of order `order` that implies (epsilon, delta).

    The bound is proposition 12 of Canonne, Kamath and Steinke (2020), solved for the divergence.
    """
    if delta == 0:  # a share of the smallest float
        return -math.inf
    return epsilon - math.log1p(-1 / order) + math.log(delta * order) / (order - 1)


@functools.lru_cache(maxsize=4096)
def renyi_curve(mechanism: Mechanism, steps: int, orders: tuple[float, ...]) -> RenyiCurve:
    """Returns, at each order, a bound on the Renyi divergence of a number of steps, in both directions.

    The bound is infinity if no bound is known. For a fractional order the accountant computes a series, and returns infinity if
    the series does not converge. For many mechanisms this happens at all orders near 1, and these orders decide how much fits
    into a budget with a large epsilon. At such an order, the bound at a higher order is used instead, such as the next integer,
    at which the series has finitely many terms. A Renyi divergence does not decrease with its order (van Erven and Harremoes
    2014, theorem 3), so a bound at a higher order holds at a lower order as well, step by step, as the filter's proof requires.
    """
    if steps == 0:
        return (0.0,) * len(orders)
    if mechanism.noise_multiplier == 0:
        return (math.inf,) * len(orders)
    known = dict(zip(orders, _accounted(mechanism, steps, orders), strict=True))
    lacking = [order for order, cost in known.items() if cost == math.inf]
    if whole := tuple(sorted({float(math.ceil(order)) for order in lacking} - known.keys())):
        known |= dict(zip(whole, _accounted(mechanism, steps, whole), strict=True))
    higher = {order: min(cost for other, cost in known.items() if other >= order) for order in lacking}
    return tuple(higher.get(order, known[order]) for order in orders)


def _accounted(mechanism: Mechanism, steps: int, orders: tuple[float, ...]) -> RenyiCurve:
    """Returns the accountant's bound for a number of steps at each order; infinity if the accountant has no bound."""
    from dp_accounting.rdp import RdpAccountant

    logging.getLogger("absl").setLevel(logging.ERROR)  # an order that does not converge is left out, which raises the bound
    accountant = RdpAccountant(list(orders), mechanism.sampler.relation.of_accountants)
    accountant.compose(mechanism.event(steps))
    # `_rdp` has no public name in dp-accounting 0.6; a test compares it with the epsilon that follows from it.
    # Rounding may make a tiny divergence slightly negative; NaN means no known bound.
    return tuple(math.inf if math.isnan(value) else max(0.0, float(value)) for value in accountant._rdp)


def added(curves: Iterable[Sequence[float]], orders: int) -> RenyiCurve:
    """Returns the sum of several costs, order by order.

    Args:
        curves: Costs at each order; there may be none.
        orders: Number of orders.
    """
    columns = list(zip(*curves, strict=True)) or [()] * orders
    return tuple(math.fsum(column) if all(map(math.isfinite, column)) else math.inf for column in columns)


def _grid() -> list[float]:
    tenths = [order / 10 for order in range(11, int(10 * _TENTHS_UP_TO))]
    return [*tenths, *(float(order) for order in range(int(_TENTHS_UP_TO), int(_MOST) + 1))]


def _rounded(order: float) -> float:
    if order < _TENTHS_UP_TO:
        return max(1.05, round(order, 2))
    return float(min(round(order), int(_MOST)))
