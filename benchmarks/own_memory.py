"""What a process takes, measured by itself; it imports nothing, so that it measures nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


def seconds(work: Callable[[], object]) -> float:
    """By the clock."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def megabytes() -> float:
    """Of this process's own memory; what is mapped from files is the system's to take back, and `peak` counts it."""
    status = Path("/proc/self/status").read_text()
    return sum(int(line.split()[1]) for line in status.splitlines() if line.startswith(("RssAnon", "RssShmem"))) / 1000


def peak() -> float:
    """Of all memory that this process had resident at once, megabytes, with what is mapped."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1000
