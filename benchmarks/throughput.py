"""Measures what `dpfed cluster cost` needs to know of a machine: draws, images, views, gradients, noise, bookkeeping, messages.

    python -m benchmarks.throughput          prints, and writes benchmarks/results/throughput.json

Gradients are the clipped group gradients of stand-in views that are already on the device. Reading images and making views have
separate figures. `benchmarks.parts` measures the parts of a configuration instead. Absolute seconds mean something only for the
machine that is named in the file.
"""

from __future__ import annotations

import io
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from PIL import Image
from torch import Tensor, nn

from benchmarks.draws import draws
from benchmarks.record import write_result
from dpfed.bounding.bounded_sum import BoundedSum
from dpfed.bounding.clipping import Clip
from dpfed.bounding.engines import ENGINES, GroupBatch, Precision, Views, choose_engine
from dpfed.callbacks import StepSummary
from dpfed.config import AdaptationConfig, ModelConfig, ObjectiveConfig, OptimizerConfig, ViewsConfig
from dpfed.data.store.pictures import Wanted, in_processes
from dpfed.data.store.record import RecordInput
from dpfed.data.store.records import RecordStore
from dpfed.data.store.writing import StoreWriter
from dpfed.data.views.images import ImageViews
from dpfed.models.building import build_model, tokenizer_for
from dpfed.models.parameters import TrainableVector
from dpfed.privacy.blocks import block_length
from dpfed.privacy.ledger import Ledger, Release
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.randomness import Randomness
from dpfed.runs.resolution import pick_device
from dpfed.training.checkpoint import Checkpoints, Position
from dpfed.training.commits import Commits
from dpfed.training.coordinator import Coordinator
from dpfed.training.group import Group

GROUP, VIEWS, REPEATS = 16, 3, 5  # two views and one intra-group augmentation
# Model, side of the images, records at a time on a CPU and on a GPU; none: too slow to be of use there.
MODELS = {
    "small CNN, 32 px": (ModelConfig(image="cnn", width=32), 32, 512, 4096),
    # The CIFAR stem: twelve times the arithmetic of the 7x7 stem with pooling at this size.
    "ResNet-18, 32 px": (ModelConfig(image="resnet18", width=64), 32, 64, 2048),
    "ResNet-50, 224 px": (ModelConfig(image="resnet50", stem="imagenet", width=64), 224, None, 512),
    "ViT-B-32 LoRA, 224 px": (ModelConfig(kind="open_clip", architecture="ViT-B-32"), 224, None, 512),
}
VIEWS_OF_IMAGES = ViewsConfig(crop_scale=(0.2, 1.0), crop_ratio=(0.75, 1.333), flip=0.5, jitter=0.8, grayscale=0.2)
DECODED = 512  # images
COORDINATED = 1_000_000, 11_200_000  # parameters
SIZES = (1, 1_000_000, 11_000_000)  # floats that travel


def stand_in_views(config: ModelConfig, records: int, size: int, device: torch.device) -> Views:
    """Returns noise in the shape of a batch: images ``(n, V, 3, H, W)``, and the tokens of captions if the model reads text.

    Args:
        config: Model.
        records: Number of records n.
        size: Side of the images, pixels.
        device: Device of the views.
    """
    views: Views = {"image": torch.randn(records, 1 if config.reads_text else VIEWS, 3, size, size).to(device)}
    if config.reads_text:
        tokenizer = tokenizer_for(config)
        captions = [f"a photo of thing number {record}, seen from above" for record in range(records)]
        views["text"] = tokenizer(captions)[:, None].to(device)
    return views


def gradients(
    config: ModelConfig,
    size: int,
    records: int,
    device: torch.device,
    precision: Precision = "fp32",  # in which groups may share a pass
    group: int = GROUP,
) -> dict:
    """Measures the gradients, views and decoded images per second, medians of several batches.

    Args:
        config: Model.
        size: Side of the images, pixels.
        records: Number of records in a batch.
        device: Device that computes the gradients and the views.
        precision: Precision of the gradients.
        group: S, number of records in a group.
    """
    torch.manual_seed(0)
    objective = ObjectiveConfig()
    model = build_model(config, objective, AdaptationConfig(), size).to(device).train()
    views = stand_in_views(config, records, size, device)
    batch = GroupBatch(views, list(range(0, records + 1, group)))
    name = choose_engine(model, batch, precision)
    engine = ENGINES[name](model, precision)
    into, clip = engine.zeros().long(), Clip(2.0**24, 2.0**24)  # C = 1 in steps of a run's grid

    def step() -> None:
        engine.add_clipped(batch, clip, into)
        into.sum().item()  # waits for the device

    seen = views["image"].shape[1]
    return {
        "records_per_second": round(records / median_seconds(step), 1),
        "views_per_second": round(made_views(size, seen, min(records, 512), device), 1),
        "decoded_per_second": round(decoded_images(size), 1),
        "parameters": TrainableVector(model).numel,
        "engine": name,
        "precision": precision,
        "group_size": group,
        "views": views["image"].shape[1],
        "records_at_a_time": records,
    }


