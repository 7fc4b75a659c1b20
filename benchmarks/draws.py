"""What the draws of a step cost: by gaps and by coins, for as many keys as one worker of a large run holds.

python -m benchmarks.draws [N]     # default 100,000,000 keys; writes benchmarks/results/draws.json, in about a minute

Times are of the processor, so that other work on the machine counts less. A block's time is shared out over its steps.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable

import numpy as np

from benchmarks.record import write_result
from dpfed.privacy.randomness import Randomness
from dpfed.privacy.renewals import Renewals, block_length
from dpfed.privacy.samplers import PoissonSampler

BATCH = 65_536
STEPS = 100_000
SLICES = 50  # steps of a block that are timed by themselves
_COINS = 10_000_000  # keys of a turn with coins, whose cost is proportional


def seconds(work: Callable[[], object]) -> float:
    """Of the processor."""
    started = time.process_time()
    work()
    return time.process_time() - started


def by_gaps(keys: np.ndarray) -> dict[str, float]:
    """Seconds of a step's share of a block and of taking it out, and the memory that it all needs beside the keys."""
    rate, before = BATCH / len(keys), _peak()
    length = block_length(rate, STEPS)
    draws = Renewals(rate, length, Randomness.from_seed(0), keys)
    block = seconds(lambda: draws(0))
    step = seconds(lambda: [draws(step) for step in range(1, 1 + SLICES)]) / SLICES
    found = {"keys": len(keys), "block_steps": length, "block_seconds": block, "step_seconds": block / length + step}
    return found | {"megabytes": (_peak() - before) / 1e6}


def by_coins(keys: np.ndarray) -> dict[str, float]:
    """Seconds of a step."""
    draws = PoissonSampler(BATCH / len(keys)).participants(Randomness.from_seed(0), keys)
    return {"keys": len(keys), "step_seconds": seconds(lambda: draws(0))}


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    every = np.random.default_rng(0).integers(0, 2**64, int(sys.argv[1]) if len(sys.argv) > 1 else 100_000_000, np.uint64)
    gaps = by_gaps(every)
    coins = by_coins(every[:_COINS])
    coins["step_seconds_for_all"] = coins["step_seconds"] * len(every) / coins["keys"]
    figures = {"batch": BATCH, "gaps": gaps, "coins": coins, "ratio": coins["step_seconds_for_all"] / gaps["step_seconds"]}
    print(figures)
    print(write_result("draws", figures, seeds=[0]))
