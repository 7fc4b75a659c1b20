"""What each ingredient of a recipe brings, on records that anyone may see.

    python -m benchmarks.recipes DATA [RUNS [PROCESSES]]      DATA: CIFAR-10 as Parquet; 2 runs of each, one process

The rungs of a situation are ingredients of its recipe in configs/recipes/: each rung adds one to those before. The recipe ends
where nothing more is gained. Where rates are tried, the best by one run counts. The recipe for many pairs is rehearsed: public
records get the noise of a run on a million. The runs are in runs/recipes; what the result file holds is not trained again.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from benchmarks.kept import KeptRuns, measured, trained
from benchmarks.public_contrast import SETTINGS, public_model

FOLDER = Path("runs/recipes")
METRICS = ("image_to_text_R@10", "text_to_image_R@10", "knn3_accuracy", "knn200_accuracy", "linear_probe_accuracy")
RECORDS, SITES = 20_000, 3
ADAPTERS, SCRATCH, IMAGES = (4e-3, 8e-3, 1.6e-2, 3.2e-2), (1e-3, 3e-3), (1e-3, 2e-3)  # rates that are tried


@dataclass(frozen=True)
class Rung:
    """A row of a ladder.

    Attributes:
        words: of the row.
        changes: keys and values that it adds to the row before.
        options: further arguments of ``dpfed pretrain``; those of the row before do not count.
    """

    words: str
    changes: dict[str, Any]
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ladder:
    """The rungs of one situation.

    Attributes:
        config: the shipped configuration that they change.
        common: keys and values of every rung.
        rates: learning rates that are tried on every rung.
        rungs: from the bottom.
    """

    config: str
    common: dict[str, Any]
    rates: tuple[float, ...]
    rungs: tuple[Rung, ...]

    def changes(self, number: int) -> dict[str, Any]:
        """Of a rung and all below it."""
        below: dict[str, Any] = dict(self.common)
        for rung in self.rungs[: number + 1]:
            below |= rung.changes
        return below


_COSINE = {"privacy.epsilon": 1, "optimizer.schedule": "cosine", "evaluation.every": 0}
_TOGETHER = ("--federated", str(SITES), "--trust", "secure")


_PROCEDURAL = {  # public contrast, with as many passes of the model as 2,048 private records
    "bounding.method": "public",
    "bounding.group_size": "",
    "public.records": 3,
    "public.source": "procedural",
    "privacy.batch": 512,
}


LADDERS = {
    "small-images": Ladder(
        "cifar10-cpu",
        {**_COSINE, "model.width": 16, "privacy.batch": 2048, "privacy.steps": 100, "bounding.group_size": 4},
        IMAGES,
        (
            Rung("DP-GCL, random weights", {}),
            Rung("and features of every stage", {"model.features": "pyramid"}),
            Rung("and a procedural start", {"model.start": "procedural"}),
            Rung("and an average of the weights", {"optimizer.ema": 0.95}),
            Rung("and public contrast with procedural images", {**_PROCEDURAL, "public.centring": 0}),
        ),
    ),
    "adaptation": Ladder(
        "adapt/shapes",
        {**_COSINE, "privacy.steps": 120, "bounding.engine": "layerwise"},
        ADAPTERS,
        (
            Rung("DP-GCL, adapters", SETTINGS["group"]),
            Rung("and public contrast", SETTINGS["public"]),
        ),
    ),
    "federation": Ladder(
        "federation",
        {**_COSINE, "privacy.batch": 2048, "privacy.steps": 60},
        SCRATCH,
        (
            Rung("one site alone, a third of the records", {"data.records": RECORDS // SITES, "privacy.batch": 2048 // SITES}),
            Rung("three sites, secure", {"data.records": RECORDS, "privacy.batch": 2048}, _TOGETHER),
            Rung("and a procedural start", {"model.start": "procedural"}, _TOGETHER),
            Rung("and public contrast with procedural pairs", _PROCEDURAL, _TOGETHER),
        ),
    ),
}


# Rehearsed: of a plan on a million pairs, with the small CNN in the place of ResNet-18.
MANY = 1_000_000
_STAND_IN = {"model.image": "cnn", "model.stem": "", "data.size": 32, "privacy.steps": 400, "model.start": ""}
REHEARSED: dict[str, tuple[str, dict[str, Any]]] = {
    "batch-2048": (
        "B = 2,048 in groups of 4, random weights",
        {"bounding.group_size": 4, "privacy.batch": 2048},
    ),
    "batch-16384": ("and B = 16,384", {"privacy.batch": 16_384}),
    "groups-of-16": ("and groups of 16", {"bounding.group_size": 16}),
    "procedural-start": ("and a procedural start", {"model.start": "procedural"}),
}


def main(data: str, runs: int = 2, processes: int = 1) -> None:
    """Trains what is missing, and writes ``benchmarks/results/recipes.json``."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    kept = KeptRuns("recipes")
    made: list[dict[str, Any]] = []
    with ThreadPoolExecutor(processes) as pool:

        def make(situation: str, wanted: Iterable[tuple[int, float, int]]) -> list[dict[str, Any]]:
            return list(pool.map(lambda one: _run(kept, data, situation, *one), wanted))

        for situation, ladder in LADDERS.items():
            numbers = range(len(ladder.rungs))
            first = make(situation, [(number, rate, 0) for number in numbers for rate in ladder.rates])
            best = [max(_of(first, ladder, number), key=lambda one: sum(one["after"].values()))["rate"] for number in numbers]
            made += first
            made += make(situation, [(number, best[number], run) for run in range(1, runs) for number in numbers])
    kept.finish([*made, _rehearsal(kept)])


