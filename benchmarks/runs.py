"""Trains a run that README.md or docs/towers.md shows, from its configuration, and keeps the contents of its results.json.

python -m benchmarks.runs quickstart
python -m benchmarks.runs cifar10-cpu --set data.path=../shared/data/cifar10
python -m benchmarks.runs adapt/shapes-public && python -m benchmarks.runs adapt/shapes
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path

from benchmarks.record import write_result
from dpfed.config import load_config
from dpfed.runs.pretraining import pretrain


def main(name: str, assignments: list[str]) -> None:
    """Trains ``configs/NAME.toml``, and writes its result file and a copy of its privacy card.

    Args:
        name: Name of the configuration. The folder of the run, ``runs/`` and the name in the configuration, must not exist.
        assignments: Changes to the configuration, each ``section.key=value``.
    """
    config = load_config(f"configs/{name}.toml", assignments)
    started = time.perf_counter()
    run = pretrain(config, Path("runs") / config.name)
    minutes = (time.perf_counter() - started) / 60
    results = json.loads(run.results.read_text(encoding="utf-8"))
    shutil.copy(run.card, Path(__file__).parent / "results" / f"{config.name}.card.md")
    # The noise is secret and fresh in every run, so there is no seed to give; figures vary by a few points.
    print(write_result(config.name, {**results, "minutes_on_this_machine": round(minutes, 1)}, seeds=[]))


if __name__ == "__main__":
    main(sys.argv[1], [text for text in sys.argv[2:] if text != "--set"])
