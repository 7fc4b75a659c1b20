"""Measures the parts of a step of a configuration on this machine, and prints them as options of `dpfed cluster cost`.

    python -m benchmarks.parts CONFIG [KEY=VALUE ...] > measured.json      CONFIG: a file, or a name such as quickstart

The time of a step depends on its records, so the records must be public. ``OMP_NUM_THREADS`` sets the number of cores.
"""

from __future__ import annotations

import functools
import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.draws import draws
from benchmarks.throughput import assumed, seconds_of, transport
from dpfed.config import Config, load_config
from dpfed.data.store.records import RecordStore
from dpfed.data.views.batches import ViewMaker
from dpfed.errors import UserError
from dpfed.models.parameters import TrainableVector
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.randomness import Randomness
from dpfed.runs.build import Parts, build
from dpfed.training.worker import Worker

STEPS = 5  # timed, behind one that warms up


def of_run(config: Config, steps: int = STEPS) -> dict[str, Any]:
    """Returns the figures of one configuration, in the form that `benchmarks.throughput` has for its models.

    Args:
        config: Configuration; its records must be public.
        steps: Number of timed steps.

    Raises:
        UserError: If the records are not public.
    """
    randomness = Randomness.from_seed(0)
    resolved = build(config).config
    parts = build(resolved, randomness)
    if not parts.store.public:
        raise UserError(f"how long steps take depends on their records, and those of {parts.store.name} are not public.")
    worker, engine = parts.learner.worker(randomness.for_ranks()), resolved.bounding.engine
    with _Timers(type(worker.engine)) as timers:
        drawn = 0
        for step in range(steps + 1):
            if step == 1:  # the first one warms up
                timers.seconds.clear()
                drawn = 0
            drawn += len(worker.draw(step).indices)
            total = worker.bounded_sum(step)
            total.values.sum().item()  # waits for the device
    seconds, parameters = timers.seconds, TrainableVector(parts.model).numel
    # On a GPU, and for images that are stored as files, images are read in a thread beside the gradients.
    ahead = parts.store.size is None or parts.learner.device.type != "cpu"
    row = {
        "records_per_second": drawn / seconds["gradients"],
        "views_per_second": drawn / (seconds["views"] - (0.0 if ahead else seconds["images"])),
        "decoded_per_second": drawn / seconds["images"],
        "reads_ahead": ahead,
        "parameters": parameters,
        "engine": engine,
    }
    return {"gradients": {config.name: row}, "coordinator": _coordinator(parts, randomness), "worker": draws()}


def _coordinator(parts: Parts, randomness: Randomness) -> dict[str, float]:
    """Measures noise, bookkeeping and checkpoints, seconds per million trained parameters of this run."""
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger.create(Path(folder) / "ledger.jsonl", parts.plan)
        coordinator = parts.learner.coordinator(randomness, ledger)
        return seconds_of(coordinator, parts.model, parts.plan, ledger, randomness, Path(folder))


class _Timers:
    """Adds up the seconds that some functions take. A context manager.

    Args:
        engine: Class of the engine, whose gradients are timed, too.
    """

    def __init__(self, engine: type) -> None:
        places: dict[str, tuple[type, str]] = {
            "images": (RecordStore, "images"),
            "views": (ViewMaker, "__call__"),
            "draws": (Worker, "draw"),
            "gradients": (engine, "add_clipped"),
        }
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._patches = [patch.object(*where, self._timed(part, getattr(*where))) for part, where in places.items()]

    def __enter__(self) -> _Timers:
        for patcher in self._patches:
            patcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        for patcher in self._patches:
            patcher.stop()

    def _timed(self, part: str, real: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            try:
                result = real(*args, **kwargs)
                if torch.cuda.is_available():
                    torch.cuda.synchronize()
                return result
            finally:
                self.seconds[part] += time.perf_counter() - started

        return wrapper


def main() -> None:
    """Prints the figures."""
    if len(sys.argv) < 2:
        raise SystemExit("give a configuration: python -m benchmarks.parts CONFIG [KEY=VALUE ...]")
    try:
        config = load_config(sys.argv[1], sys.argv[2:])
        figures = of_run(config)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    figures |= {"transport": transport()}
    print(json.dumps({"figures": figures}, indent=2))
    print(assumed(figures, next(iter(figures["gradients"].values()))), file=sys.stderr)


if __name__ == "__main__":
    main()
