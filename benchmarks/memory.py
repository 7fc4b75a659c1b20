"""Measures the memory of one worker step: prints MB before the step, MB at its peak, and seconds.

Only anonymous memory counts: pages of the memory-mapped store are a cache, which the operating system can free at any time.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

from dpfed.config import parse_config
from dpfed.privacy.randomness import Randomness
from dpfed.runs.build import build


def anonymous_mb() -> float:
    """Returns the anonymous resident memory of this process, MB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("needs Linux: /proc/self/status has no RssAnon")


def main(stores: str, batch: int, records: int) -> None:
    """Takes one step on generated records, and prints the figures.

    Args:
        stores: Folder of generated record stores.
        batch: B, expected number of records in the step.
        records: Number of generated records.
    """
    tree = {
        "data": {"records": records, "stores": stores},
        "privacy": {"noise_multiplier": 1.0, "batch": batch, "steps": 1},
        "bounding": {"engine": "loop", "group_size": 16, "microbatch": 256},
    }
    randomness = Randomness.from_seed(0)
    parts = build(parse_config(tree), randomness)
    before, peak, done = anonymous_mb(), [0.0], threading.Event()

    def watch() -> None:
        while not done.wait(0.005):
            peak[0] = max(peak[0], anonymous_mb())

    progress = threading.Thread(target=watch)
    progress.start()
    started = time.perf_counter()
    parts.learner.worker(randomness).bounded_sum(0)
    seconds = time.perf_counter() - started
    done.set()
    progress.join()
    print(round(before, 1), round(peak[0], 1), seconds)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
