"""What features of a million records cost: 512 numbers each, written in shards, and read by DP-GCL of a linear head.

    python -m benchmarks.cached_features [RECORDS]

The features are noise, so the time of the towers is not in it. Writes ``benchmarks/results/cached-features.json``.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

from benchmarks.record import write_result
from dpfed.bounding.engines import GroupBatch, LayerwiseEngine
from dpfed.features.cache import Features, Shard
from dpfed.models.contrastive import SimCLRModel
from dpfed.models.parameters import TrainableVector

_WIDTH, _BATCH, _GROUP, _STEPS = 512, 1024, 16, 50


def peak() -> int:
    """Most memory that the process had, MB; what is mapped from the disk counts while it is in memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def main(records: int = 1_000_000) -> None:
    """Measures, and writes the result file."""
    generator, before = torch.Generator().manual_seed(0), peak()
    noise = torch.randn(8192, 1, _WIDTH, generator=generator)
    with tempfile.TemporaryDirectory() as folder:
        features = Features(Path(folder) / "features", np.arange(records))
        started = time.perf_counter()
        features.complete(lambda rows, _: Shard(noise[: len(rows)]), lambda done: None)
        written, of_writing = time.perf_counter() - started, peak()
        size = sum(file.stat().st_size for file in Path(folder).rglob("*.safetensors"))
        head = nn.Sequential(nn.Linear(_WIDTH, 128), nn.ReLU(), nn.Linear(128, 64))
        model = SimCLRModel(nn.Identity(), head)
        engine, into, times = LayerwiseEngine(model, if_unlike="go on"), TrainableVector(model).zeros(), []
        for _ in range(_STEPS):
            rows = torch.randperm(records, generator=generator)[:_BATCH].numpy()
            started = time.perf_counter()
            views = features.images(features.positions(rows), np.zeros((_BATCH, 2), int))
            read = time.perf_counter() - started
            engine.add_clipped(GroupBatch({"image": views}, list(range(0, _BATCH + 1, _GROUP))), 1.0, into)
            times.append((read, time.perf_counter() - started))
    reading, step = np.median(times[_STEPS // 2 :], axis=0)
    found = {
        "records": records,
        "numbers": _WIDTH,
        "bytes": size,
        "seconds to write": round(written, 1),
        "MB while writing": of_writing - before,
        "MB while training": peak() - before,
        "ms to read the records of a step": round(1000 * reading, 1),
        "ms of a step": round(1000 * step, 1),
        "records of a step": _BATCH,
    }
    print(found)
    print(write_result("cached-features", found, seeds=[0]))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