def _of(made: list[dict[str, Any]], ladder: Ladder, number: int) -> list[dict[str, Any]]:
    return [one for one in made if one["rung"] == ladder.rungs[number].words]


def _run(kept: KeptRuns, data: str, situation: str, number: int, rate: float, run: int) -> dict[str, Any]:
    ladder = LADDERS[situation]
    changes = ladder.changes(number) | {"optimizer.learning_rate": rate}
    if situation == "small-images":
        changes["data.path"] = data
    if situation == "adaptation":  # of a public model that is the run's own, so that deviations tell what another would do
        changes["model.architecture"] = f"local-dir:{public_model(run)}/model"
    options = ladder.rungs[number].options
    key = {"situation": situation, "rung": ladder.rungs[number].words, "rate": rate, "run": run}
    place = FOLDER / f"{situation}-{number}-{rate:g}-{run}"
    return kept.find(key, changes, lambda: measured(trained(place, ladder.config, changes, options=options), METRICS))


def _rehearsal(kept: KeptRuns) -> dict[str, Any]:
    changes = {f"{name}: {key}": value for name, (_, rung) in REHEARSED.items() for key, value in rung.items()}
    key = {"situation": "large-image-text", "records": MANY, "public_records": RECORDS}
    return kept.find(key, _STAND_IN | changes, lambda: {"rehearsed": _rehearsed()})


def _rehearsed() -> list[dict[str, Any]]:
    """The recipe for many pairs: what `dpfed rehearse` found, rung by rung."""
    below, rungs = dict[str, Any](), []
    for name, (_, changes) in REHEARSED.items():
        below |= changes
        rungs.append({"name": name, "set": dict(below)})
    sweep = FOLDER / "rehearsed.toml"
    sweep.write_text(tomli_w.dumps({"name": "rehearsed", "about": "the recipe, taken apart", "run": rungs}), encoding="utf-8")
    sets = [part for key, value in _STAND_IN.items() for part in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "dpfed", "rehearse", "recipes/large-image-text", *sets, "--public", "shapes", "--json"]
    command += ["--records", str(MANY), "--public-records", str(RECORDS)]
    command += ["--sweep", str(sweep), "--out", str(FOLDER / "rehearsed")]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)["tried"]


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
