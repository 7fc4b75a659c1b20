"""What ranks gain that share the coordinator's work: rank 0's own part of a step, and the efficiency of 64 workers.

    python -m benchmarks.slices             some 8 minutes on two quiet cores; writes benchmarks/results/slices.json
    python -m benchmarks.slices --quick     to see that it works; writes nothing

Eight gloo processes of this machine take real steps of ResNet-18 over stand-in views, once as they do and once with all of the
coordinator's work on rank 0. Rank 0's *own* seconds are those in which all others wait for it. Smaller sums without gradients
say from how many numbers on sharing pays. The efficiency of 64 workers is arithmetic (`dpfed.cluster.estimate`) over parts
that are measured here and figures that are assumed, as `cluster/README.md` assumes them.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
import tempfile
import time
import types
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch import nn

from benchmarks.record import write_result
from benchmarks.stopwatch import Stopwatch
from benchmarks.throughput import GROUP, median_seconds, stand_in_views
from dpfed.bounding.bounded_sum import BoundedSum
from dpfed.bounding.engines import ENGINES, GroupBatch
from dpfed.cluster.collective import Collective, Replicas
from dpfed.cluster.estimate import Machines, estimate
from dpfed.cluster.link import Link
from dpfed.cluster.slices import Slices
from dpfed.config import AdaptationConfig, ModelConfig, ObjectiveConfig, OptimizerConfig
from dpfed.models.building import build_model
from dpfed.models.parameters import TrainableVector
from dpfed.privacy.blocks import LENGTH, Blocks, SumNoise, add_to_blocks_, block_length
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.randomness import Randomness
from dpfed.training.coordinator import Coordinator
from dpfed.training.releases import Part, Releases
from dpfed.training.slices import slices_of
from dpfed.training.trainer import train
from dpfed.training.update import SliceUpdate

WORKERS, STEPS = 8, 5  # the first one warms up
SIZES = tuple(1 << power for power in range(16, 23))  # numbers of sums without gradients
RESNET = ModelConfig(image="resnet18", width=64)
PLAN = PrivacyPlan(
    records=100_000, batch=WORKERS * GROUP, group_size=GROUP, clip_norm=1.0, steps=STEPS, noise_multiplier=1.0, delta=1e-6
)
# Of 64 GPUs, assumed (cluster/README.md): records per second of one, 25 Gbit/s, 200 microseconds, data as there.
ASSUMED: dict[str, Any] = {"bandwidth": 3e9, "latency": 2e-4, "price": 0.0, "keys": 0.24, "decoding": 5e-4, "views": 5e-5}
IMAGENET = PrivacyPlan(
    records=1_281_167, batch=65_536, group_size=256, clip_norm=1.0, steps=1_200, noise_multiplier=1.0, delta=1e-8
)
PAIRS = dataclasses.replace(IMAGENET, records=1_000_000_000, group_size=16, steps=15_259, delta=1e-11)
RUNS = {
    "ResNet-18, 224 px": (IMAGENET, 11_504_832, 500.0),
    "ViT-B-32 in full": (PAIRS, 151_277_313, 700.0),
    "ViT-B-32, LoRA of rank 16": (PAIRS, 983_040, 700.0),
}


class StandIn:
    """A worker whose records are noise: with gradients of a model, or with sums that cost nothing.

    Args:
        model: this rank's.
        gradients: whether it computes any.
    """

    asks_about_norms, threshold = False, 1.0

    def __init__(self, model: nn.Module, gradients: bool) -> None:
        self._engine = ENGINES["loop"](model, "fp32") if gradients else None
        self._views = stand_in_views(RESNET, GROUP, 32, torch.device("cpu")) if gradients else {}
        self._size = TrainableVector(model).numel

    def bounded_sum(self, step: int) -> BoundedSum:
        """One group's clipped gradient."""
        if self._engine is None:
            return BoundedSum(torch.zeros(self._size), PLAN.sensitivity, 1)
        into = self._engine.zeros()
        self._engine.add_clipped(GroupBatch(self._views, [0, GROUP]), 1.0, into)
        return BoundedSum(into.float(), PLAN.sensitivity, 1)


