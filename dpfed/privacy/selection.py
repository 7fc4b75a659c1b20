"""Private selection: what it costs to publish the best of several runs when nobody learns how many there were.

The number of runs is drawn before the first of them, and is secret. Each run draws its plan from a list, by a coin that no
record has a part in. Only the best run is published. Its Renyi divergence is then bounded by that of one run and a little more
(Papernot and Steinke 2022, theorems 2 and 6), while the divergences of runs that are shown add up. docs/guarantee.md says what
the bound needs.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from dpfed.errors import nearest
from dpfed.privacy.accounting import Unresolved
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.plan_checks import NUMBER, plain_number, require
from dpfed.privacy.randomness import Randomness
from dpfed.privacy.relation import ADD_OR_REMOVE
from dpfed.privacy.renyi_filter import Curve, limit, renyi_curve

Distribution = Literal["geometric", "logarithmic", "poisson"]
DISTRIBUTIONS: tuple[Distribution, ...] = get_args(Distribution)
MOST_RUNS = 500.0  # on average

# Of the bound. Any would do; these are what accountants take.
ORDERS = (*(order / 10 for order in range(11, 110)), *map(float, range(11, 64)), 128.0, 256.0, 512.0, 1024.0)
_SHAPES = {"geometric": 1, "logarithmic": 0}  # eta of the truncated negative binomial distribution
_NUMBER, _SETTING = "number of runs", "setting of a run"  # purposes of draws
_LEAST_CHANCE = 2.0**-60  # of a number of runs: beyond it the sum of all chances is 1, as far as 64 bits tell


@dataclass(frozen=True)
class Selection:
    """How many runs are made in secret, and what each of them may promise. Every field is public; the number itself is not.

    Args:
        distribution: of the number of runs: ``geometric`` and ``logarithmic`` (at least one run), or ``poisson`` (none is
            possible).
        mean: of that distribution.
        plans: of the settings, each once; all protect the same, with the same delta.

    Raises:
        UserError: for numbers that cannot be, and for plans that one bound cannot cover.
    """

    distribution: Distribution
    mean: float
    plans: tuple[PrivacyPlan, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", checked_mean(self.distribution, self.mean))
        distinct = {plan.fingerprint: plan for plan in self.plans}
        object.__setattr__(self, "plans", tuple(distinct.values()))
        _check(self.plans)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Selection:
        """The selection of an `as_dict`.

        Raises:
            UserError: for numbers that cannot be.
            TypeError: for other fields.
        """
        return cls(**{**fields, "plans": tuple(PrivacyPlan.from_dict(plan) for plan in fields["plans"])})

    def as_dict(self) -> dict[str, Any]:
        """All fields, as files keep them."""
        return {"distribution": self.distribution, "mean": self.mean, "plans": [plan.as_dict() for plan in self.plans]}

    @property
    def plan(self) -> PrivacyPlan:
        """One of the plans, for what is the same in all: unit, N, delta, adjacency."""
        return self.plans[0]

    def covers(self, plan: PrivacyPlan) -> bool:
        """Whether a run with this plan is one of those that are selected from."""
        return plan.fingerprint in {one.fingerprint for one in self.plans}

    def curve(self, orders: tuple[float, ...]) -> Curve:
        """The Renyi divergence of what is published, at some orders; infinity where none is known.

        Args:
            orders: above 1.
        """
        grid = sorted({*ORDERS, *orders})
        curves = (renyi_curve(plan.mechanism, plan.steps, tuple(grid)) for plan in self.plans)
        once = [max(column) for column in zip(*curves, strict=True)]  # whichever plan a run draws
        extra = self._extra(grid, once)
        none = math.exp(-self.mean) if self.distribution == "poisson" else 0.0  # no run at all is an outcome, too
        runs = math.log(self.mean + none)
        bound = [cost + more + runs / (order - 1) for order, cost, more in zip(grid, once, extra, strict=True)]
        for place in range(len(grid) - 2, -1, -1):  # a divergence grows with its order
            bound[place] = min(bound[place], bound[place + 1])
        found = dict(zip(grid, bound, strict=True))
        return tuple(found[order] for order in orders)

    def _extra(self, orders: list[float], once: list[float]) -> list[float]:
        """What one run's divergences add to the bound at each order, beside those of that order."""
        if self.distribution == "poisson":
            return [self.mean * _delta(math.log1p(1 / (order - 1)), orders, once) for order in orders]
        decay = -math.log1p(-self._ratio)  # log(1/gamma)
        least = min((1 - 1 / order) * cost + decay / order for order, cost in zip(orders, once, strict=True))
        return [(1 + _SHAPES[self.distribution]) * min(decay, least)] * len(orders)  # at order 1 it is log(1/gamma)

    @functools.cached_property
    def epsilon(self) -> float:
        """Epsilon of what is published, at the plans' delta."""
        return epsilon_of(self.curve(ORDERS), ORDERS, self.plan.delta)

    @functools.cached_property
    def epsilon_of_one(self) -> float:
        """Epsilon of the most expensive plan alone, by its own accountant."""
        return max(plan.epsilon() for plan in self.plans)

    @functools.cached_property
    def epsilon_of_all(self) -> float:
        """Epsilon of as many runs of the most expensive plan, if all are shown: plain composition, by the plan's accountant."""
        return max(_composed(plan, self.as_many) for plan in self.plans)

    @property
    def as_many(self) -> int:
        """The mean, as a number of runs."""
        return round(self.mean)

    @functools.cached_property
    def _ratio(self) -> float:
        """1 - gamma, of the truncated negative binomial distribution with this mean."""
        if self.distribution == "geometric":
            return 1 - 1 / self.mean
        low, high = 0.0, 2 * math.log(self.mean) + 2  # of log(1/gamma), with which the mean grows
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (middle, high) if math.expm1(middle) < self.mean * middle else (low, middle)
        return -math.expm1(-high)

    def chances(self) -> Iterator[tuple[int, float]]:
        """Each number of runs with its probability, without end."""
        if self.distribution == "poisson":
            number, chance = 0, math.exp(-self.mean)
            while True:
                yield number, chance
                number += 1
                chance *= self.mean / number
        ratio, shape = self._ratio, _SHAPES[self.distribution]
        number, chance = 1, (1 - ratio) if shape else ratio / -math.log1p(-ratio)
        while True:
            yield number, chance
            chance *= ratio * (number + shape) / (number + 1)
            number += 1

    def number(self, share: float) -> int:
        """The least number of runs that a share of all draws does not exceed; `share` is in [0, 1)."""
        total = 0.0
        for number, chance in self.chances():
            total += chance
            if total > share or (number > self.mean and chance < _LEAST_CHANCE):
                return number
        raise AssertionError("the chances have no end")

    def draw(self, randomness: Randomness) -> int:
        """How many runs there are: a function of the secret, and of nothing else."""
        word = int.from_bytes(randomness.stream(_NUMBER, 0)(8), "little")
        return self.number((word >> 11) * 2.0**-53)


