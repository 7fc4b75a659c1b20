"""What it costs to clip a model whose parameters are sharded: both sharded engines over the loop engine, per group.

    python -m benchmarks.sharded               about 15 minutes on two quiet cores; writes benchmarks/results/sharded.json
    python -m benchmarks.sharded "ResNet-18"   measures that model anew, and leaves the figures of the others
    python -m benchmarks.sharded --quick       to see that it works; writes nothing

The three engines take turns in the same processes, one thread in each. Every rank has as many groups, and a turn ends when all
ranks are through, so the loop engine, too, waits for the slowest. Only ratios of medians mean something on another machine.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from benchmarks.record import RESULTS, commit, figures, write_result
from benchmarks.throughput import stand_in_views
from cluster.lockstep import LockstepEngine
from cluster.sharded_layers import ShardedLayerwiseEngine
from cluster.sharded_vector import shard_model
from cluster.sharding import ShardedEngine
from dpfed.bounding.engines import GroupBatch, LoopEngine
from dpfed.config import AdaptationConfig, ModelConfig, ObjectiveConfig
from dpfed.models.building import build_model
from dpfed.models.parameters import TrainableVector

# Model, side of an image, records of a rank, turns that count. All of the parameters are trained.
MODELS = {
    "ResNet-18": (ModelConfig(image="resnet18", width=64), 32, 32, 2),
    "two towers": (ModelConfig(kind="image-text", image="cnn"), 32, 256, 5),
    "ViT-B-32": (ModelConfig(kind="open_clip", architecture="ViT-B-32"), 224, 16, 2),
}
QUICK = {"two towers": (MODELS["two towers"][0], 32, 32, 1)}
SIZES = (4, 16)
RANKS = (1, 2)


def built(config: ModelConfig, side: int) -> nn.Module:
    """The same model on every rank, trained in full."""
    torch.manual_seed(0)
    full = AdaptationConfig(image="full", text="full") if config.kind == "open_clip" else AdaptationConfig()
    return build_model(config, ObjectiveConfig(), full, side, load_weights=False).train()


def measure(rank: int, ranks: int, folder: Path, given: tuple[ModelConfig, int, int, int]) -> None:
    """One rank's part; rank 0 writes down seconds per group and what was compared."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=ranks)
    config, side, records, turns = given
    whole, model = built(config, side), built(config, side)
    shard_model(model, init_device_mesh("cpu", (ranks,)))
    torch.manual_seed(rank)
    views = stand_in_views(config, records, side, torch.device("cpu"))
    noise = GroupBatch({name: view[:2] for name, view in views.items()}, [0, 2])
    two_pass = ShardedEngine(model, dummy_batch=noise)
    loop, by_size = LoopEngine(whole), dict[str, Any]()
    for size in SIZES:
        batch = GroupBatch(views, list(range(0, records + 1, size)))
        layerwise = ShardedLayerwiseEngine(model, group_size=size, dummy_batch=noise)

        def sharded(engine: LockstepEngine, batch: GroupBatch = batch) -> torch.Tensor:
            into = engine.zeros()
            engine.add_clipped(batch, 1.0, into)
            return engine.finish(into)

        def plain(batch: GroupBatch = batch) -> torch.Tensor:
            into = loop.zeros()
            loop.add_clipped(batch, 1.0, into)
            return into

        contenders: dict[str, Callable[[], torch.Tensor]] = {
            "loop": plain,
            "two passes": lambda: sharded(two_pass),
            "layerwise": lambda layerwise=layerwise, run=sharded: run(layerwise),
        }
        seconds: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(turns + 1):  # the first turn warms up
            for name, contender in contenders.items():
                dist.barrier()
                started = time.perf_counter()
                contender()
                dist.barrier()
                seconds[name].append((time.perf_counter() - started) / len(batch.sizes))
        by_size[f"S = {size}"] = compared(seconds)
    by_size["parameters"] = TrainableVector(whole).numel
    if rank == 0:
        (folder / "found.json").write_text(json.dumps(by_size), encoding="utf-8")
    dist.destroy_process_group()


def compared(seconds: dict[str, list[float]]) -> dict[str, Any]:
    """Medians, their ratios to the loop's, and the range of the ratios within one turn; the first turn does not count."""
    median = {name: statistics.median(times[1:]) for name, times in seconds.items()}
    within = {
        name: sorted(time / loop for time, loop in zip(times[1:], seconds["loop"][1:], strict=True))
        for name, times in seconds.items()
    }
    return {
        "milliseconds_per_group": {name: round(1e3 * value, 1) for name, value in median.items()},
        "ratio": {name: round(value / median["loop"], 2) for name, value in median.items()},
        "ratio_within_a_turn": {name: [round(values[0], 2), round(values[-1], 2)] for name, values in within.items()},
    }


def main(names: list[str]) -> None:
    """Measures, prints and writes ``benchmarks/results/sharded.json``.

    Args:
        names: of models; none: all; ``--quick``: see above.
    """
    quick = names == ["--quick"]
    models = QUICK if quick else {name: MODELS[name] for name in names or MODELS}
    measured: dict[str, Any] = figures("sharded") if names and not quick and (RESULTS / "sharded.json").exists() else {}
    for name, given in models.items():
        measured[name] = {"commit": commit(), "records_of_a_rank": given[2], "turns": given[3]}
        for ranks in RANKS:
            with tempfile.TemporaryDirectory() as folder:
                multiprocessing.spawn(measure, args=(ranks, Path(folder), given), nprocs=ranks)
                found = json.loads((Path(folder) / "found.json").read_text(encoding="utf-8"))
            measured[name] |= {"parameters": found.pop("parameters"), f"{ranks} rank{'s' * (ranks > 1)}": found}
            measured[name]["load_average"] = round(os.getloadavg()[2], 1)  # over 15 minutes: who else computed
            for size, one in found.items():
                print(f"{name}, {ranks} ranks, {size}: {one['ratio']}", flush=True)
    if not quick:
        print(write_result("sharded", measured, seeds=[0]))


if __name__ == "__main__":
    main(sys.argv[1:])
