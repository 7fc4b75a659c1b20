"""What being apart costs three institutions: `make federation` against one process with all records, and simulations.

    python -m benchmarks.institutions       about eight minutes on two cores; writes benchmarks/results/institutions.json

The same plan, so the same epsilon, and the same held-out records. The noise is fresh in each run: figures vary by a few points.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.record import write_result
from dpfed.artifacts.directory import RunDirectory

CONFIG = "configs/federation.toml"
_PRETRAIN = ("-m", "dpfed", "pretrain", CONFIG, "--run")
RUNS: dict[str, tuple[str, ...]] = {
    "three institutions, Flower over TLS": ("-m", "dpfed", "federation", "demo", CONFIG, "--run"),
    "one process, all records": _PRETRAIN,
    "simulated, secure": (*_PRETRAIN, "{run}", "--federated", "3", "--trust", "secure"),
}


def measure(arguments: tuple[str, ...], folder: Path) -> dict[str, Any]:
    """Carries a run out, and reads its results."""
    command = [str(folder / "run") if part == "{run}" else part for part in arguments]
    command += [] if "{run}" in arguments else [str(folder / "run")]
    started = time.perf_counter()
    subprocess.run([sys.executable, *command], check=True)
    seconds = time.perf_counter() - started
    results = json.loads(RunDirectory.open(folder / "run").results.read_text(encoding="utf-8"))
    lines = {line["name"]: line for line in results["evaluations"] if line["model"] == "trained"}
    metrics = ("image_to_text_R@10", "text_to_image_R@10")
    return {
        **{metric: lines[metric]["value"] for metric in metrics},
        "intervals": {metric: lines[metric]["interval"] for metric in metrics},
        "epsilon": results["privacy"]["epsilon"],
        "steps": results["privacy"]["steps_charged"],
        "minutes": round(seconds / 60, 1),
    }


def main() -> None:
    """Measures, prints and writes."""
    figures = {}
    for name, arguments in RUNS.items():
        with tempfile.TemporaryDirectory() as folder:
            figures[name] = measure(arguments, Path(folder))
        print(name, json.dumps(figures[name]), flush=True)
        print(write_result("institutions", figures, seeds=[]), flush=True)


if __name__ == "__main__":
    main()