def checked_mean(distribution: str, mean: float) -> float:
    """The mean of a distribution of the number of runs.

    Raises:
        UserError: for one that cannot be, and for a distribution that is not there.
    """
    require(
        distribution in DISTRIBUTIONS,
        f"no distribution of the number of runs is called {distribution!r}; {nearest(str(distribution), DISTRIBUTIONS)}",
    )
    mean = plain_number("the mean number of runs", NUMBER, mean)
    require(1 < mean <= MOST_RUNS, f"the mean number of runs must be above 1 and at most {MOST_RUNS:g}, got {mean:g}")
    return mean


def epsilon_of(curve: Curve, orders: tuple[float, ...], delta: float) -> float:
    """The least epsilon that follows from Renyi divergences at some orders."""
    return max(0.0, min(cost - limit(0.0, delta, order) for order, cost in zip(orders, curve, strict=True)))


def drawn_setting(randomness: Randomness, run: int, settings: int) -> int:
    """Which of the settings a run has: uniform, independent of the other runs, a function of the secret.

    Args:
        randomness: the search's secret.
        run: its number, from 0.
        settings: how many there are.
    """
    return int.from_bytes(randomness.stream(_SETTING, run)(16), "little") % settings  # even, but for 1 in 2^120


def _check(plans: tuple[PrivacyPlan, ...]) -> None:
    require(len(plans) > 0, "a selection is of runs with a plan, and there is none")
    for plan in plans:
        require(
            plan.promises,
            f"only runs with privacy can be selected from, and bounding.method = '{plan.method_name}' promises nothing that "
            "holds",
        )
        require(
            plan.sampler.relation == ADD_OR_REMOVE,
            f"bounding.method = '{plan.method_name}' promises something for a record that is replaced; choose another method",
        )
        plan.require_finite()
    for name, said in (("delta", "privacy.delta"), ("unit", "privacy.unit"), ("records", "the number of records")):
        values = {getattr(plan, name) for plan in plans}
        require(
            len(values) == 1,
            f"one epsilon is stated for the best of all settings, so {said} must be the same in all of them, got "
            f"{', '.join(map(str, sorted(values)))}",
        )


def _composed(plan: PrivacyPlan, runs: int) -> float:
    try:
        return plan.epsilon(runs * plan.steps)
    except Unresolved:
        return plan.epsilon(runs * plan.steps, "rdp")


def _delta(epsilon: float, orders: list[float], curve: list[float]) -> float:
    """A delta that goes with an epsilon, from Renyi divergences (Canonne, Kamath and Steinke 2020; Bretagnolle and Huber)."""
    found = 1.0
    for order, cost in zip(orders, curve, strict=True):
        if math.isfinite(cost):
            exponent = (order - 1) * (cost - epsilon + math.log1p(-1 / order)) - math.log(order)
            found = min(found, math.exp(min(0.0, exponent)), math.sqrt(-math.expm1(-cost)))
    return found
