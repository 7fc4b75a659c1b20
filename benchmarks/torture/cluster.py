"""Injects faults into Ray jobs of two workers, on a real Ray head on this machine: a worker, the driver or the head is killed,
the job is stopped, the disk gets full, or a checkpoint is damaged. The job then continues, or is submitted again, and its run
is compared with an undisturbed run.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

from benchmarks.torture.machine import filled, small_disk, write_config
from benchmarks.torture.undisturbed import Outcome, outcome_of, wrong_at_the_end, wrong_on_the_way
from dpfed.privacy.ledger import Ledger
from dpfed.training.checkpoint import Checkpoints
from tests.cluster.ray_head import Job, ray_head

STEPS = 24
FAULTS = (
    "worker 0 killed",
    "worker 1 killed",
    "driver killed",
    "job stopped",
    "newest checkpoint damaged",
    "disk full",
    "head killed",
)
_PATIENCE = 300.0


class Cluster:
    """A Ray head, an undisturbed run, and the faults of further jobs.

    Args:
        folder: Folder for all files.
        dice: Random generator that decides when a fault happens.
    """

    def __init__(self, folder: Path, dice: random.Random) -> None:
        self._folder, self._dice = folder, dice
        os.environ["DPFED_BUDGETS"] = str(folder / "budgets")
        self._config = write_config(folder)
        self._heads = contextlib.ExitStack()
        self._head = self._heads.enter_context(ray_head())
        run = folder / "undisturbed"
        done = self._submit(run).wait()
        if done.code:
            raise SystemExit(done.output)
        self.undisturbed: Outcome = outcome_of(run)

    def close(self) -> None:
        """Ends the Ray head."""
        self._heads.close()

    def suffer(self, fault: str) -> dict[str, Any]:
        """Injects a fault into a job, lets its run finish, and returns what happened and what is wrong with the run."""
        disk = small_disk(self._folder / "disk") if fault == "disk full" else contextlib.nullcontext(self._folder)
        with disk as place:
            if place is None:
                return {"what": fault, "wrong": [], "left out": "nobody may mount a disk here"}
            run = place / fault.replace(" ", "-")
            job = self._submit(run)
            _wait_for(run, self._dice.randrange(1, STEPS - 4), job)
            restarts, wrong = self._do(fault, run, job, place)
            charged, problems = wrong_on_the_way(run, self.undisturbed)
            if not restarts:
                wrong += problems  # otherwise it goes on meanwhile
                done = self._submit(run, "--resume").wait()
            else:
                done = job.wait()
            if done.code:
                wrong.append(f"it ended with {done.code}: {done.output[-2000:]}")
            else:
                wrong += wrong_at_the_end(run, self.undisturbed)
            resumed = len(Ledger.open(run / "ledger.jsonl").resumed)
            return {"what": fault, "after": charged, "resumed": resumed, "wrong": wrong}

    def _do(self, fault: str, run: Path, job: Job, place: Path) -> tuple[bool, list[str]]:
        """Injects a fault. Returns whether the job continues by itself, and complaints about its message."""
        if fault.startswith("worker"):
            os.kill(self._head.worker(int(fault.split()[1])), signal.SIGKILL)
            return True, []
        if fault in ("driver killed", "newest checkpoint damaged"):
            os.kill(self._head.driver(run), signal.SIGKILL)
            job.wait()
        elif fault == "job stopped":
            job.stop()
        elif fault == "disk full":
            with filled(place):
                done = job.wait()
            if "cannot be written (No space left on device)" not in done.output or "Traceback" in done.output:
                return False, [f"no sentence: {done.output[-2000:]}"]
        elif fault == "head killed":
            self._head.kill()
            job.give_up()
            self._head = self._heads.enter_context(ray_head())
        if fault == "newest checkpoint damaged":
            paths = Checkpoints(run / "checkpoints", 2).paths()
            paths[-1].write_bytes(paths[-1].read_bytes()[:2000])
        return False, []

    def _submit(self, run: Path, *options: str) -> Job:
        return self._head.submit(self._config, "--workers", 2, "--cpus-per-worker", 1, "--run", run, *options)


def torture(folder: Path, dice: random.Random, faults: tuple[str, ...] = FAULTS) -> dict[str, Any]:
    """Injects faults into Ray jobs, one fault into each job.

    Args:
        folder: New folder for all files.
        dice: Random generator that decides when a fault happens.
        faults: Faults, of `FAULTS`.
    """
    cluster = Cluster(folder, dice)
    try:
        told = [cluster.suffer(fault) for fault in faults]
    finally:
        cluster.close()
    return {"workers": 2, "steps": STEPS, "faults": told, "wrong": [text for one in told for text in one["wrong"]]}


def _wait_for(run: Path, steps: int, job: Job) -> None:
    """Waits until a number of steps are charged."""
    ledger, deadline = run / "ledger.jsonl", time.monotonic() + _PATIENCE
    while not ledger.exists() or ledger.read_bytes().count(b'"charged": true') < steps:
        if not job.running or time.monotonic() > deadline:
            raise AssertionError(job.wait(1).output)
        time.sleep(0.01)