def made_views(size: int, views: int, records: int, device: torch.device) -> float:
    """Measures how many records per second get their random views (SimCLR's), from images in memory.

    Args:
        size: Side of the images, pixels.
        views: Number of views of each image.
        records: Number of records in a batch.
        device: Device that makes the views.
    """
    maker = ImageViews(VIEWS_OF_IMAGES)
    images = torch.randint(0, 256, (records, 3, size, size), dtype=torch.uint8)
    uniforms = torch.rand(records, views, maker.columns)
    return records / median_seconds(lambda: maker(images.to(device), uniforms.to(device)).sum().item())


def decoded_images(size: int, workers: int | None = None, clock: Callable[[], float] = time.perf_counter) -> float:
    """Measures how many JPEG files per second are read from a store and decoded.

    Args:
        size: Side of the images, pixels.
        workers: Number of processes that decode; ``None``: this process alone, with all its cores.
        clock: Function that returns the time, seconds; default: the time by the wall clock.
    """
    with tempfile.TemporaryDirectory() as folder:
        with StoreWriter(Path(folder) / "store", name="noise", kind="image", public=True) as writer:
            for number in range(DECODED):
                writer.add(RecordInput(str(number), _jpeg(number % 64, size)))
        store, indices = RecordStore.open(Path(folder) / "store"), np.arange(DECODED)
        if workers is None:
            return DECODED / median_seconds(lambda: store.images(indices, size), clock=clock)
        assert store.pictures.opened is not None
        opened, wanted = store.pictures.opened, Wanted(size, "crop", "bicubic")
        return DECODED / median_seconds(lambda: in_processes(opened, indices, wanted, workers), clock=clock)


