"""One contender in a process of its own: `python -m benchmarks.peers.case NAME`.

It reads requests, a line of JSON each, and answers each with a line:

    {"try": PROBLEM, "at_once": [...]}      which of several amounts is the fastest
    {"prepare": PROBLEM, "at_once": N}      this is to be computed from now on
    {"step": true}                          seconds of one step
    {"memory": true}                        what the steps since took at their peak, over what was there before the first

Seconds are the processor's, so that other work on the machine counts less.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.peers.contenders import ALL


def main(name: str) -> None:
    """See above."""
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    contender, step, before = ALL[name], None, 0.0
    for line in sys.stdin:
        match json.loads(line):
            case {"try": problem, "at_once": numbers}:
                answer: Any = fastest(lambda number, problem=problem: contender.make(problem, number), numbers)
            case {"prepare": problem, "at_once": number}:
                step = None
                gc.collect()
                started = time.process_time()
                step = contender.make(problem, number)
                answer = {"preparing": time.process_time() - started}
                forget_peak()
                before = peak()
            case {"memory": True}:
                answer = {"before_mb": before, "step_mb": peak() - before}
            case _:
                assert step is not None
                answer = seconds(step)
        print(json.dumps(answer), flush=True)


def fastest(make: Callable[[Any], Any], numbers: list[Any]) -> dict[str, Any]:
    """Which of several numbers, and its seconds, behind a step that warms up."""
    found = {}
    for number in numbers:
        step = make(number)
        step()
        found[number] = seconds(step)
    best = min(found, key=found.__getitem__)
    return {"at_once": best, "seconds": found[best]}


def seconds(step: Any) -> float:
    """Of one step, the processor's; where a call makes several, of each on average."""
    started = time.process_time()
    step()
    return (time.process_time() - started) / getattr(step, "steps", 1)


def peak() -> float:
    """Of all memory that this process had resident at once, megabytes, with what is mapped."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1000


def forget_peak() -> None:
    """Gives back what the process no longer uses, and sets its peak to what it has now."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


if __name__ == "__main__":
    main(sys.argv[1])
