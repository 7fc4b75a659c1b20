"""Accuracy of classifiers whose weights are noisy, with and without normalisation (Davody et al. 2020, section 2, Tables 2-3).

As in the paper, every weight w is used as w + sigma * e with a fresh standard normal e in each pass, in training (the gradient
is taken at the noisy weights) and in testing; gains and biases are not noisy, and the logits are normalised, too. Without
privacy, and small: the network of the paper's Table 2 (300 and 100 hidden units) on a part of the records of its Table 3
(CIFAR-10), for a few passes. What compares is how each row falls along the levels.

python -m benchmarks.noise_injection --data ../shared/data/cifar10
"""

from __future__ import annotations

import argparse
import functools
import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import parametrize

from benchmarks.record import write_result
from dpfed.config import DataConfig, ViewsConfig
from dpfed.data.opening import open_records
from dpfed.data.views.images import ImageViews
from dpfed.errors import UserError
from dpfed.models.norm import AnchoredBatchNorm, AnchoredEncoder, StandardisedWeight, layer_norm

LEVELS = (0.0, 0.01, 0.1, 0.3, 1.0)
BATCH, ANCHORS, CLASSES = 128, 64, 10
WIDTHS = (3 * 32 * 32, 300, 100, CLASSES)
TEST_DRAWS = 4  # of the weights, each for a part of its own of the test records


@dataclass(frozen=True)
class Records:
    """CIFAR-10: uint8 images ``(n, 3, 32, 32)`` and their classes."""

    images: Tensor
    classes: Tensor
    test_images: Tensor
    test_classes: Tensor
    anchors: Tensor


class Classifier(nn.Module):
    """Linear layers, each with a normalisation behind it, the last one's for the logits."""

    features_dim = CLASSES

    def __init__(self, norm: Callable[[int], nn.Module], standardise: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in itertools.pairwise(WIDTHS))
        self.norms = nn.ModuleList(norm(width) for width in WIDTHS[1:])
        for layer in self.layers if standardise else ():
            parametrize.register_parametrization(layer, "weight", StandardisedWeight())

    def forward(self, images: Tensor) -> Tensor:
        """``(n, 3, 32, 32)`` -> logits ``(n, 10)``."""
        features = images.flatten(1)
        for index, (layer, norm) in enumerate(zip(self.layers, self.norms, strict=True)):
            # Normalisations here are of pictures, so a unit is a channel of one pixel.
            features = norm(layer(features if index == 0 else features.relu())[:, :, None, None]).flatten(1)
        return features


def no_norm(channels: int) -> nn.Module:
    """Nothing in place of a normalisation."""
    return nn.Identity()


def of_the_batch(channels: int) -> nn.Module:
    """Batch normalisation as in the paper, statistics always those of the batch at hand: no part of private training."""
    return nn.BatchNorm2d(channels, track_running_stats=False)


NETWORKS: dict[str, tuple[Callable[[int], nn.Module], bool]] = {
    "no normalisation": (no_norm, False),
    "LayerNorm": (layer_norm, False),
    "LayerNorm, weight standardisation": (layer_norm, True),
    "BatchNorm, of the batch": (of_the_batch, False),
    "BatchNorm with anchors": (AnchoredBatchNorm, False),
}


def read(path: str, train: int, test: int) -> Records:
    """Reads the records, imported on first use; the anchors are validation records."""
    store = open_records(DataConfig(source="parquet", path=path, size=32, validation=5000, public=True))
    counts = {"train": train, "test": test, "validation": ANCHORS}
    rows = {split: store.split(split)[:count] for split, count in counts.items()}
    images = {split: store.images(chosen, 32) for split, chosen in rows.items()}
    classes = torch.tensor(store.labels["label"])
    return Records(images["train"], classes[rows["train"]], images["test"], classes[rows["test"]], images["validation"])


def noisy(model: nn.Module, images: Tensor, level: float) -> Tensor:
    """Logits with noise on all weight matrices and kernels."""
    weights = {name: value + level * torch.randn_like(value) for name, value in model.named_parameters() if value.dim() > 1}
    return functional_call(model, weights, (images,))


def accuracy(network: str, level: float, records: Records, epochs: int, learning_rate: float, seed: int) -> float:
    """Test accuracy, in percent, after training with noisy weights."""
    torch.manual_seed(seed)
    model: nn.Module = Classifier(*NETWORKS[network])
    if network == "BatchNorm with anchors":
        model = AnchoredEncoder(model, records.anchors)
    views = ImageViews(ViewsConfig())
    steps = epochs * (len(records.images) // BATCH)
    optimizer = torch.optim.Adam(model.parameters(), learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(epochs):
        for rows in torch.randperm(len(records.images)).split(BATCH):
            if len(rows) < BATCH:
                continue
            loss = F.cross_entropy(noisy(model, views.plain(records.images[rows]), level), records.classes[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    model.eval()
    with torch.no_grad():
        parts = zip(records.test_images.chunk(TEST_DRAWS), records.test_classes.chunk(TEST_DRAWS), strict=True)
        right = [(noisy(model, views.plain(images), level).argmax(1) == classes).float() for images, classes in parts]
    return 100 * torch.cat(right).mean().item()


def main() -> None:
    """Trains, prints and writes ``benchmarks/results/noise-injection.json``."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="../shared/data/cifar10", help="CIFAR-10 as Parquet: train.parquet and test.parquet")
    parser.add_argument("--train", type=int, default=20_000, help="training records")
    parser.add_argument("--test", type=int, default=4_000, help="test records")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--learning-rate", type=float, default=3e-3, help="of Adam, at the start of a cosine")
    parser.add_argument("--seeds", type=int, default=1, help="trainings for each cell")
    chosen = parser.parse_args()
    if not Path(chosen.data).exists():
        parser.exit(1, f"there is no CIFAR-10 at {chosen.data}: give the folder of its Parquet files with --data.\n")
    try:
        records = read(chosen.data, chosen.train, chosen.test)
    except UserError as error:
        parser.exit(1, f"{error}\n")
    started, table = time.perf_counter(), {}
    print(f"{'noise on the weights':<34}" + "".join(f"{level:>8g}" for level in LEVELS))
    for network in NETWORKS:
        table[network] = {}
        for level in LEVELS:
            one = functools.partial(accuracy, network, level, records, chosen.epochs, chosen.learning_rate)
            runs = [one(seed) for seed in range(chosen.seeds)]
            table[network][str(level)] = round(statistics.mean(runs), 1)
        print(f"{network:<34}" + "".join(f"{figure:8.1f}" for figure in table[network].values()), flush=True)
    figures = {
        "dataset": "CIFAR-10",
        "widths": WIDTHS,
        "train": chosen.train,
        "test": chosen.test,
        "epochs": chosen.epochs,
        "batch": BATCH,
        "anchors": ANCHORS,
        "learning_rate": chosen.learning_rate,
        "accuracy": table,
        "minutes": round((time.perf_counter() - started) / 60, 1),
    }
    print(write_result("noise-injection", figures, seeds=list(range(chosen.seeds))))


if __name__ == "__main__":
    main()
