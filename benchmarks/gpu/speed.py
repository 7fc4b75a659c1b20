"""What `python -m benchmarks.throughput`, `step` and `memory` measure, on a GPU and at its sizes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks import step, throughput
from benchmarks.gpu.place import Place
from dpfed.config import ModelConfig, parse_config
from dpfed.privacy.randomness import Randomness
from dpfed.runs.assembly import assemble
from dpfed.runs.resolution import resolve

_TINY = ModelConfig(image="cnn", width=8)
# Records, repeats, microbatches of the non-private step.
OVERHEADS = {
    "small CNN": (2_048, 5, (512, 1_024, 2_048)),
    "ResNet-18": (512, 5, (64, 128, 512)),
    "ResNet-18, ImageNet stem": (1_024, 5, (128, 512, 1_024)),
}
BATCHES = (1_024, 16_384)
_RECORDS = 20_000


def gradients(place: Place, model: str) -> dict[str, Any]:
    """Clipped group gradients per second of one of `throughput.MODELS`."""
    config, size, _, records = throughput.MODELS[model]
    if place.tiny:
        return throughput.gradients(_TINY, 32, 32, place.device)
    return fitting(lambda count: throughput.gradients(config, size, count, place.device), records or 512)


def coordinator(place: Place) -> dict[str, float]:
    """Noise and bookkeeping per million parameters."""
    return throughput.coordinator(place.device)


def transport(place: Place) -> dict[str, Any]:
    """Two processes of the machine over gloo: with one GPU there is no other pair."""
    return throughput.transport()


def overheads(place: Place, model: str) -> dict[str, Any]:
    """A private step over the best non-private one."""
    if place.tiny:
        return step.overheads(_TINY, 32, 1, (16,), place.device)
    config = step.MODELS[model][0]
    records, repeats, microbatches = OVERHEADS[model]

    def ratios(count: int) -> dict[str, Any]:
        return step.overheads(config, count, repeats, tuple(size for size in microbatches if size <= count), place.device)

    return fitting(ratios, records)


def memory(place: Place, model: dict[str, Any], batch: int, records: int = _RECORDS, size: int = 32) -> dict[str, Any]:
    """Memory of the device at the peak of a worker's whole step, and how long it takes when it is warm.

    Args:
        place: where.
        model: the section of a configuration.
        batch: B.
        records: N, generated.
        size: side of the images.
    """
    records, batch = (200, max(16, batch // 128)) if place.tiny else (records, batch)
    tree = {
        "data": {"records": records, "stores": str(place.work / "stores"), "size": size},
        "model": model | ({"width": 8} if place.tiny and "width" in model else {}),
        "privacy": {"noise_multiplier": 1.0, "batch": batch, "steps": 4},
        "bounding": {"group_size": 16, "microbatch": 256},
        "training": {"device": place.device.type},
        "evaluation": {"split": "none"},
    }
    randomness = Randomness.from_seed(0)
    config = resolve(parse_config(tree))
    parts = assemble(config, randomness)
    worker = parts.worker(randomness.for_owners())
    cuda = place.device.type == "cuda"
    before = torch.cuda.memory_allocated() if cuda else 0
    seconds = []
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    for number in range(3):
        started = time.perf_counter()
        worker.bounded_sum(number).values.sum().item()  # waits for the device
        seconds.append(time.perf_counter() - started)
    peak = torch.cuda.max_memory_allocated() if cuda else 0
    figures = {"before_mb": round(before / 2**20, 1), "peak_mb": round(peak / 2**20, 1)}
    return figures | {"seconds": round(min(seconds[1:]), 4), "batch": batch, "engine": config.bounding.engine}


def fitting(measure: Callable[[int], dict[str, Any]], records: int) -> dict[str, Any]:
    """Halves the number of records until they fit into the device's memory."""
    while True:
        try:
            return measure(records)
        except torch.OutOfMemoryError:
            if records < 32:
                raise
        torch.cuda.empty_cache()  # outside of the handler, which holds the tensors of the failed call
        records //= 2
