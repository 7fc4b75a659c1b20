"""Public contrast on all of CIFAR-10 at epsilon 1, with photographs of other things, in 20 minutes on two cores.

python -m benchmarks.public_cifar10 DATA PHOTOGRAPHS [RUNS [PROCESSES]]      2 runs from random weights for each M, one process

The public set is that of `benchmarks.public_sets`: 5,000 crops of photographs. One more run begins where training on them alone
ends; before its first step it shows what public data alone reach. Minutes are those of one core.
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks import public_sets as sets
from benchmarks.kept import KeptRuns
from benchmarks.trained import measured, trained

STEPS, GROUPS, RATE = 200, 1024, 2e-3
IN_GROUP = (3, 7)


def main(data: str, photographs: str, runs: int = 2, processes: int = 1) -> None:
    """Trains what is missing, and writes ``benchmarks/results/public-cifar10.json``."""
    sets.FOLDER.mkdir(parents=True, exist_ok=True)
    sets.crop(Path(photographs))
    alone = sets.alone("photographs")
    kept = KeptRuns("public-cifar10")
    with ThreadPoolExecutor(processes) as pool:
        wanted = [("photographs", IN_GROUP[0], 0)]
        wanted += [("random", in_group, run) for in_group in IN_GROUP for run in range(runs)]
        found = list(pool.map(lambda one: _run(kept, data, alone, *one), wanted))
    kept.finish(found, steps=STEPS, groups=GROUPS, rate=RATE)


def _run(kept: KeptRuns, data: str, alone: Path, start: str, in_group: int, run: int) -> dict[str, Any]:
    changes = sets.private_settings(in_group, GROUPS, STEPS) | {
        "data.path": data,
        "optimizer.learning_rate": RATE,
        "public.path": str(sets.store("photographs")),
        **({"model.start": str(alone)} if start == "photographs" else {}),
    }
    place = sets.FOLDER / f"cifar10-{start}-{in_group}-{run}"

    def train() -> dict[str, Any]:
        started = time.monotonic()
        figures = measured(trained(place, "cifar10-cpu", changes), sets.METRICS)
        return {**figures, "minutes": round((time.monotonic() - started) / 60, 1)}

    return kept.find({"start": start, "in_group": in_group, "run": run}, changes, train)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
