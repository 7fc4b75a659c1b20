"""Measures what a cluster costs and gains: Ray against the plain loop, two workers against one, and a batch of 65,536.

    python -m benchmarks.cluster            about 16 minutes on two quiet cores; writes benchmarks/results/cluster.json
    python -m benchmarks.cluster --quick    a short trial of the benchmark; writes nothing

Whole runs of the quickstart's plan are started by the real launcher and compared two at a time. The two runs take blocks of
steps in turn (`benchmarks.turns`). Only the ratios mean something on another machine. Evaluation is off. Ray's own processes
run beside both runs.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.record import write_result
from benchmarks.turns import BLOCK
from dpfed.config import load_config
from dpfed.data.generated.shapes import shapes_store

BATCHES = (1_024, 65_536)
# name, how it is started, workers, cores of each. The first of a pair is what the second is compared with.
Run = tuple[str, str, int, int]
OVERHEAD: tuple[Run, Run] = (("a-plain", "alone", 1, 2), ("b-ray", "ray", 1, 2))
# Two workers leave no core for Ray's services, and two waiting jobs have twice as many of them: torchrun has none.
SPEEDUP: tuple[Run, Run] = (("a-one", "torchrun", 1, 1), ("b-two", "torchrun", 2, 1))
# With them: one job at a time, in turns.
SPEEDUP_OF_RAY: tuple[Run, Run] = (("a-one", "ray", 1, 1), ("b-two", "ray", 2, 1))


@contextlib.contextmanager
def ray_cluster() -> Iterator[None]:
    """Runs a Ray cluster on this machine, which child processes find. The cluster allows more workers than there are cores."""
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_USAGE_STATS_ENABLED": "0"}
    os.environ["RAY_worker_niceness"] = "0"  # otherwise 15: whatever else runs would be served before Ray's workers
    import ray

    context = ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    os.environ["RAY_ADDRESS"] = context.address_info["address"]
    try:
        yield
    finally:
        ray.shutdown()


def tree(stores: Path, records: int, batch: int, steps: int) -> dict[str, Any]:
    """Returns the quickstart's configuration with other sizes, without evaluation, and with a given noise multiplier.

    Args:
        stores: Folder of generated record stores.
        records: Number of records.
        batch: B, expected number of records in a step.
        steps: T, number of steps.
    """
    config = load_config("configs/quickstart.toml").model_dump(mode="json", exclude_unset=True)
    config["data"] |= {"records": records, "stores": str(stores), "public": False}
    config["privacy"] = {"noise_multiplier": 1.0, "accountant": "rdp", "batch": batch, "steps": steps}
    config["bounding"] |= {"engine": "loop", "microbatch": 256}
    config["training"] = {"device": "cpu", "checkpoint_every": steps}
    config["evaluation"] = {"split": "none"}
    return config


def measured(folder: Path, runs: tuple[Run, ...], config: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """Carries out runs side by side.

    Args:
        folder: Folder of the runs and of their figures.
        runs: Runs: name, kind of start, number of workers, and cores of each worker.
        config: Configuration of the runs, as nested dictionaries.

    Returns:
        For each run, the figures of its processes, by rank.
    """
    names = [name for name, *_ in runs]
    processes = []
    for name, start, workers, cpus in runs:
        other = "".join(peer for peer in names if peer != name)
        given = {"folder": str(folder), "name": name, "other": other, "tree": config}
        given |= {"start": start, "workers": workers, "cpus": cpus}
        torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(workers), "-m"]
        command = [*(torchrun if start == "torchrun" else []), "benchmarks.turns", json.dumps(given)]
        environment = os.environ | {"OMP_NUM_THREADS": str(cpus)}
        processes.append(subprocess.Popen([sys.executable, "-m", *command], env=environment))
    codes = [process.wait() for process in processes]
    if any(codes):
        raise SystemExit(f"{names} ended with {codes}")
    return [
        [json.loads((folder / f"{name}-{rank}.json").read_text()) for rank in range(workers)] for name, _, workers, _ in runs
    ]


def compare(folder: Path, runs: tuple[Run, Run], config: dict[str, Any]) -> dict[str, Any]:
    """Returns the step times of two runs that took turns, and the parts of their steps."""
    first, second = (ranks[0] for ranks in measured(folder, runs, config))
    blocks = [[statistics.median(block) for block in chunks(run["seconds"])] for run in (first, second)]
    ratios = sorted(after / before for before, after in zip(*blocks, strict=True))
    return {
        "seconds_per_step": {
            name: round(statistics.median(run["seconds"]), 4) for (name, *_), run in zip(runs, (first, second), strict=True)
        },
        "threads": [run["threads"] for run in (first, second)],
        "steps_timed": len(first["seconds"]),
        "ratio": round(statistics.median(second["seconds"]) / statistics.median(first["seconds"]), 4),
        "ratio_of_blocks_quartiles": [round(value, 4) for value in statistics.quantiles(ratios, n=4)],
        "milliseconds_of_a_step": {name: split(run) for (name, *_), run in zip(runs, (first, second), strict=True)},
    }


def one_after_the_other(folder: Path, runs: tuple[Run, Run], config: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Returns the step times of two runs. Each round starts both runs again, one after the other."""
    seconds: dict[str, list[list[float]]] = {name: [] for name, *_ in runs}
    for number in range(rounds):
        for name, *how in runs:
            ((rank, *_),) = measured(folder, ((f"{name}-{number}", *how),), config)
            seconds[name].append(rank["seconds"])
    first, second = seconds.values()
    ratios = [
        round(statistics.median(after) / statistics.median(before), 4) for before, after in zip(first, second, strict=True)
    ]
    return {
        "seconds_per_step": {name: round(statistics.median(itertools.chain(*rounds)), 4) for name, rounds in seconds.items()},
        "ratio": statistics.median(ratios),
        "ratio_of_rounds": ratios,
    }


