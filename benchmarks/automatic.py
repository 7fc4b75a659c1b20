"""Compares the choices of `dpfed pretrain --data` with the best of our recipes: predicted figures, and figures of both.

    python -m benchmarks.automatic WORK CIFAR10 [DRAWS] [SET]

CIFAR10 is a folder of Parquet files. A draw is one run with random numbers of its own; draws that the result file has are not
repeated. `--minutes` is 240, so that other processes on the machine change no choice; a quiet machine chooses the same at the
default of 20. Runs stay in WORK, and an interrupted command continues there. Sets of pictures behind frozen towers are not
trained again: for these sets dpfed chooses the recipe itself, and ``moment-basis.json`` has its figures. The benchmark writes
``benchmarks/results/automatic.json``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from benchmarks.record import figures, write_result
from dpfed.artifacts.directory import RunDirectory
from dpfed.automatic.choosing import choose
from dpfed.automatic.expectation import recall_of_moments
from dpfed.automatic.request import Request
from dpfed.automatic.running import pretrain as automatic
from dpfed.building.plan import plan_of
from dpfed.config import Config, load_config, parse_config
from dpfed.data.generated.shapes import shapes_store
from dpfed.paths import is_store
from dpfed.runs.pretraining import make_start, pretrain

EPSILONS = (1.0, 8.0)
_MINUTES = 240.0
_BATCHES = {600: 100, 3_000: 256, 45_000: 512}  # of the recipe for CIFAR-10
_TEST = 3_000  # held-out images of CIFAR-10
_KNN, _LINEAR, _THERE, _BACK = "knn200_accuracy", "linear_probe_accuracy", "image_to_text_R@10", "text_to_image_R@10"


@dataclass(frozen=True)
class Cell:
    """A situation: a data set, an epsilon, and our recipe for it by hand.

    Attributes:
        name: Name of the data set.
        data: Path of the data set.
        epsilon: Epsilon of the guarantee.
        recipe: Name of a shipped configuration, followed by assignments ``section.key=value``.
        metrics: Names of two metrics, whose mean is reported.
        model: Value of ``--model``; ``None``: dpfed chooses the model.
    """

    name: str
    data: Path
    epsilon: float
    recipe: tuple[str, ...]
    metrics: tuple[str, str]
    model: str | None = None


def cells(work: Path, cifar: Path) -> Iterator[Cell]:
    """Yields all situations, the fastest ones first."""
    public = work / "public"
    for count in (600, 3_000, 45_000):
        data = _part(cifar, work / f"cifar10-{count}", count)
        batch = f"privacy.batch={_BATCHES[count]}"
        given: tuple[str, ...] = ("data.source=parquet", f"data.path={data}", "data.size=32", "evaluation.split=test", batch)
        for epsilon in EPSILONS:
            yield Cell(f"{count:,} cifar10 images", data, epsilon, ("recipes/small-images", *given), (_KNN, _LINEAR))
    for count in (3_000, 20_000):
        for epsilon in EPSILONS:
            batch = f"privacy.batch={min(2048, count // 5)}"
            data = shapes_store(count, str(work), half="all").path
            keys: tuple[str, ...] = (f"data.records={count}", batch)
            yield Cell(f"{count:,} shapes", data, epsilon, ("quickstart", *keys), (_THERE, _BACK))
            data = shapes_store(count, str(work), half="second").path
            keys = (*keys, f"model.architecture=local-dir:{public / 'model'}")
            yield Cell(f"{count:,} shapes, adapted", data, epsilon, ("adapt/shapes", *keys), (_THERE, _BACK), str(public))


def _part(cifar: Path, folder: Path, count: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for split, rows in (("train", count), ("test", _TEST)):
        if not (folder / f"{split}.parquet").exists():
            pq.write_table(pq.read_table(cifar / f"{split}.parquet").slice(0, rows), folder / f"{split}.parquet")
    return folder


def _figures(run: RunDirectory, metrics: tuple[str, str]) -> tuple[float, float]:
    """Returns the means of two figures before and after training, percent."""
    found: dict[str, dict[str, float]] = {"untrained": {}, "trained": {}}
    for one in json.loads(run.results.read_text(encoding="utf-8"))["evaluations"]:
        found[one["model"]][one["name"]] = 100 * one["value"]
    before, after = (sum(values[name] for name in metrics) / len(metrics) for values in found.values())
    return before, after


def reached(cell: Cell, work: Path, draws: int, known: dict[str, Any] | None) -> dict[str, Any]:
    """Trains runs with dpfed's choices and with the recipe, and returns the figures of both ways.

    Args:
        cell: Situation.
        work: Folder of the runs.
        draws: Number of runs of each way.
        known: Row of an earlier result file, whose draws are not repeated.
    """
    name = f"{cell.name}-{str(cell.epsilon).removesuffix('.0')}".replace(",", "").replace(" ", "-")
    stores = () if is_store(cell.data) else (f"data.stores={work}",)
    request = Request(cell.data, cell.epsilon, model=cell.model, minutes=_MINUTES, assignments=stores)
    chosen, recipe = choose(request), _recipe(cell, work)
    row: dict[str, Any] = {"set": cell.name, "epsilon": cell.epsilon, "chosen": [str(one) for one in chosen.choices[3:]]}
    row["is the recipe"] = _trains_alike(chosen.config, recipe)
    row |= {"expected": chosen.expectation.facts(), "automatic": [], "by hand": []}
    if known is not None:
        row |= {way: known[way] for way in ("automatic", "by hand")}
    for draw in range(len(row["by hand"]), draws):
        run = automatic(request, work / "runs" / f"{name}-automatic-{draw}")
        before, after = _figures(run, cell.metrics)
        row["automatic"].append([round(before, 1), round(after, 1)])
        if recipe.model.start == "procedural":
            make_start(recipe)
        before, after = _figures(pretrain(recipe, work / "runs" / f"{name}-hand-{draw}", resume=True), cell.metrics)
        row["by hand"].append([round(before, 1), round(after, 1)])
    return row


def _recipe(cell: Cell, work: Path) -> Config:
    return load_config(cell.recipe[0], [*cell.recipe[1:], f"privacy.epsilon={cell.epsilon}", f"data.stores={work}"])


def _trains_alike(one: Config, other: Config) -> bool:
    """Returns whether two configurations train alike on the same records; name and evaluation may differ."""
    found, wanted = (config.model_dump(mode="json") for config in (one, other))
    return all(found[name] == wanted[name] for name in found if name not in ("name", "data", "evaluation"))


def predicted_moments() -> list[dict[str, Any]]:
    """Returns the predicted and the measured R@10 of every measured run on sets behind frozen towers."""
    rows = []
    for name, found in figures("moment-basis")["sets"].items():
        for row in found["rows"]:
            if row["basis"] == "generated" and row["epsilon"] and found["measure"] == "R@10":
                said = recall_of_moments(row["records"], _noise(row["records"], row["epsilon"]), found["held out"])
                after = 100 * sum(row["figures"]) / len(row["figures"])
                facts = {"set": name, "records": row["records"], "epsilon": row["epsilon"]}
                rows.append({**facts, "expected": round(said, 1), "reached": round(after, 1)})
    return rows


def _noise(records: int, epsilon: float) -> float:
    model = {"kind": "image-text", "image": "timm/resnet18", "weights": "tag", "text": "folder"}  # neither is loaded
    tree = {"model": model, "bounding": {"method": "moments"}, "privacy": {"epsilon": epsilon}}
    return plan_of(records, parse_config(tree)).noise.multiplier


def main(work: str, cifar: str, draws: str = "1", only: str = "") -> None:
    """Trains the runs that the result file does not have, of all sets or only of one, and writes the file after each set."""
    folder = Path(work).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if RunDirectory.unused(folder / "public"):
        pretrain(load_config("adapt/shapes-public", [f"data.stores={folder}"]), folder / "public")
    found = {(row["set"], row["epsilon"]): row for row in figures("automatic")["trained"]}
    for cell in cells(folder, Path(cifar).absolute()):
        key = (cell.name, cell.epsilon)
        known = found.get(key, {})
        if only not in ("", cell.name) or len(known.get("by hand", ())) >= int(draws) and "is the recipe" in known:
            continue
        row = reached(cell, folder, int(draws), found.get(key))
        print(json.dumps(row), flush=True)
        # Another process may have written its rows since.
        found = {(row["set"], row["epsilon"]): row for row in figures("automatic")["trained"]}
        found[key] = row
        write_result("automatic", {"trained": list(found.values()), "moments": predicted_moments()}, seeds=[])


if __name__ == "__main__":
    main(*sys.argv[1:])
