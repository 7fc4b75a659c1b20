"""How long a step of each method takes, measured in turns in one process."""

from __future__ import annotations

import math
import time

from dpfed.config import Config
from dpfed.privacy.randomness import Randomness
from dpfed.runs.assembly import assemble
from dpfed.runs.resolution import resolve

ROUNDS = 3


def seconds_per_step(configs: dict[str, Config]) -> dict[str, float]:
    """Seconds of a step's bounded sum, which is what methods differ in: the least of some rounds.

    Nothing is released. How long a step takes may depend on its records, so these must be public.

    Args:
        configs: of the runs, by a name for each.

    Returns:
        Seconds of processor time on a CPU, where other work on the machine counts for little; of wall time elsewhere.
    """
    workers = {}
    for name, config in configs.items():
        randomness = Randomness.fresh()
        parts = assemble(resolve(config), randomness)
        workers[name] = (parts.worker(randomness.for_owners()), parts.device)
    best = dict.fromkeys(configs, math.inf)
    for step in range(ROUNDS):
        for name, (worker, device) in workers.items():
            clock = time.process_time if device.type == "cpu" else time.perf_counter
            started = clock()
            worker.bounded_sum(step).values.sum().item()  # waits for the device
            best[name] = min(best[name], clock() - started)
    return best
