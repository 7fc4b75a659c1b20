"""Compares dpfed's views of a user's own data set with a plain `DataLoader` of the same transforms: records a second, in turn.

python -m benchmarks.item_loading --rounds 5
"""

from __future__ import annotations

import argparse
import io
import statistics
import time
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

from benchmarks.record import write_result
from dpfed import Records, Views
from dpfed.data.items.views import ItemViews
from dpfed.privacy.randomness import Randomness

RECORDS, SIDE, STORED, BATCH, WORKERS = 2_000, 96, 192, 256, 2


class Pictures(Dataset[Any]):
    """Data set of JPEG files in memory."""

    def __init__(self) -> None:
        generator, self.files = np.random.default_rng(0), []
        for _ in range(RECORDS):
            coarse = generator.integers(0, 255, (STORED // 16, STORED // 16, 3))
            buffer = io.BytesIO()
            Image.fromarray(np.kron(coarse, np.ones((16, 16, 1))).astype(np.uint8)).save(buffer, "JPEG", quality=90)
            self.files.append(buffer.getvalue())

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, place: int) -> Image.Image:
        return Image.open(io.BytesIO(self.files[place])).convert("RGB")


class TwoViews(Dataset[Any]):
    """Data set of two views of each picture, as a researcher would write it without dpfed."""

    def __init__(self, pictures: Pictures, transform: Any) -> None:
        self.pictures, self.transform = pictures, transform

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, place: int) -> torch.Tensor:
        image = self.pictures[place]
        return torch.stack([self.transform(image), self.transform(image)])


def transform() -> v2.Compose:
    """Returns the usual transform of contrastive learning: crop, flip, colours, grey."""
    jitter = v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.4, 0.1)], 0.8)
    crops = [v2.RandomResizedCrop(SIDE, (0.2, 1.0)), v2.RandomHorizontalFlip(), jitter, v2.RandomGrayscale(0.2)]
    return v2.Compose([*crops, v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])


def main() -> None:
    """Measures both ways in turn, and writes ``benchmarks/results/item_loading.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    pictures, augment = Pictures(), transform()
    plain = DataLoader(TwoViews(pictures, augment), BATCH, shuffle=True, num_workers=WORKERS, persistent_workers=True)
    views = ItemViews.of(Records(pictures, workers=WORKERS), Views(augment), 2)
    maker, secret, device = views.maker(views.records), Randomness.from_seed(0), torch.device("cpu")

    def of_plain() -> float:
        start = time.perf_counter()
        count = sum(len(batch) for batch in plain)
        return count / (time.perf_counter() - start)

    def of_ours(step: int) -> float:
        order = np.random.default_rng(step).permutation(RECORDS)
        batches = [order[first : first + BATCH] for first in range(0, RECORDS, BATCH)]
        start = time.perf_counter()
        maker.prefetch(batches, secret, step, device)
        count = sum(len(maker(rows, secret, step, device)["image"]) for rows in batches)
        return count / (time.perf_counter() - start)

    of_plain(), of_ours(0)  # both start their processes
    figures = []
    for number in range(1, rounds + 1):
        plainly, ours = of_plain(), of_ours(number)
        figures.append({"loader": round(plainly, 1), "dpfed": round(ours, 1), "ratio": round(ours / plainly, 3)})
        print(figures[-1], flush=True)
    ratio = statistics.median(figure["ratio"] for figure in figures)
    print(write_result("item_loading", {"median_ratio": ratio, "records_per_second": figures, "workers": WORKERS}, [0]))


if __name__ == "__main__":
    main()
