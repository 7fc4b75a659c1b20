"""Times the steps of a run while another run, in another process, waits for its turn.

The two runs take blocks of steps in turn, so other work on the machine slows both. Each run writes its figures to a folder that
both know. `benchmarks.cluster` starts both runs.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

import dpfed.cluster.launch
import dpfed.runs.pretraining
import dpfed.runs.running
from benchmarks.memory import anonymous_mb
from dpfed.cluster.launch import Resources
from dpfed.cluster.link import Link
from dpfed.cluster.relay import Relay
from dpfed.cluster.torchrun import take_part
from dpfed.cluster.work import Task, work
from dpfed.config import parse_config
from dpfed.evaluation.measured import Evaluation
from dpfed.privacy.blocks import SumNoise
from dpfed.progress import Progress, Silent
from dpfed.training.coordinator import Coordinator
from dpfed.training.worker import Worker

BLOCK = 5  # steps in a turn; the first, whose caches are cold and whose records were read ahead while waiting, does not count
_PATIENCE = 1200.0  # seconds that a run waits for its turn
# What a step consists of, on rank 0. `books` contains the noise, and is made less by it at the end.
PARTS = {
    "gradients": (Worker, "bounded_sum"),
    "waiting": (Link, "gather"),
    "broadcast": (dist, "broadcast"),
    "reduce": (dist, "reduce"),
    "noise": (SumNoise, "noisy"),
    "books": (Coordinator, "apply"),
}


class Turns(Progress):
    """A `Progress` that times the steps and gives the turn away after each block.

    Args:
        folder: Folder whose files tell the two runs whose turn it is.
        name: Name of this run.
        other: Name of the other run; empty: there is none.
        inner: Display that gets all notes, stages and evaluations.

    Attributes:
        seconds: Seconds of each step that counts, with all that happens between this step and the one before.
    """

    def __init__(self, folder: Path, name: str, other: str, inner: Progress) -> None:
        self._folder = folder
        self._name = name
        self._other = other
        self._inner = inner
        self._began, self.seconds = 0.0, list[float]()

    def note(self, text: str) -> None:
        """See `Progress`."""
        self._inner.note(text)

    def on_evaluation(self, figures: list[Evaluation]) -> None:
        """See `Callback`."""
        self._inner.on_evaluation(figures)

    def stage(self, name: str, total: int | None) -> Callable[[int], None]:
        """See `Progress`."""
        tell = self._inner.stage(name, total)
        if name != "private steps":
            return tell

        def advance(done: int) -> None:
            if done and done % BLOCK != 1:
                self.seconds.append(time.perf_counter() - self._began)
            if done % BLOCK == 0 and self._other:
                self._pass_on(done // BLOCK, last=done == total)
            self._began = time.perf_counter()
            tell(done)

        return advance

    def _pass_on(self, blocks: int, last: bool) -> None:
        """Writes that `blocks` blocks are done, and waits for the other run.

        The run that is first in each turn waits until the other run has done as many blocks; the other waits for one more.
        """
        (self._folder / f"{self._name}.{blocks}").touch()
        second = self._name > self._other
        if last and second:
            return
        awaited, deadline = self._folder / f"{self._other}.{blocks + second}", time.monotonic() + _PATIENCE
        while not awaited.exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self._name} waited for {awaited}")
            time.sleep(0.005)


class Measured:
    """Times the parts of each step of this process, and watches its memory during the first step. A context manager."""

    def __init__(self) -> None:
        self.parts: dict[str, list[float]] = defaultdict(list)
        self.before_mb = self.peak_mb = 0.0
        self._ended = threading.Event()

    def __enter__(self) -> Measured:
        dpfed.runs.running._CURVE_POINTS = 1  # epsilon so far is not part of a step, and costs more than some that are
        for part, (owner, name) in PARTS.items():
            setattr(owner, name, self._timed(part, getattr(owner, name)))
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def figures(self) -> dict[str, Any]:
        """Returns the number of threads, the memory, and the seconds of each part of each step."""
        return {"threads": torch.get_num_threads(), "before_mb": self.before_mb, "peak_mb": self.peak_mb, "parts": self.parts}

    def _timed(self, part: str, real: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if part == "gradients" and not self.peak_mb:
                self.before_mb = self.peak_mb = anonymous_mb()
                threading.Thread(target=self._watch_memory, daemon=True).start()
            started = time.perf_counter()
            try:
                return real(*args, **kwargs)
            finally:
                self.parts[part].append(time.perf_counter() - started)
                if part == "books":  # the last of a step, on rank 0
                    self._ended.set()

        return wrapper

    def _watch_memory(self) -> None:
        while not self._ended.wait(0.05):
            self.peak_mb = max(self.peak_mb, anonymous_mb())


def in_worker(settings: dict[str, Any], folder: Path, name: str, other: str) -> None:
    """Trains in one of Ray's workers, in place of `dpfed.cluster.launch._in_worker`.

    Args:
        settings: Settings of the worker, from the launcher.
        folder: Folder of the figures.
        name: Name of this run.
        other: Name of the other run; empty: there is none.
    """
    turns = Turns(folder, name, other, Relay(settings["queue"]))
    with Measured() as measured:
        work(settings["task"], turns)
    write(folder, name, dist.get_rank(), {"seconds": turns.seconds, **measured.figures()})


def write(folder: Path, name: str, rank: int, figures: dict[str, Any]) -> None:
    """Writes the figures of one process to ``NAME-RANK.json``."""
    (folder / f"{name}-{rank}.json").write_text(json.dumps(figures), encoding="utf-8")


def main(folder: Path, name: str, other: str, tree: dict[str, Any], start: str, workers: int, cpus: int) -> None:
    """Trains a run in turns with another.

    Args:
        folder: Folder of the runs and of their figures.
        name: Name of this run.
        other: Name of the other run; empty: there is none.
        tree: Configuration, as nested dictionaries.
        start: Kind of start: ``ray``, ``torchrun`` (which runs this module), or ``alone``.
        workers: Number of workers, for ``ray``.
        cpus: Number of cores of each worker.
    """
    config, run = parse_config(tree), folder / f"run-{name}"
    if start == "ray":
        measured_worker = functools.partial(in_worker, folder=folder, name=name, other=other)
        with patch("dpfed.cluster.launch._in_worker", measured_worker):
            dpfed.cluster.launch.launch(Task(run, config), Resources(workers=workers, gpus=0, cpus=cpus, restarts=0), Silent())
        return
    torch.set_num_threads(cpus)
    turns = Turns(folder, name, other if int(os.environ.get("RANK", 0)) == 0 else "", Silent())
    with Measured() as measured:
        if start == "torchrun":
            take_part(Task(run, config), turns)
        else:
            dpfed.runs.pretraining.pretrain(config, run, turns)
    write(folder, name, int(os.environ.get("RANK", 0)), {"seconds": turns.seconds, **measured.figures()})


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    main(Path(given.pop("folder")), **given)
