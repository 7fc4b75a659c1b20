"""Contenders in processes of their own, which take turns step by step: whatever else the machine does hits all alike."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from benchmarks.peers.environment import ROOT


class Case:
    """A contender's process, see `benchmarks.peers.case`. It computes only while it is asked something."""

    def __init__(self, name: str) -> None:
        self._name = name
        cores = str(len(os.sched_getaffinity(0)))
        own = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": cores, "PYTHONWARNINGS": "ignore", "JAX_PLATFORMS": "cpu"}
        command = [sys.executable, "-m", "benchmarks.peers.case", name]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, cwd=ROOT, env=os.environ | own, stdin=pipe, stdout=pipe, text=True)

    def ask(self, **request: Any) -> Any:
        """The answer to a request."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self._name} ended at {request}")
        return json.loads(line)

    def end(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()


@contextmanager
def cases(names: list[str]) -> Iterator[dict[str, Case]]:
    """The processes of contenders, which end with the block."""
    with ExitStack() as stack:
        found = {}
        for name in names:
            found[name] = Case(name)
            stack.callback(found[name].end)
        yield found


def in_turns(
    ones: Mapping[str, Case], problem: Mapping[str, Any], at_once: Mapping[str, int | str], rounds: int, baseline: str
) -> dict[str, Any]:
    """Times contenders against each other on one problem.

    Args:
        ones: by name.
        problem: of all of them.
        at_once: how much each takes at a time, or its engine; default: its own affair.
        rounds: steps of each that count, behind one that warms up.
        baseline: the contender whose time the others' is divided by.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, one in ones.items():
        number = at_once.get(name, 0)
        found[name] = {"at_once": number, **one.ask(prepare=problem, at_once=number), "seconds": []}
    for turn in range(rounds + 1):
        for name in [*list(ones)[turn % len(ones) :], *list(ones)[: turn % len(ones)]]:
            seconds = ones[name].ask(step=True)
            if turn:
                found[name]["seconds"].append(seconds)
    base = statistics.median(found[baseline]["seconds"])
    for name, one in ones.items():
        found[name] |= one.ask(memory=True) | {"ratio": statistics.median(found[name]["seconds"]) / base}
    return {"baseline": baseline, "contenders": found}


def report(cell: str, found: dict[str, Any]) -> None:
    """Prints a cell."""
    for contender, one in found["contenders"].items():
        shown = f"{statistics.median(one['seconds']):10.5f} s {one['ratio']:7.2f} x {one['step_mb']:7.0f} MB"
        print(f"{cell:>28}  {contender:<24}{shown}  {one['at_once'] or ''}", flush=True)
    for contender in found.get("left_out", ()):
        print(f"{cell:>28}  {contender:<24}would take too long", flush=True)
