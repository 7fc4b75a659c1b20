"""What clipping similarities costs: the fast paths against a loop over pairs, their growth, and the price of the bound.

Four questions, one result file: is the exact fast path the loop over all pairs, and how much faster (the Logit-DP paper's own
embedding net)? How do time and memory of the linear path grow on the small CNN? What does a step cost beside one of group
clipping? And how far are the bounds above the norms, on pictures, before and after some training?
"""

from __future__ import annotations

import json
import math
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import typer
from torch import Tensor, nn

from benchmarks.record import write_result
from dpfed.bounding.engines import ENGINES, GroupBatch, Views
from dpfed.bounding.whole_batch.gradient_cache import BatchEngine
from dpfed.bounding.whole_batch.pair_engines import LogitEngine, SampleEngine
from dpfed.config import ModelConfig, ObjectiveConfig, ViewsConfig
from dpfed.data.generated.shapes import write_shapes
from dpfed.data.store.records import RecordStore
from dpfed.data.views.images import ImageViews
from dpfed.models.building import build_model
from dpfed.models.contrastive import SimCLRModel
from dpfed.models.parameters import TrainableVector
from dpfed.objectives.infonce import group_loss

CLIP = 0.1  # where only the time counts, which it does not change
VIEWS = ViewsConfig(crop_scale=(0.5, 1.0), flip=0.5, jitter=0.8)
FRACTIONS = (0.1, 0.5, 0.9)


def paper_net(embedding: int = 8) -> SimCLRModel:
    """The generic embedding net of the Logit-DP paper's appendix B.1, for images of 32 px, at its temperature."""
    layers: list[nn.Module] = []
    for given, out in ((3, 8), (8, 16), (16, 32)):
        convolution = nn.Conv2d(given, out, 3, stride=2, padding=1)
        nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
        layers += [convolution, nn.ReLU()]
    head = nn.Linear(32 * 4 * 4, embedding)
    nn.init.xavier_normal_(head.weight)
    return SimCLRModel(nn.Sequential(*layers, nn.Flatten()), head, temperature=1.0)


def small_cnn() -> SimCLRModel:
    """The small CNN of the other benchmarks, with its projection head: 0.27 M parameters, 64 dimensions."""
    return build_model(ModelConfig(image="cnn", width=32), ObjectiveConfig(temperature=1.0))


def loop_over_pairs(model: SimCLRModel, images: Tensor, clip_norm: float) -> Tensor:
    """The definition: the gradient of every similarity by itself, clipped, weighted, added up (paper, algorithm 1)."""
    vector = TrainableVector(model)
    total, count = vector.zeros(), len(images)
    with torch.no_grad():
        z = model({"image": images})["image"]
        weights = (z[:, 0] @ z[:, 1].T / model.temperature).softmax(1) - torch.eye(count)
    for i in range(count):
        for j in range(count):
            anchor, candidate = model.embed_images(torch.stack([images[i, 0], images[j, 1]]))
            gradients = torch.autograd.grad(anchor @ candidate, vector.parameters)
            gradient = torch.cat([gradient.flatten() for gradient in gradients])
            factor = min(1.0, clip_norm / gradient.norm().item())
            total.add_(gradient, alpha=weights[i, j].item() * factor)
    return total / model.temperature


def summed(engine: LogitEngine | SampleEngine | BatchEngine, batch: GroupBatch, clip_norm: float = CLIP) -> Tensor:
    """One step's sum."""
    into = engine.zeros()
    engine.add_clipped(batch, clip_norm, into)
    return into


