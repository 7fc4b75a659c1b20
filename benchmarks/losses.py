"""Compares losses of one group on CIFAR-10 at one epsilon and delta, with nothing tuned to any of the losses.

    python -m benchmarks.losses CIFAR10 [SEED ...]      CIFAR10: a folder with train.parquet and test.parquet

Every loss gets the same records, views, initial encoder, learning rate and noise multiplier. The gradient of each group is
normalised (automatic clipping), so the scale of a loss does not matter. The benchmark trains only the runs that
``benchmarks/results/losses.json`` does not have.
"""

from __future__ import annotations

import io
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import interpolate

import dpfed
from benchmarks.record import RESULTS, figures, write_result
from dpfed.losses import DCL, InfoNCE, Prediction, PredictionHead, SupCon, VICReg

NAME = "losses"
SEEDS = (0, 1, 2)
RECORDS, HELD_OUT = 10_000, 2_000
PRIVACY: dict[str, Any] = {"epsilon": 8.0, "batch": 1024, "steps": 40, "group_size": 16, "clipping": "automatic"}
SIZE = 32  # pixels
RATE = 2e-3
EMBEDDING, HIDDEN = 32, 64
DECAY = 0.9  # of BYOL's target: it follows within some ten steps
LOSSES: dict[str, Callable[[], Any]] = {
    "InfoNCE": InfoNCE,
    "DCL": DCL,
    "VICReg": VICReg,
    "Prediction": Prediction,
    "BYOL": Prediction,
    "SupCon": SupCon,  # reads the classes of the training records, under the same noise
}


class Cifar(Sequence[tuple[Tensor, int]]):
    """The first images of a split, uint8 ``(3, 32, 32)``, and their classes.

    Args:
        file: Parquet file.
        count: Number of images.
    """

    def __init__(self, file: Path, count: int) -> None:
        table = pq.read_table(file).slice(0, count)
        image, label = (table.column(name).to_pylist() for name in table.column_names[:2])
        decoded = [np.array(Image.open(io.BytesIO(picture["bytes"])).convert("RGB")) for picture in image]
        self._images, self._labels = torch.from_numpy(np.stack(decoded)).permute(0, 3, 1, 2).contiguous(), label

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, place: Any) -> Any:
        return self._images[place], self._labels[place]


def view(image: Tensor) -> Tensor:
    """Returns a random view of an image: a square crop, perhaps flipped, with other colours, or grey; ``(3, 32, 32)``."""
    area, top, left, flip, colour, light, grey = torch.rand(7).tolist()
    side = round(SIZE * math.sqrt(0.2 + 0.8 * area))
    top, left = round(top * (SIZE - side)), round(left * (SIZE - side))
    crop = image[:, top : top + side, left : left + side].float() / 255
    crop = interpolate(crop[None], (SIZE, SIZE), mode="bilinear")[0]
    if flip < 0.5:
        crop = crop.flip(2)
    if colour < 0.8:
        crop = crop * (0.6 + 0.8 * torch.rand(3, 1, 1)) + 0.4 * (light - 0.5)
    if grey < 0.2:
        crop = crop.mean(0, keepdim=True).expand(3, -1, -1)
    return crop.clamp(0, 1).contiguous()


def encoder() -> nn.Sequential:
    """Returns a small CNN: ``(n, 3, 32, 32)`` -> ``(n, 128)``."""
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 4, 4), nn.GroupNorm(4, 32), nn.ReLU()]
    for before, width in ((32, 64), (64, 128)):
        layers += [nn.Conv2d(before, width, 3, 2, 1), nn.GroupNorm(4, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def trained(records: dpfed.Records, loss: str, seed: int, folder: Path) -> dict[str, Any]:
    """Trains one run, and returns its settings and figures.

    Args:
        records: Training and held-out records.
        loss: Name of the loss in `LOSSES`.
        seed: Seed of weights, sampling and noise.
        folder: Folder of the run.
    """
    torch.manual_seed(seed)
    image = encoder()  # drawn before the head: the same for all losses
    if loss == "BYOL":
        model: nn.Module = dpfed.BYOL(image, EMBEDDING, hidden=HIDDEN, decay=DECAY)
    else:
        head = PredictionHead(EMBEDDING, HIDDEN) if loss == "Prediction" else None
        model = dpfed.SimCLR(image, EMBEDDING, hidden=HIDDEN, head=head)
    trainer = dpfed.Trainer(
        model,
        records,
        views=dpfed.Views(view, plain=lambda given: given.float() / 255),
        loss=LOSSES[loss](),
        privacy=dpfed.Privacy(**PRIVACY, seed=seed),
        optimizer={"name": "adam", "learning_rate": RATE},
        settings={"evaluation": {"tasks": ["knn"], "split": "test"}},
        progress=False,
    )
    began, used = time.perf_counter(), time.process_time()
    run = trainer.fit(folder)
    results = json.loads(run.results.read_text(encoding="utf-8"))
    values: dict[str, dict[str, float]] = {"before": {}, "after": {}}
    for item in results["evaluations"]:
        values["before" if item["model"] == "untrained" else "after"][item["name"]] = item["value"]
    privacy = results["privacy"]
    return {
        "loss": loss,
        "seed": seed,
        **values,
        "epsilon": privacy["epsilon"],
        "noise_multiplier": privacy["noise_multiplier"],
        "parameters": privacy["trained_parameters"],
        "seconds": round(time.perf_counter() - began),
        "cpu_seconds": round(time.process_time() - used),
    }


def main(folder: str, *seeds: str) -> None:
    """Trains the runs that the result file does not have, and writes the file after each run."""
    torch.set_num_threads(1)
    train, test = (Cifar(Path(folder) / f"{split}.parquet", count) for split, count in (("train", RECORDS), ("test", HELD_OUT)))
    records = dpfed.Records(train, test=test, name="CIFAR-10", public=True, workers=0)
    rows: list[dict[str, Any]] = figures(NAME)["runs"] if (RESULTS / f"{NAME}.json").exists() else []
    settings = {**PRIVACY, "records": RECORDS, "held_out": HELD_OUT, "size": SIZE, "learning_rate": RATE}
    for seed in [int(text) for text in seeds] or SEEDS:
        for loss in LOSSES:
            if any((row["loss"], row["seed"]) == (loss, seed) for row in rows):
                continue
            with tempfile.TemporaryDirectory() as place:
                rows.append(trained(records, loss, seed, Path(place) / "run"))
            print(rows[-1], flush=True)
            write_result(NAME, {"settings": settings, "runs": rows}, seeds=sorted({row["seed"] for row in rows}))


if __name__ == "__main__":
    main(*sys.argv[1:])
