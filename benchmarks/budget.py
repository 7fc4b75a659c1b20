"""What a lifetime budget's filter costs: how many steps fit by it, and by what is valid only for plans that are fixed before.

python -m benchmarks.budget     # writes benchmarks/results/budget.json, in about a minute
"""

from __future__ import annotations

from dp_accounting.rdp.rdp_privacy_accountant import DEFAULT_RDP_ORDERS

from benchmarks.record import write_result
from dpfed.privacy.accounting import Unresolved, joint_epsilon
from dpfed.privacy.mechanism import Mechanism
from dpfed.privacy.renyi_filter import RenyiFilter, limit, renyi_curve
from dpfed.privacy.samplers import PoissonSampler

BUDGETS = ((1, 1e-6), (3, 1e-6), (10, 1e-6), (10, 1e-9), (30, 1e-7))
STEPS = ((0.05, 1.0), (0.05, 1.5), (0.034, 2.0), (0.01, 0.6), (0.003, 0.8), (0.5, 5.0), (1.0, 10.0))  # q, sigma
_EXACT = 5_000  # up to so many steps the number by PLD is exact, and then to this part of it


def rows() -> list[dict[str, float | None]]:
    """Steps that fit into each budget, of each kind of step."""
    found = []
    for epsilon, delta in BUDGETS:
        budget = RenyiFilter.of(epsilon, delta)
        for rate, sigma in STEPS:
            mechanism = Mechanism(PoissonSampler(rate), sigma)
            steps = budget.times((0.0,) * len(budget.orders), budget.curve(mechanism, 1))
            costs = renyi_curve(mechanism, 1, tuple(map(float, DEFAULT_RDP_ORDERS)))
            best = max(int(limit(epsilon, delta, order) / cost) for order, cost in zip(DEFAULT_RDP_ORDERS, costs, strict=True))
            if best:
                fixed = {"rdp": best, "pld": _by_pld(mechanism, epsilon, delta, best)}
                found.append({"epsilon": epsilon, "delta": delta, "q": rate, "sigma": sigma, "filter": steps, **fixed})
                print(found[-1], flush=True)
    return found


def _by_pld(mechanism: Mechanism, epsilon: float, delta: float, least: int) -> int | None:
    try:
        low, high = least, 2 * least
        while joint_epsilon([(mechanism, high)], delta, "pld") <= epsilon:
            low, high = high, 2 * high
        while high - low > 1 + low // _EXACT:
            middle = (low + high) // 2
            low, high = (middle, high) if joint_epsilon([(mechanism, middle)], delta, "pld") <= epsilon else (low, middle)
        return low
    except Unresolved:
        return None


if __name__ == "__main__":
    print(write_result("budget", {"rows": rows()}, seeds=[]))
