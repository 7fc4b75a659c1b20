"""Measures what privacy costs: the clipped group gradients of a step over the best non-private gradient, and peak memory.

All gradients are timed in turn within one run, and only ratios of medians are reported. The non-private gradient has every
advantage: it is tried with all microbatch sizes, on all cores at once and with one microbatch per core; the fastest counts.
"""

from __future__ import annotations

import functools
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn

from benchmarks.record import write_result
from benchmarks.throughput import stand_in_views
from dpfed.bounding import foreach
from dpfed.bounding.clipping import Clip
from dpfed.bounding.engines import ENGINES, GroupBatch, Views, build_engine
from dpfed.config import ModelConfig, ObjectiveConfig
from dpfed.models.building import build_model
from dpfed.models.parameters import TrainableVector
from dpfed.objectives.infonce import group_loss

MODELS = {
    "small CNN": (ModelConfig(image="cnn", width=32), 256, 11, (16, 32, 64, 128)),
    "ResNet-18": (ModelConfig(image="resnet18", width=64), 64, 7, (8, 16, 32)),
    "ResNet-18, ImageNet stem": (ModelConfig(image="resnet18", width=64, stem="imagenet"), 128, 7, (16, 32, 64)),
    "ViT-B-32, adapters": (ModelConfig(kind="open_clip", architecture="ViT-B-32"), 32, 3, (8, 16, 32)),
}
SIDES = {"ViT-B-32, adapters": 224}  # of images, in pixels, where they are not 32
SIZES = (4, 16)
BATCHES = (1_024, 65_536)
CPU = torch.device("cpu")


class NonPrivate:
    """The gradient of the same loss without clipping, accumulated over microbatches.

    Args:
        model: Model.
        views: Views of the batch.
        microbatch: Records in a microbatch.
        per_core: Whether each core computes its own microbatches.
    """

    def __init__(self, model: nn.Module, views: Views, microbatch: int, per_core: bool) -> None:
        self._model, self._views, self._microbatch = model, views, microbatch
        self._vector = TrainableVector(model)
        self._threads = torch.get_num_threads() if per_core else 1
        self._pool = ThreadPoolExecutor(self._threads, initializer=torch.set_num_threads, initargs=(1,)) if per_core else None

    def __call__(self) -> Tensor:
        """Computes the flat gradient."""
        if self._pool is None:
            return self._of_thread(0)
        first, *others = self._pool.map(self._of_thread, range(self._threads))
        return sum(others, first)

    def _of_thread(self, thread: int) -> Tensor:
        total = self._vector.zeros()
        parts = self._vector.split(total)
        for start in range(thread * self._microbatch, len(self._views["image"]), self._threads * self._microbatch):
            views = {name: view[start : start + self._microbatch] for name, view in self._views.items()}
            present = torch.ones(len(views["image"]), dtype=torch.bool, device=total.device)
            loss = group_loss(self._model(views), present, self._model.temperature)
            foreach.add_(parts, torch.autograd.grad(loss, self._vector.parameters))
        return total


def overheads(
    config: ModelConfig, records: int, repeats: int, microbatches: tuple[int, ...], device: torch.device = CPU, size: int = 32
) -> dict:
    """Measures the time of each engine over the best non-private gradient, for S = 4 and 16.

    Args:
        config: Model.
        records: Number of records in the batch.
        repeats: Number of timed rounds.
        microbatches: Microbatch sizes of the non-private gradient.
        device: Device.
        size: Side of the images, pixels.
    """
    torch.manual_seed(0)
    model = build_model(config, ObjectiveConfig(), size=size).to(device)
    views = stand_in_views(config, records, size, device)
    contenders: dict[str, Callable[[], object]] = {}
    for microbatch in microbatches:
        contenders[f"microbatch {microbatch}"] = NonPrivate(model, views, microbatch, per_core=False)
        if device.type == "cpu" and microbatch * torch.get_num_threads() <= records:
            contenders[f"microbatch {microbatch} per core"] = NonPrivate(model, views, microbatch, per_core=True)
    plain = list(contenders)
    for size in SIZES:
        batch = GroupBatch(views, list(range(0, records + 1, size)))
        for name in ENGINES:
            into, clip = TrainableVector(model).zeros().long(), Clip(2.0**24, 2.0**24)  # C = 1 in steps of a run's grid
            ready = build_engine(name, model, "fp32", group_loss, size, "go on")  # a run's first pass asks more, once
            contenders[f"{name}, S = {size}"] = functools.partial(ready.add_clipped, batch, clip, into)
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repeats + 1):  # the first round warms up
        for name, contender in contenders.items():
            started = time.perf_counter()
            contender()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            seconds[name].append(time.perf_counter() - started)
    median = {name: statistics.median(times[1:]) for name, times in seconds.items()}
    best = min(plain, key=median.__getitem__)
    ratios = {name: round(median[name] / median[best], 3) for name in contenders}
    return {
        "parameters": TrainableVector(model).numel,
        "records": records,
        "views": views["image"].shape[1],
        "repeats": repeats,
        "best_non_private": best,
        "ratio": ratios,
    }


def peak_memory() -> dict[str, dict[str, float]]:
    """Measures the peak memory of a whole worker step at each batch of `BATCHES`, each in a process of its own."""
    with tempfile.TemporaryDirectory() as stores:
        figures = {}
        for batch in BATCHES:
            command = [sys.executable, "-m", "benchmarks.memory", stores, str(batch), str(max(BATCHES) + 4_464)]
            output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            before, peak, seconds = map(float, output.split())
            figures[str(batch)] = {"before_mb": before, "peak_mb": peak, "seconds": seconds}
        smallest = figures[str(BATCHES[0])]["seconds"]
        for figure in figures.values():
            figure["time_over_smallest"] = round(figure.pop("seconds") / smallest, 1)
        return figures


def main() -> None:
    """Measures, prints and writes ``benchmarks/results/step.json``."""
    figures: dict = {"overhead": {}}
    for name, (config, records, repeats, microbatches) in MODELS.items():
        result = overheads(config, records, repeats, microbatches, size=SIDES.get(name, 32))
        figures["overhead"][name] = result
        print(f"{name}: {result['parameters']:,} parameters, best non-private: {result['best_non_private']}")
        for contender, ratio in result["ratio"].items():
            print(f"  {contender:<26} {ratio:6.2f}")
    figures["memory"] = peak_memory()
    for batch, figure in figures["memory"].items():
        print(f"B = {batch:>6}: {figure['peak_mb']:.0f} MB at the peak, {figure['before_mb']:.0f} MB before the step")
    print(write_result("step", figures, seeds=[0]))


if __name__ == "__main__":
    main()
