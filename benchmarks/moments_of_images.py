"""Measures what private moments bring to a pretrained image tower alone: 20-NN on CIFAR-10, with eight random views per image.

    python -m benchmarks.moments_of_images PLACE WORK CIFAR10       PLACE, WORK: see `benchmarks.moments`

The benchmark measures only the rows that ``benchmarks/results/moments-of-images.json`` does not have.
"""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.frozen_towers import run_steps, towers
from benchmarks.moments import SEEDS, Row
from benchmarks.picture_sets import cifar_store
from benchmarks.record import RESULTS, figures, write_result
from dpfed.building.plan import plan_of
from dpfed.config import parse_config
from dpfed.evaluation.knn import knn_correct
from dpfed.features.cache import Features
from dpfed.features.extraction import FeatureCache
from dpfed.features.views import FeatureViews
from dpfed.privacy.randomness import Randomness
from dpfed.runs.build import Parts, build
from dpfed.runs.closed_form import add_moment_heads

NAME = "moments-of-images"
COUNTS = (600, 3000, 6000)
VIEWS = 8
SIZE = 64
NEIGHBOURS = 20
_DRAWS = {600: 5, 3000: 3, 6000: 3}  # of the noise
_VIEWS = {"crop_scale": [0.2, 1.0], "flip": 0.5, "jitter": 0.8, "grayscale": 0.2}


def main(place: str, work: str, cifar10: str) -> None:
    """Measures the missing rows, and writes the result after each.

    Args:
        place: Folder with the packages of the towers.
        work: Folder of stores and features.
        cifar10: Folder with train.parquet and test.parquet.
    """
    folder = Path(work)
    store = cifar_store(Path(cifar10), folder / "cifar10")
    sections = {
        "data": {"source": "store", "path": str(store.path), "size": SIZE},
        "views": _VIEWS,
        "model": {"kind": "image", "image": "timm/tf_efficientnet_lite0", "weights": towers(Path(place))["weights"]},
        "bounding": {"method": "moments", "options": {"views": VIEWS}},
        "privacy": {"epsilon": 8.0, "seed": 0},
        "training": {"device": "cpu"},
        "evaluation": {"split": "none"},
    }
    parts = build(parse_config(sections), Randomness.from_seed(0))
    rows = store.split("train")
    rows = rows[np.argsort(store.keys[rows])][: COUNTS[-1]]
    cache = FeatureCache(folder / "features")
    plain, test = (_all(cache.features(parts.model, parts.views, store, indices)) for indices in (rows, store.split("test")))
    labels = [torch.as_tensor(store.labels["class"][indices]).long() for indices in (rows, store.split("test"))]
    views = cache.features(parts.model, parts.views, store, rows, VIEWS)

    def accuracy(count: int, train: Tensor, held_out: Tensor) -> float:
        right = knn_correct(train[:count], labels[0][:count], held_out, labels[1], NEIGHBOURS)
        return round(float(right.double().mean()), 4)

    done: list[Row] = figures(NAME)["rows"] if (RESULTS / f"{NAME}.json").exists() else []
    there = {(row["records"], row.get("epsilon", "public")) for row in done}
    for count, epsilon in [(count, epsilon) for epsilon in ("public", 8.0, 1.0, None, 3.0) for count in COUNTS]:
        if (count, epsilon) in there:
            continue
        if epsilon == "public":
            done.append({"method": "public tower alone", "records": count, "figures": [accuracy(count, plain, test)]})
        else:
            heads = [_head(parts, views, count, epsilon, seed) for seed in (SEEDS if epsilon else SEEDS[:1])[: _DRAWS[count]]]
            with torch.no_grad():
                accuracies = [accuracy(count, head(plain), head(test)) for head in heads]
            done.append({"method": "moments", "records": count, "epsilon": epsilon, "figures": accuracies})
        print(done[-1], flush=True)
        write_result(NAME, {"rows": done, "views": VIEWS, "size": SIZE, "held out": len(test)}, seeds=list(SEEDS))


def _all(features: Features) -> Tensor:
    return torch.cat([shard.image[:, 0] for shard in features.shards()])


def _head(parts: Parts, views: Features, count: int, epsilon: float | None, seed: int) -> torch.nn.Module:
    """Fits a head to the first `count` records; without an epsilon, with noise multiplier 0.1."""
    noise = {"epsilon": epsilon} if epsilon else {"epsilon": None, "noise_multiplier": 0.1}
    config = parts.config
    config = config.model_copy(update={"privacy": config.privacy.model_copy(update=noise)})
    plan, model = plan_of(count, config), copy.deepcopy(parts.model)
    add_moment_heads(model, config, plan, plan.noise_std, None)
    run_steps(parts.store, config, plan, model, FeatureViews(views, VIEWS, False), views.rows[:count], seed)
    return model.moments.head("image")


if __name__ == "__main__":
    main(*sys.argv[1:])
