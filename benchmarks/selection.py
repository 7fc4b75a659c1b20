"""What the best of a secret number of runs costs, beside one run and as many runs that are shown.

python -m benchmarks.selection     # writes benchmarks/results/selection.json, in about a minute
"""

from __future__ import annotations

from benchmarks.record import write_result
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.selection import DISTRIBUTIONS, Selection

EPSILONS = (0.1, 1.0, 3.0, 8.0)
MEAN = 10.0
RECORDS, BATCH, STEPS = 20_000, 2_000, 100


def rows() -> list[dict[str, float]]:
    """Epsilon of one run, of ten that are shown, and of the best of ten on average, at the same delta."""
    found = []
    for epsilon in EPSILONS:
        plan = PrivacyPlan.of_numbers(RECORDS, BATCH, STEPS, epsilon=epsilon)
        best = {name: Selection(name, MEAN, (plan,)) for name in DISTRIBUTIONS}
        shown = best["geometric"].epsilon_of_all
        found.append({"one": epsilon, "shown": shown, **{name: selection.epsilon for name, selection in best.items()}})
        print(found[-1], flush=True)
    return found


def few() -> dict[str, float]:
    """How likely each distribution gives one run at most."""
    plan = PrivacyPlan.of_numbers(RECORDS, BATCH, STEPS, noise_multiplier=1.0)
    chances = {name: Selection(name, MEAN, (plan,)).chances() for name in DISTRIBUTIONS}
    return {name: sum(chance for number, chance in (next(of), next(of)) if number <= 1) for name, of in chances.items()}


if __name__ == "__main__":
    print(write_result("selection", {"rows": rows(), "at_most_one": few()}, seeds=[]))
