"""Measures how often a run that learns nothing shows a gain or a loss: its noise hides all that the records add.

python -m benchmarks.noise_only
"""

from __future__ import annotations

import copy
import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from benchmarks.record import write_result
from dpfed.config import parse_config
from dpfed.data.generated.shapes import write_shapes
from dpfed.models.parameters import TrainableVector
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.randomness import Randomness
from dpfed.report.results import within
from dpfed.runs.build import Parts, build
from dpfed.runs.noise_alone import noise_alone
from dpfed.training.loop import train
from dpfed.training.transport import InProcess

RUNS = 200  # of each kind
NOISE = 1000.0  # the noise multiplier: what the records add is a thousandth of it
TOWERS = {"width": 8, "text_width": 16, "text_layers": 1, "vocabulary": 256, "embedding": 16}
TRAINED = {
    "bounding": {"group_size": 4, "engine": "layerwise"},
    "privacy": {"noise_multiplier": NOISE, "batch": 60, "steps": 10},
    "optimizer": {"name": "adam", "learning_rate": 1e-2},
}
KINDS: dict[str, dict[str, Any]] = {
    "image-text": {
        "model": {"kind": "image-text", **TOWERS},
        "evaluation": {"tasks": ["retrieval", "knn"], "records": 60, "bank": 200},
        **TRAINED,
    },
    "images": {
        "model": {"kind": "image", "width": 8},
        "evaluation": {"tasks": ["knn", "linear"], "records": 60, "bank": 200},
        **TRAINED,
    },
    "moments": {
        "model": {"kind": "image-text", **TOWERS},
        "bounding": {"method": "moments"},
        "privacy": {"noise_multiplier": NOISE},
        "evaluation": {"tasks": ["retrieval"], "records": 60},
    },
}


def parts_of(kind: str, folder: Path) -> Parts:
    """Builds the parts of a run over generated records.

    Args:
        kind: Kind of run in `KINDS`.
        folder: Folder that keeps the records.
    """
    tree = copy.deepcopy(KINDS[kind])
    store = folder / "records"
    if not store.exists():
        write_shapes(store, train=600, validation=0, test=200)
    tree |= {"name": kind, "data": {"source": "store", "path": str(store), "size": 16}, "training": {"device": "cpu"}}
    if kind == "moments":  # in front of the heads are towers that are there before: those of another run
        start = folder / "start.safetensors"
        made = build(parse_config({**tree, **{key: KINDS["image-text"][key] for key in TRAINED}}), Randomness.from_seed(0))
        save_file(made.model.state_dict(), start)
        tree["model"] |= {"start": str(start)}
    return build(parse_config(tree), Randomness.from_seed(0))


def changes(parts: Parts, seed: int, ledger: Path) -> list[tuple[str, tuple[float, float], tuple[float, float]]]:
    """Trains a run from new weights, and returns the changes of its figures.

    Args:
        parts: Parts of the run; its model is trained.
        seed: Seed of weights, sampling and noise.
        ledger: Path of the new ledger.

    Returns:
        For each figure: its name, the interval of its change over the draw of records alone, and the interval that also covers
        what noise does.
    """
    torch.manual_seed(seed)
    for module in parts.model.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    vector, randomness = TrainableVector(parts.model), Randomness.from_seed(seed)
    start, before = vector.gather(), parts.evaluator(parts.model, "untrained", 0)
    coordinator = parts.learner.coordinator(randomness, Ledger.create(ledger, parts.plan))
    train(InProcess([parts.learner.worker(randomness)]), coordinator, range(parts.plan.steps))
    after, drawn = parts.evaluator(parts.model, "trained", parts.plan.steps), noise_alone(parts, start)
    intervals = []
    for figure in after:
        narrow, wide = figure.compared(before).change, figure.compared(before, drawn).change
        if narrow is not None and wide is not None:
            intervals.append((figure.name, narrow, wide))
    return intervals


def measured(kind: str, runs: int = RUNS) -> dict[str, Any]:
    """Counts the runs in which any figure changed by more than its interval allows.

    Args:
        kind: Kind of run in `KINDS`.
        runs: Number of runs.

    Returns:
        The counts for the interval of reports (``outside``), and for the interval over records alone.
    """
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        parts = parts_of(kind, Path(folder))
        for seed in range(runs):
            fresh = dataclasses.replace(parts, learner=parts.learner.replace(model=copy.deepcopy(parts.model)))
            rows.append(changes(fresh, seed, Path(folder) / f"{seed}.jsonl"))
    outside = [any(not within(wide) for *_, wide in row) for row in rows]
    narrow = [any(not within(change) for _, change, _ in row) for row in rows]
    return {
        "runs": runs,
        "figures_of_a_run": sorted({name for row in rows for name, *_ in row}),
        "outside": sum(outside),
        "outside_by_records_alone": sum(narrow),
    }


def main() -> None:
    """Measures each kind, and writes the result file after each."""
    kinds: dict[str, Any] = {}
    for kind in KINDS:
        kinds[kind] = measured(kind)
        print(kind, kinds[kind], flush=True)
        write_result("noise_only", {"noise_multiplier": NOISE, "kinds": kinds}, seeds=list(range(RUNS)))


if __name__ == "__main__":
    main()
