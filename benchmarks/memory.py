"""Memory of one worker step: prints MB before it, MB at its peak, and seconds.

Counts anonymous memory: pages of the memory-mapped store are the operating system's cache, which it takes back at will.
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
    """Anonymous resident memory of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("needs Linux: /proc/self/status has no RssAnon")


def main(stores: str, batch: int, records: int) -> None:
    """One step at an expected batch of `batch` out of `records` generated records."""
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
