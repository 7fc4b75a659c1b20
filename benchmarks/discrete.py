"""What discrete noise costs: the time of a step's noise beside the floating-point one, and how much larger sigma's noise gets.

python -m benchmarks.discrete     # writes benchmarks/results/discrete.json, in about a minute; one thread
"""

from __future__ import annotations

import math
import time

import torch

from benchmarks.record import write_result
from dpfed.privacy.noise import DiscreteGaussianNoise, GaussianNoise, KeyedNoise, Noise
from dpfed.privacy.randomness import Randomness

SIZES = (100_000, 1_000_000, 10_000_000)
SIGMAS = (0.5, 1.0, 2.0, 10.0, 100.0)
_TURNS = 5


def seconds(noise: Noise, size: int, turn: int) -> float:
    """Of one step's noise on a vector of so many numbers, with the hash that keys it."""
    values = torch.zeros(size)
    keyed = KeyedNoise(noise, Randomness.from_seed(turn), "noise", "benchmark")
    started = time.perf_counter()
    keyed.add_(values, 0)
    return time.perf_counter() - started


def times() -> list[dict[str, float]]:
    """Best times of both kinds, in turns, so that a busy moment of the machine meets both."""
    found = []
    for size in SIZES:
        kinds: dict[str, Noise] = {"gaussian": GaussianNoise(2.0), "discrete": DiscreteGaussianNoise(2.0, 1.0)}
        best = dict.fromkeys(kinds, math.inf)
        for turn in range(_TURNS):
            for kind, noise in kinds.items():
                best[kind] = min(best[kind], seconds(noise, size, turn))
        row = {f"{kind}_seconds": time for kind, time in best.items()}
        row |= {"ratio": best["discrete"] / best["gaussian"], "discrete_per_second": size / best["discrete"]}
        found.append({"numbers": size, **row})
        print(found[-1], flush=True)
    return found


def deviations() -> list[dict[str, float]]:
    """How much larger the deviation is than sigma times the sensitivity. It depends on sigma alone."""
    return [{"sigma": sigma, "larger_by": DiscreteGaussianNoise(2.0, sigma).std / (sigma * 2.0) - 1} for sigma in SIGMAS]


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(write_result("discrete", {"times": times(), "deviations": deviations()}, seeds=list(range(_TURNS))))
