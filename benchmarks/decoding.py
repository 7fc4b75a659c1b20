"""Measures how decoding scales: JPEG files of 224 px, decoded by one process and by two, in turns.

OMP_NUM_THREADS=1 python -m benchmarks.decoding          writes benchmarks/results/decoding.json

The result has two fractions of linear scaling. The fraction by the wall clock needs two idle cores. The fraction by seconds of
the cores also holds on a busy machine: two processes with a core each reach it if neither waits for the other. The result also
has the images per second of the parent process alone.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterable
from pathlib import Path

from benchmarks.record import write_result
from benchmarks.throughput import decoded_images

SIDE, ROUNDS = 224, 7


def core_seconds() -> float:
    """Returns the processor seconds of this process and its children."""
    children = [Path(task, "children").read_text(encoding="ascii").split() for task in Path("/proc/self/task").iterdir()]
    return time.process_time() + sum(_of_process(int(number)) for numbers in children for number in numbers)


def _of_process(number: int) -> float:
    return time.clock_gettime(~number << 3 | 2)  # the kernel's name of that clock; clock_getcpuclockid(3) says the same


def main() -> None:
    """Measures, prints and writes the result."""
    busy = os.getloadavg()[0]
    rounds = [
        [decoded_images(SIDE, n, clock) for clock in (time.perf_counter, core_seconds) for n in (1, 2)] for _ in range(ROUNDS)
    ]
    parents = [decoded_images(SIDE, 2, time.process_time) for _ in range(ROUNDS)]
    wall = _quartiles(two / one / 2 for one, two, _, _ in rounds)
    cores = _quartiles(two / one for _, _, one, two in rounds)
    one, two, alone, together = (round(statistics.median(rates)) for rates in zip(*rounds, strict=True))
    figures = {
        "side": SIDE,
        "images_per_second": {"one process": one, "two processes": two},
        "share_of_linear_quartiles": wall,
        "images_per_core_second": {"one process": alone, "two processes": together},
        "share_of_linear_by_core_seconds_quartiles": cores,
        "images_per_core_second_of_the_parent_alone": round(statistics.median(parents)),
        "load_before": round(busy, 1),
    }
    print(f"{one:,} and {two:,} images a second: {wall[1]:.2f} of linear ({wall[0]:.2f} to {wall[2]:.2f}), load {busy:.1f}")
    print(f"{alone:,} and {together:,} a second of a core: {cores[1]:.2f} of linear ({cores[0]:.2f} to {cores[2]:.2f})")
    print(write_result("decoding", figures, seeds=[0]))


def _quartiles(shares: Iterable[float]) -> list[float]:
    return [round(share, 2) for share in statistics.quantiles(shares)]


if __name__ == "__main__":
    main()