def _jpeg(number: int, size: int) -> bytes:
    """Returns a JPEG file of blurred noise, about as large as the file of a photograph."""
    coarse = np.random.default_rng(number).integers(0, 256, (size // 8 + 2, size // 8 + 2, 3), np.uint8)
    with io.BytesIO() as file:
        Image.fromarray(coarse).resize((size, size), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
        return file.getvalue()


def coordinator(device: torch.device) -> dict[str, float]:
    """Measures a coordinator on a device, with models of each size of `COORDINATED`.

    Returns:
        The figures of `seconds_of` for the larger model, but noise and optimizer as a straight line through both sizes:
        seconds per million parameters, and seconds per step.
    """
    plan = PrivacyPlan.of(100_000, 1024, 16, clip_norm=1.0, steps=100, noise_multiplier=1.0, delta=1e-6)
    figures: dict[str, float] = {}
    waits = []
    for size in COORDINATED:
        model = nn.ParameterList([nn.Parameter(torch.zeros(size, device=device))])
        with tempfile.TemporaryDirectory() as folder:
            ledger, randomness = (
                Ledger.create(Path(folder) / "ledger.jsonl", plan, block=block_length(size)),
                Randomness.fresh(),
            )
            runs = Coordinator(plan, model, OptimizerConfig(), randomness, ledger)
            figures = seconds_of(runs, model, plan, ledger, randomness, Path(folder))
        waits.append(figures["noise_seconds_per_million"] * size / 1e6)
    slope = max(0.0, (waits[1] - waits[0]) / (COORDINATED[1] - COORDINATED[0]) * 1e6)
    each = max(0.0, waits[1] - slope * COORDINATED[1] / 1e6)
    return figures | {"noise_seconds_per_million": round(slope, 6), "seconds_per_step": round(each, 6)}


def seconds_of(
    runs: Coordinator, model: nn.Module, plan: PrivacyPlan, ledger: Ledger, randomness: Randomness, folder: Path
) -> dict[str, float]:
    """Measures a coordinator that charges its steps in groups, as in one process and in a cluster.

    Args:
        runs: Coordinator without releases.
        model: Model of the coordinator.
        plan: Privacy plan.
        ledger: Ledger of the coordinator.
        randomness: Randomness of the coordinator.
        folder: Folder for its files.

    Returns:
        Seconds per million parameters: of noise and optimizer, of the digest beside the next sum, of a commit, and of a
        checkpoint.
    """
    numel, device = TrainableVector(model).numel, next(model.parameters()).device
    commits = Commits(folder / "commits", randomness, folder / "checkpoints", model)
    checkpoints, written = Checkpoints(folder / "checkpoints", keep=1), itertools.count()

    def hold(releases: Sequence[Release], summaries: Sequence[StepSummary]) -> Callable[[], None]:
        position = Position(summaries[-1].done, ledger.charged + len(releases), plan.fingerprint)
        draft = commits.write(runs, position, releases, summaries)
        return lambda: commits.name(draft)

    checkpoint = median_seconds(lambda: checkpoints.save(Position(next(written), 0, plan.fingerprint), model, runs))
    runs.in_groups(Group(hold, plan.steps))
    seconds: dict[str, list[float]] = {"noise": [], "bookkeeping": [], "commit": []}
    for number in range(min(REPEATS + 1, plan.steps)):
        zeros = torch.zeros(numel + plan.statistics_count, dtype=torch.int64, device=device)
        total = BoundedSum(zeros, plan.sensitivity, plan.groups, unit=plan.grid_of().unit)
        zeros.sum().item()  # waits for the device
        started = time.perf_counter()
        runs.apply(number, total)
        applied = time.perf_counter()
        runs.wait()
        digested = time.perf_counter()
        runs.commit()
        for name, took in zip(seconds, (applied - started, digested - applied, time.perf_counter() - digested), strict=True):
            seconds[name].append(took)
    medians = {name: statistics.median(took[1:]) for name, took in seconds.items()} | {"checkpoint": checkpoint}
    return {f"{name}_seconds_per_million": round(took / numel * 1e6, 6) for name, took in medians.items()}


def transport() -> dict:
    """Measures the seconds of a reduce and a broadcast between two processes of this machine (gloo)."""
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(exchange, args=(folder,), nprocs=2)
        seconds = [float(line) for line in (Path(folder) / "seconds").read_text().split()]
    return {
        "backend": "gloo",
        "processes": 2,
        "reduce_and_broadcast_seconds": dict(zip(map(str, SIZES), seconds, strict=True)),
        "latency_microseconds": round(seconds[0] / 2 * 1e6, 1),
    }


def exchange(rank: int, folder: str) -> None:
    """Exchanges vectors as one of the two processes; rank 0 writes the seconds.

    Args:
        rank: Rank of the process, 0 or 1.
        folder: Folder where the processes meet, and for the file of seconds.
    """
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    seconds = []
    for size in SIZES:
        vector = torch.zeros(size)

        def step(vector: Tensor = vector) -> None:
            dist.reduce(vector, dst=0)
            dist.broadcast(vector, src=0)

        seconds.append(median_seconds(step, repeats=21, before=dist.barrier))
    if rank == 0:
        (Path(folder) / "seconds").write_text(" ".join(map(str, seconds)))
    dist.destroy_process_group()


def median_seconds(
    step: Callable[[], object],
    repeats: int = REPEATS,
    before: Callable[[], object] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Returns the median seconds of several calls, after one that warms up.

    Args:
        step: Function that is timed.
        repeats: Number of timed calls.
        before: Function that is called before each call, and is not timed.
        clock: Function that returns the time, seconds.
    """
    times = []
    for _ in range(repeats + 1):
        before()
        started = clock()
        step()
        times.append(clock() - started)
    return statistics.median(times[1:])


def assumed(figures: dict, model: dict) -> str:
    """Formats the figures of a model as options of `dpfed cluster cost`.

    Args:
        figures: Figures of the machine.
        model: Figures of the model.
    """
    coordinator, worker = figures["coordinator"], figures["worker"]
    known = {
        "throughput": model["records_per_second"],
        "decoding": 1 / model["decoded_per_second"],
        "views": 1 / model["views_per_second"],
        "ahead": float(model.get("reads_ahead", True)),
        "noise": coordinator["noise_seconds_per_million"],
        "bookkeeping": coordinator["bookkeeping_seconds_per_million"],
        "commit": coordinator.get("commit_seconds_per_million", 0.0),
        "each_step": coordinator.get("seconds_per_step", 0.0),
        "keys": worker["gaps_seconds_per_million_keys"],
        "drawn": worker["seconds_per_million_drawn"],
        "latency": 1e-6 * figures["transport"]["latency_microseconds"],
    }
    return " ".join(f"--assume {name}={value:.4g}" for name, value in known.items())


def main() -> None:
    """Measures, prints and writes ``benchmarks/results/throughput.json``."""
    device = pick_device("auto")
    figures: dict = {"device": device.type, "gradients": {}}
    for name, (config, size, on_cpu, on_gpu) in MODELS.items():
        records = on_gpu if device.type == "cuda" else on_cpu
        if records is not None:
            figures["gradients"][name] = result = gradients(config, size, records, device)
            print(f"{name:>22}  {result['records_per_second']:>10,.1f} records/s  {result['engine']}, {result['precision']}")
    figures["coordinator"] = coordinator(device)
    figures["worker"] = draws()
    figures["transport"] = transport()
    for name, value in (figures["coordinator"] | figures["worker"]).items():
        print(f"{name.replace('_', ' '):>32}  {value:.4f}")
    for size, seconds in figures["transport"]["reduce_and_broadcast_seconds"].items():
        print(f"{int(size):>14,} floats  {seconds * 1e3:8.2f} ms for reduce and broadcast")
    for name, model in figures["gradients"].items():
        print(f"{name}: {assumed(figures, model)}")
    print(write_result("throughput", figures, seeds=[0]))


if __name__ == "__main__":
    main()
