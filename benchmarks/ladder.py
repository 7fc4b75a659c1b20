"""What a private run begins with, and what people reach without one: a small CNN and CIFAR-10 at epsilon 1, one protocol.

python -m benchmarks.ladder DATA [RUNS [PROCESSES]]      DATA: CIFAR-10 as Parquet; 2 runs of each, one process

Baselines see no private record before the probe does: untrained and scattering features (Tramer and Boneh 2021), a procedural
start, and training on a public set of another domain (rendered shapes). Then each start is trained privately, by DP-GCL and by
public contrast with as many passes of the model, and without privacy. Each method takes the best of the same rates, by one run
of each from random weights. The runs are in runs/ladder; what the result file holds is not trained again.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import scipy.special
import torch
from torch import Tensor, nn

from benchmarks.kept import KeptRuns
from benchmarks.trained import measured, trained
from dpfed.config import load_config
from dpfed.evaluation.suite import evaluate
from dpfed.privacy.randomness import Randomness
from dpfed.runs.assembly import assemble
from dpfed.runs.resolution import resolve

FOLDER = Path("runs/ladder")
METRICS = ("knn3_accuracy", "knn200_accuracy", "linear_probe_accuracy")
STEPS, PASSES = 100, 2048  # passes: of the model over a record, in a step
WIDTH = 16  # noise grows with the number of parameters
STARTS = {"random": None, "procedural": "procedural", "shapes": str(FOLDER / "shapes-0")}
METHODS: dict[str, dict[str, Any]] = {
    "group": {"privacy.epsilon": 1, "bounding.group_size": 4, "privacy.batch": PASSES},
    "public": {
        "privacy.epsilon": 1,
        "bounding.method": "public",
        "bounding.group_size": "",
        "public.source": "procedural",
        "public.records": 3,
        "public.centring": 0,  # a picture of the world and a procedural one are told apart at once; centres gain nothing here
        "privacy.batch": PASSES // 4,
    },
    "none": {
        "bounding.method": "none",
        "bounding.clip_norm": "",
        "privacy.epsilon": "",
        "bounding.group_size": 256,
        "privacy.batch": PASSES,
    },
}
RATES = (1e-3, 2e-3, 4e-3)
_Run = tuple[str, str, float, int]  # start, method, learning rate, number


class Scattering(nn.Module):
    """Second-order scattering coefficients (J = 2, L = 8) of 32 x 32 images, averaged over each quadrant: 972 features."""

    def __init__(self) -> None:
        super().__init__()
        # kymatio 0.3 imports a function for its 3D transform, which SciPy 1.17 no longer has. This is the 2D one.
        scipy.special.sph_harm = None
        from kymatio.torch import Scattering2D

        self._scattering = Scattering2D(J=2, shape=(32, 32), L=8)

    def features(self, images: Tensor) -> Tensor:
        """``(n, 3, 32, 32)`` -> ``(n, 972)``."""
        return nn.functional.adaptive_avg_pool2d(self._scattering(images).flatten(1, 2), 2).flatten(1)


def main(data: str, runs: int = 2, processes: int = 1) -> None:
    """Trains what is missing, and writes ``benchmarks/results/ladder.json``."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    kept = KeptRuns("ladder")
    found: dict[_Run, dict[str, Any]] = {}
    with ThreadPoolExecutor(processes) as pool:

        def make(wanted: list[_Run]) -> None:
            found.update(zip(wanted, pool.map(lambda one: _run(kept, data, *one), wanted), strict=True))

        make([("random", method, rate, 0) for rate in RATES for method in ("public", "group")])
        best = {method: _best(found, method) for method in ("public", "group")}
        make([("random", method, best[method], run) for run in range(runs) for method in best])
        make([("random", "none", rate, 0) for rate in RATES])
        best["none"] = _best(found, "none")
        trained(FOLDER / "shapes-0", "start", {"data.source": "shapes", "model.width": WIDTH})
        # The first run that begins with a procedural start makes it, before others look for it.
        make([("procedural", "public", best["public"], 0)])
        make([(start, method, best[method], run) for run in range(runs) for start in STARTS for method in best])
    kept.finish(list(found.values()), steps=STEPS, passes=PASSES, rates=best, scattering=_scattering(data))


def _best(found: dict[_Run, dict[str, Any]], method: str) -> float:
    """The rate whose first run, from random weights, does best."""
    return max(RATES, key=lambda rate: sum(found["random", method, rate, 0]["after"].values()))


def _changes(data: str, start: str, method: str, rate: float) -> dict[str, Any]:
    given = {"model.start": STARTS[start]} if STARTS[start] else {}
    training = {"privacy.steps": STEPS, "optimizer.learning_rate": rate, "optimizer.schedule": "cosine"}
    return {"data.path": data, "model.width": WIDTH, "evaluation.every": 0, **training, **given, **METHODS[method]}


def _run(kept: KeptRuns, data: str, start: str, method: str, rate: float, run: int) -> dict[str, Any]:
    changes = _changes(data, start, method, rate)
    key = {"start": start, "method": method, "rate": rate, "run": run}
    place = FOLDER / f"{start}-{method}-{rate:g}-{run}"
    return kept.find(key, changes, lambda: measured(trained(place, "cifar10-cpu", changes), METRICS))


def _scattering(data: str) -> dict[str, float]:
    kept = FOLDER / "scattering.json"
    if not kept.exists():
        assignments = [f"{key}={value}" for key, value in _changes(data, "random", "none", RATES[0]).items()]
        parts = assemble(resolve(load_config("cifar10-cpu", assignments)), Randomness.from_seed(0))
        torch.set_num_threads(1)
        with torch.no_grad():
            found = evaluate(
                Scattering(), parts.store, parts.read, parts.config, parts.views.plain, None, "untrained", 0, "cpu"
            )
        kept.write_text(json.dumps({one.name: one.value for one in found}), encoding="utf-8")
    return json.loads(kept.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