def chunks(seconds: list[float]) -> list[list[float]]:
    """Splits the seconds of the timed steps into blocks."""
    return [seconds[start : start + BLOCK - 1] for start in range(0, len(seconds), BLOCK - 1)]


def split(run: dict[str, Any]) -> dict[str, float]:
    """Returns the medians of the parts of a step on rank 0, milliseconds; `other` is the time between the parts."""
    parts = {name: statistics.median(values) * 1e3 for name, values in run["parts"].items()}
    parts["books"] -= parts["noise"]
    parts["other"] = statistics.median(run["seconds"]) * 1e3 - sum(parts.values())
    return {name: round(value, 2) for name, value in parts.items()}


def memory(folder: Path, stores: Path, records: int, batch: int) -> dict[str, Any]:
    """Measures a step of two workers: anonymous memory of each before it and at its peak, MB, and seconds of the slower."""
    (ranks,) = measured(folder, ((f"batch-{batch}", "ray", 2, 1),), tree(stores, records, batch, steps=1))
    return {
        "before_mb": [round(rank["before_mb"]) for rank in ranks],
        "peak_mb": [round(rank["peak_mb"]) for rank in ranks],
        "seconds": round(max(rank["parts"]["gradients"][0] for rank in ranks), 2),
    }


def show(name: str, figures: dict[str, Any]) -> dict[str, Any]:
    """Prints figures as soon as they are measured, and returns them."""
    print(name, json.dumps(figures, indent=2), flush=True)
    return figures


def main(quick: bool) -> None:
    """Measures, prints and writes ``benchmarks/results/cluster.json``."""
    sizes_of_all = (2_000, 256, 3, 1, 8_192) if quick else (20_000, 2_048, 8, 3, BATCHES[1])
    records, batch, blocks, rounds, most = sizes_of_all
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as services:
        folder, stores = Path(place), Path(place) / "stores"
        for count in (records, most + 4_464):
            shapes_store(count, stores)
        plan = tree(stores, records, batch, blocks * BLOCK)
        figures: dict[str, Any] = {"plan": {"records": records, "batch": batch, "group_size": 4, "block": BLOCK}}
        figures["speedup"] = show("speedup", compare(folder, SPEEDUP, plan))
        services.enter_context(ray_cluster())
        figures["overhead"] = show("overhead", compare(folder, OVERHEAD, plan))
        short = tree(stores, records, batch, 2 * BLOCK)
        figures["speedup_of_ray"] = show("speedup of Ray", one_after_the_other(folder, SPEEDUP_OF_RAY, short, rounds))
        sizes = (BATCHES[0], most)
        figures["memory"] = {str(size): show(f"B = {size:,}", memory(folder, stores, most + 4_464, size)) for size in sizes}
    if not quick:
        print(write_result("cluster", figures, seeds=[]))


if __name__ == "__main__":
    main("--quick" in sys.argv[1:])