def fastest(contenders: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Least seconds of each, taken in turns so that whatever else the machine does meets all."""
    best = dict.fromkeys(contenders, math.inf)
    for _ in range(repeats):
        for name, contender in contenders.items():
            started = time.perf_counter()
            contender()
            best[name] = min(best[name], time.perf_counter() - started)
    return best


def fast_path(images: Tensor, repeats: int) -> dict:
    """Agreement with the loop over pairs, and times as fast, on the paper's net and its one-sided contrast."""
    model, batch = paper_net(), whole(images)
    engine = LogitEngine(model, len(images), "exact", one_sided=True)
    norms = engine.add_clipped(batch, CLIP, engine.zeros())
    clip_norm = norms.median().item()  # half of the pairs are clipped, and half are not
    expected = loop_over_pairs(model, images, clip_norm).double()
    found = summed(engine, batch, clip_norm).double()
    contenders = {
        "loop": lambda: loop_over_pairs(model, images, clip_norm),
        "exact": lambda: summed(engine, batch, clip_norm),
    }
    seconds = fastest(contenders, repeats)
    return {
        "records": len(images),
        "parameters": TrainableVector(model).numel,
        "relative_error": float((found - expected).norm() / expected.norm()),
        "pairs_clipped": float((norms > clip_norm).double().mean()),
        "times_as_fast": round(seconds["loop"] / seconds["exact"], 1),
    }


def beside_groups(images: Tensor, model: SimCLRModel, exact: bool, repeats: int) -> dict:
    """A step of each method over one of group clipping (S = 16, the loop engine), same records and model."""
    count, batch = len(images), whole(images)
    groups = GroupBatch(batch.views, [*range(0, count, 16), count])
    ready = {
        "group": ENGINES["loop"](model),
        "batch": BatchEngine(model, "fp32", group_loss, 512),
        "sample, bound": SampleEngine(model, count, "bound"),
        "logit, bound": LogitEngine(model, count, "bound"),
    }
    if exact:
        ready |= {"sample, exact": SampleEngine(model, count, "exact"), "logit, exact": LogitEngine(model, count, "exact")}
    seconds = fastest(
        {
            name: lambda engine=engine, part=groups if name == "group" else batch: summed(engine, part)
            for name, engine in ready.items()
        },
        repeats,
    )
    return {
        "records": count,
        "over_group": {name: round(took / seconds["group"], 2) for name, took in seconds.items()},
        "seconds": {name: round(took, 3) for name, took in seconds.items()},
    }


def price_of_the_bound(pictures: Callable[[int], Tensor], records: int, steps: int) -> dict:
    """Bounds over norms, and what is left of the clipped sum, on pictures: before training and after `steps` plain steps."""
    model, figures = paper_net(), {}
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for done in (0, steps):
        for _ in range(done):
            views = pictures(records)
            loss = group_loss(model({"image": views}), torch.ones(records, dtype=torch.bool), model.temperature)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        batch = whole(pictures(records))
        sums, norms = {}, {}
        for name in ("exact", "bound"):
            engine = LogitEngine(model, records, name)
            norms[name] = engine.add_clipped(batch, CLIP, engine.zeros())
        clip_norm = norms["exact"].median().item()
        for name in ("exact", "bound"):
            engine = LogitEngine(model, records, name)
            sums[name] = engine.zeros()
            engine.add_clipped(batch, clip_norm, sums[name])
        ratios = norms["bound"] / norms["exact"].clamp(min=1e-12)
        figures[f"after {done} steps"] = {
            "bound_over_norm": {
                str(q): round(r, 3)
                for q, r in zip(FRACTIONS, ratios.quantile(torch.tensor(FRACTIONS).double()).tolist(), strict=True)
            },
            "length_of_sum": round(float(sums["bound"].norm() / sums["exact"].norm()), 3),
            "cosine_of_sums": round(float(nn.functional.cosine_similarity(sums["bound"], sums["exact"], dim=0)), 4),
        }
    return {"records": records, "clip_norm": "the median norm", **figures}


def growth(batches: list[int]) -> dict[str, dict[str, float]]:
    """Seconds and peak memory of the linear path on the small CNN, each batch in a process of its own."""
    figures = {}
    for batch in batches:
        command = [sys.executable, "-m", "benchmarks.logit", "--one-step", str(batch)]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        figures[str(batch)] = json.loads(output)
    return figures


def one_step(records: int) -> dict[str, float]:
    """One step of the linear path on the small CNN, in this process."""
    torch.manual_seed(0)
    model, images = small_cnn(), torch.randn(records, 2, 3, 32, 32)
    engine = LogitEngine(model, records, "bound")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    summed(engine, whole(images))
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"seconds": round(seconds, 2), "before_mb": round(before / 1024), "peak_mb": round(peak / 1024)}


def whole(images: Tensor) -> GroupBatch:
    """All records as one group."""
    views: Views = {"image": images}
    return GroupBatch(views, [0, len(images)])


def picture_maker(folder: Path) -> Callable[[int], Tensor]:
    """Random pairs of views of generated pictures."""
    write_shapes(folder / "shapes", train=2_000, validation=0, test=0)
    store, views, draws = RecordStore.open(folder / "shapes"), ImageViews(VIEWS), np.random.default_rng(0)

    def pictures(count: int) -> Tensor:
        rows = draws.choice(store.split("train"), count, replace=False)
        images = store.images(np.sort(rows), 32, "crop", "bilinear")
        return views(images, torch.rand(count, 2, views.columns))

    return pictures


def main(
    records: int = 64, largest: int = 1_024, repeats: int = 3, steps: int = 60, one_step_of: int = typer.Option(0, "--one-step")
) -> None:
    """Measures, prints and writes ``benchmarks/results/logit.json``.

    Args:
        records: in the batch that is also done pair by pair.
        largest: batch of the linear path.
        repeats: of what is timed.
        steps: plain training steps before the bounds are measured again.
        one_step_of: only measures one step of the linear path with so many records, and prints it.
    """
    if one_step_of:
        print(json.dumps(one_step(one_step_of)))
        return
    torch.manual_seed(0)
    figures = {
        "fast_path": fast_path(torch.randn(records, 2, 3, 32, 32), repeats),
        "growth": growth([largest // 4, largest // 2, largest]),
        "beside_groups": {
            "paper's net": beside_groups(torch.randn(largest, 2, 3, 32, 32), paper_net(), exact=True, repeats=repeats),
            "small CNN": beside_groups(torch.randn(largest // 4, 2, 3, 32, 32), small_cnn(), exact=False, repeats=repeats),
        },
    }
    with tempfile.TemporaryDirectory() as folder:
        figures["price_of_the_bound"] = price_of_the_bound(picture_maker(Path(folder)), min(256, largest), steps)
    print(json.dumps(figures, indent=2))
    print(write_result("logit", figures, seeds=[0]))


if __name__ == "__main__":
    typer.run(main)
