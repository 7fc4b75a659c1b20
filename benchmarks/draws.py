"""Measures what the draws of a step cost, for as many keys as one worker of a large run holds.

python -m benchmarks.draws [N]     # default 100,000,000 keys; writes benchmarks/results/draws.json, in about a minute

Times are processor times, so that other work on the machine counts less. The time of a block is divided among its steps.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable

import numpy as np

from benchmarks.record import write_result
from dpfed.data.sampling import draw_step
from dpfed.privacy.geometric_skips import GeometricSkips, block_length
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.randomness import Randomness

BATCH = 65_536
STEPS = 100_000
SLICES = 50  # steps of a block that are timed by themselves
_FEW = 2_000_000  # keys, for what a machine takes per million


def seconds(work: Callable[[], object]) -> float:
    """Returns the processor seconds of a call."""
    started = time.process_time()
    work()
    return time.process_time() - started


def by_gaps(keys: np.ndarray) -> dict[str, float]:
    """Measures the draws of a large run by gaps.

    Args:
        keys: Keys of the records, uint64, ``(N,)``.

    Returns:
        Seconds of a block; seconds of a step, with its part of the block; and megabytes beside the keys.
    """
    rate, before = BATCH / len(keys), _peak()
    length = block_length(rate, STEPS)
    draws = GeometricSkips(rate, length, Randomness.from_seed(0), keys)
    block = seconds(lambda: draws(0))
    step = seconds(lambda: [draws(step) for step in range(1, 1 + SLICES)]) / SLICES
    result = {"keys": len(keys), "block_steps": length, "block_seconds": block, "step_seconds": block / length + step}
    return result | {"megabytes": (_peak() - before) / 1e6}


def draws() -> dict[str, float]:
    """Returns processor seconds: per million keys, of a block that draws each record once; and per million drawn records."""
    keys = np.random.default_rng(0).integers(0, 2**64, _FEW, np.uint64)
    randomness, rate = Randomness.from_seed(0), 1e-3
    block = seconds(lambda: GeometricSkips(rate, round(1 / rate), randomness, keys)(0))
    plan = PrivacyPlan.of(records=_FEW, batch=BATCH, group_size=16, clip_norm=1.0, steps=2, noise_multiplier=1.0, delta=1e-8)
    who = np.sort(np.random.default_rng(1).choice(_FEW, BATCH, replace=False))
    grouping = seconds(lambda: draw_step(plan, randomness, 0, np.arange(_FEW), keys, plan.groups, participants=lambda _: who))
    return {"gaps_seconds_per_million_keys": block / _FEW * 1e6, "seconds_per_million_drawn": grouping / BATCH * 1e6}


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    every = np.random.default_rng(0).integers(0, 2**64, int(sys.argv[1]) if len(sys.argv) > 1 else 100_000_000, np.uint64)
    figures = {"batch": BATCH, "gaps": by_gaps(every)}
    print(figures)
    print(write_result("draws", figures, seeds=[0]))
