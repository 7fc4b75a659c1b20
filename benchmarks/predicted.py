"""Predicted over measured seconds of a step, for one worker and for two on this machine's two cores.

    python -m benchmarks.predicted            ten minutes on two quiet cores; writes benchmarks/results/predicted.json
    python -m benchmarks.predicted --quick    to see that it works; writes nothing

The parts of a step are measured in one process with one thread, at a quarter of the batch (`benchmarks.parts`). From them
`cluster.plan` predicts the steps of whole runs of the quickstart's plan. Then torchrun carries these out, with one process and
with two, in turns (`benchmarks.cluster`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import tomli_w

from benchmarks.cluster import SPEEDUP, compare, tree
from benchmarks.record import write_result
from benchmarks.turns import BLOCK
from dpfed.data.generated.shapes import shapes_store

WORKERS = {"a-one": 1, "b-two": 2}


def predict(folder: Path, config: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Seconds of a step by number of workers, as JSON of `cluster.plan`, and the parts that they come from."""
    small = config | {"privacy": config["privacy"] | {"batch": config["privacy"]["batch"] // 4}}
    for name, one in (("small", small), ("whole", config)):
        (folder / f"{name}.toml").write_text(tomli_w.dumps(one), encoding="utf-8")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    measured = folder / "measured.json"
    measured.write_text(_output(["benchmarks.parts", str(folder / "small.toml")], environment), encoding="utf-8")
    parts = json.loads(measured.read_text(encoding="utf-8"))["figures"]
    seconds = parts["transport"]["reduce_and_broadcast_seconds"]
    size = max(seconds, key=int)
    bandwidth = 2 * 4 * int(size) / seconds[size] / 1e9  # GB/s: the sum goes one way, and the parameters the other
    flags = ["--config", str(folder / "whole.toml"), "--measured", str(measured), "--model", config["name"]]
    flags += ["--bandwidth", f"{bandwidth:.6g}", "--gpu-price", "0", "--json"]
    flags += [word for count in WORKERS.values() for word in ("--workers", str(count))]
    rows = json.loads(_output(["cluster.plan", *flags], environment))["workers"]
    return {name: next(row for row in rows if row["workers"] == count) for name, count in WORKERS.items()}, parts


def _output(words: list[str], environment: dict[str, str]) -> str:
    return subprocess.run([sys.executable, "-m", *words], env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout


def main(quick: bool) -> None:
    """Measures, prints and writes ``benchmarks/results/predicted.json``."""
    records, batch, blocks = (2_000, 256, 2) if quick else (20_000, 2_048, 5)
    with tempfile.TemporaryDirectory() as place:
        folder, stores = Path(place), Path(place) / "stores"
        shapes_store(records, stores)
        config = tree(stores, records, batch, blocks * BLOCK)
        rows, parts = predict(folder, config)
        measured = compare(folder, SPEEDUP, config)
    found = {
        str(WORKERS[name]): {
            "measured": measured["seconds_per_step"][name],
            "predicted": round(rows[name]["step"], 4),
            "ratio": round(rows[name]["step"] / measured["seconds_per_step"][name], 3),
        }
        for name in WORKERS
    }
    print(json.dumps(found, indent=2))
    if not quick:
        figures = {"workers": found, "parts": parts, "milliseconds_of_a_step": measured["milliseconds_of_a_step"]}
        print(write_result("predicted", figures, seeds=[0]))


if __name__ == "__main__":
    main("--quick" in sys.argv[1:])