def take_part(rank: int, folder: str, size: int | None, share: bool) -> None:
    """One of the processes; rank 0 writes its seconds.

    Args:
        rank: of this process.
        folder: for ledger, releases and seconds.
        size: numbers of a sum without gradients; ``None``: ResNet-18.
        share: whether ranks share the coordinator's work.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=WORKERS)
    model: nn.Module
    if size is None:
        model = build_model(RESNET, ObjectiveConfig(), AdaptationConfig(), 32).train()
    else:
        model = nn.ParameterList([nn.Parameter(torch.zeros(size))])
    link, config = Link(), OptimizerConfig()
    parts = types.SimpleNamespace(plan=PLAN, model=model, config=types.SimpleNamespace(optimizer=config))
    collective = Collective(link, Replicas(model), StandIn(model, size is None), parts if share else None)  # type: ignore[arg-type]
    if rank:
        collective.serve()
    else:
        place, numel = Path(folder), TrainableVector(model).numel
        ledger = Ledger.create(place / "ledger.jsonl", PLAN, block=LENGTH if share else block_length(numel))
        coordinator = Coordinator(PLAN, model, config, Randomness.from_seed(0), ledger, Releases(place / "releases"))
        collective.share_out(coordinator, place / "releases")
        together = ("hash", "make_noisy", "take_step")
        orders = {"order": (Link, "order"), "announce": (Link, "announce")}
        watch = Stopwatch({"apply": (Coordinator, "apply"), **orders, **{name: (Slices, name) for name in together}})
        steps: list[tuple[float, float, float]] = []
        for step in range(STEPS):
            started = time.perf_counter()
            train(collective, coordinator, [step])
            parts_of_step = watch.take()
            own = parts_of_step["apply"] - sum(parts_of_step.get(name, 0.0) for name in together)
            waiting = parts_of_step["order"] - parts_of_step["announce"]  # which is an order, too, but before the sum
            steps.append((time.perf_counter() - started, own, own - waiting))
        link.announce(None)
        (place / "seconds.json").write_text(json.dumps(steps[1:]))
    dist.destroy_process_group()


def steps_of(size: int | None, share: bool) -> dict[str, float]:
    """Median seconds of a step of eight processes, and rank 0's own; *alone* are those without its orders to the others.

    An order takes long where eight processes share two cores. The estimate counts orders by the network's latency.
    """
    with tempfile.TemporaryDirectory() as folder:
        # Forked: eight processes that load PyTorch take longer than what they measure. Nothing here has threads yet.
        multiprocessing.start_processes(take_part, (folder, size, share), WORKERS, start_method="fork")
        seconds = json.loads((Path(folder) / "seconds.json").read_text())
    step, own, alone = (statistics.median(column) for column in zip(*seconds, strict=True))
    share = round(own / step, 4)
    return {"step_seconds": round(step, 5), "own_seconds": round(own, 5), "own_share": share, "alone_seconds": round(alone, 5)}


def slice_seconds(parameters: int, workers: int) -> dict[str, float]:
    """Seconds in which one core does the coordinator's work of the largest slice: noise, and all the rest."""
    blocks = Blocks(parameters, LENGTH)
    own = max(slices_of(blocks, workers), key=lambda one: one.count)
    plan, noise = dataclasses.replace(PLAN, steps=100), SumNoise(PLAN.noise, Randomness.from_seed(0), blocks, "benchmark")
    model = nn.ParameterList([nn.Parameter(torch.zeros(parameters))])
    update, values, keys = SliceUpdate(plan, model, OptimizerConfig(), own), torch.zeros(own.numel), []
    keys = noise.keys(0, own.first, own.end)
    draw = median_seconds(lambda: add_to_blocks_(blocks, values, PLAN.noise, keys, "benchmark", 0))
    with tempfile.TemporaryDirectory() as folder:
        releases, step = Releases(Path(folder) / "releases"), iter(range(plan.steps))

        def rest() -> None:
            number = next(step)
            blocks.digests(values)
            releases.save_part(Part(number, "ab", own.first, own.end, blocks), values, blocks.digests(values))
            update.take(number, values, None)

        others = median_seconds(rest)
    millions = own.numel / 1e6
    return {"noise_seconds_per_million": draw / millions, "bookkeeping_seconds_per_million": others / millions}


def simulated(alone_seconds: float) -> dict[str, dict[str, float]]:
    """The efficiency of 64 workers, from measured seconds of the coordinator's work and assumed GPUs."""
    found = {}
    for name, (plan, parameters, throughput) in RUNS.items():
        measured = slice_seconds(parameters, 64)
        machines = Machines(
            throughput=throughput,
            noise=measured["noise_seconds_per_million"],
            bookkeeping=measured["bookkeeping_seconds_per_million"],
            each_step=alone_seconds,
            **ASSUMED,
        )
        rows = {way: estimate(plan, machines, parameters, 64, shared=way == "shared") for way in ("rank_0", "shared")}
        found[name] = {key: round(value, 5) for key, value in measured.items()}
        for way, row in rows.items():
            figures = {"efficiency": row.efficiency, "coordinator": row.coordinator, "own_share": row.own / row.step}
            found[name] |= {f"{way}_{key}": round(value, 4) for key, value in figures.items()}
    return found


def main(quick: bool) -> None:
    """Measures, prints and writes ``benchmarks/results/slices.json``."""
    torch.set_num_threads(1)
    sizes = SIZES[2:3] if quick else SIZES
    figures: dict[str, Any] = {"workers": WORKERS, "records_per_worker": GROUP, "model": "ResNet-18, 32 px"}
    with patch.dict("os.environ", {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}):
        for way in ("rank_0", "shared"):
            figures[way] = steps_of(None if not quick else 2_000_000, way == "shared")
            print(way, figures[way], flush=True)
        figures["without_gradients"] = {
            str(size): {way: steps_of(size, way == "shared")["step_seconds"] for way in ("rank_0", "shared")} for size in sizes
        }
    print(json.dumps(figures["without_gradients"], indent=2), flush=True)
    figures["64_workers"] = simulated(figures["shared"]["alone_seconds"])
    print(json.dumps(figures["64_workers"], indent=2))
    if not quick:
        print(write_result("slices", figures, seeds=[0]))


if __name__ == "__main__":
    main("--quick" in sys.argv[1:])
