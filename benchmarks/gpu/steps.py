"""Compares a whole private step with the best step without privacy, at batch sizes for a GPU.

A whole step comprises views, forward and backward pass, noise, optimizer, and the coordinator's writing. The private steps are
those of a real run, timed one by one. The plain step (without privacy) has as many records and views, and may be captured in a
CUDA graph or compiled.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks import throughput
from benchmarks.gpu.place import Place
from dpfed.config import Config, parse_config
from dpfed.data.processes import cores
from dpfed.data.store.record import RecordInput
from dpfed.data.store.records import open_or_write
from dpfed.data.store.writing import StoreWriter
from dpfed.data.views.images import ImageViews
from dpfed.models.building import build_model, tokenizer_for
from dpfed.objectives.infonce import group_loss
from dpfed.progress import Silent
from dpfed.runs.pretraining import pretrain

GROUP = 16
_STEPS = 2_000  # of the private run, as many as a real one has
_TIMED = 12  # after so many it ends; the first three warm up
_REPEATS = 5


@dataclass(frozen=True)
class Case:
    """The model and the sizes of a step.

    Attributes:
        model: Section ``[model]`` of the configuration.
        side: Side of the images, pixels.
        batch: B, expected number of records in the step.
    """

    model: dict[str, Any]
    side: int
    batch: int


CASES = {
    "ResNet-18, CIFAR stem": Case({"image": "resnet18", "width": 64}, 32, 2_048),
    "ResNet-18, ImageNet stem": Case({"image": "resnet18", "width": 64, "stem": "imagenet"}, 32, 2_048),
    "ViT-B-32 LoRA, 224 px": Case({"kind": "open_clip", "architecture": "ViT-B-32"}, 224, 1_024),
    "ResNet-50, 224 px": Case({"image": "resnet50", "width": 64, "stem": "imagenet"}, 224, 256),
}
_TINY = Case({"image": "cnn", "width": 8}, 16, 32)
FUSED = "bf16, channels last, our GroupNorm, graph"
PLAIN = ("fp32", "bf16, channels last", "bf16, channels last, graph", FUSED, "bf16, channels last, compiled")


def ways(name: str) -> tuple[str, ...]:
    """Returns the kinds of plain steps of a case, of `PLAIN`; `FUSED` only for models with GroupNorm, which it fuses."""
    return tuple(way for way in PLAIN if way != FUSED or CASES[name].model.get("image", "").startswith("resnet"))


def config_of(place: Place, name: str) -> Config:
    """Returns the configuration of the run that is timed."""
    case = _TINY if place.tiny else CASES[name]
    tree = {
        "name": "gpu",
        "data": {"source": "store", "path": str(_records(place, case)), "size": case.side},
        "views": {"crop_scale": [0.2, 1.0], "flip": 0.5, "jitter": 0.8, "grayscale": 0.2},
        "model": case.model,
        "bounding": {"group_size": GROUP, "microbatch": case.batch, "engine": "layerwise"},
        "privacy": {"noise_multiplier": 1.0, "accountant": "rdp", "batch": case.batch, "steps": _STEPS},
        "training": {"device": place.device.type, "precision": "bf16", "checkpoint_every": _STEPS},
        "evaluation": {"split": "none"},
    }
    return parse_config(tree)


def _records(place: Place, case: Case) -> Path:
    """Returns a store of captioned pictures of the size that the model reads, so that no step waits for resizing."""
    path = place.work / "stores" / f"noise-{case.side}px-{case.batch}"

    def write(target: Path) -> None:
        generator = np.random.default_rng(0)
        with StoreWriter(target, name="noise", kind="image-text", size=case.side, public=True) as writer:
            for number in range(case.batch * 5 // 4):
                picture = generator.integers(0, 256, (case.side, case.side, 3), np.uint8)
                writer.add(RecordInput(str(number), picture, (f"a photo of thing number {number}",), split="train"))

    open_or_write(path, write)
    return path


class _Enough(Exception):
    """Raised to end a run after the timed steps."""


class _Steps(Silent):
    """Notes when each step ends, and ends the run after some."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def stage(self, name: str, total: int | None) -> Callable[[int], None]:
        """See `Progress`."""
        return self._ended if name == "private steps" else lambda done: None

    def _ended(self, done: int) -> None:
        self.ends.append(time.perf_counter())
        if done == _TIMED:
            raise _Enough


def private(place: Place, name: str) -> dict[str, Any]:
    """Measures time and memory of a whole private step."""
    config, seen = config_of(place, name), _Steps()
    if place.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(_Enough):
        pretrain(config, Path(folder) / "run", seen)
    seconds = [end - begin for begin, end in zip(seen.ends, seen.ends[1:], strict=False)]
    return _figures(config, statistics.median(seconds[3:]))


def plain(place: Place, name: str, way: str) -> dict[str, Any]:
    """Measures time and memory of a plain step: the loss of each microbatch, with the fastest microbatch size.

    Args:
        place: Device, folders and time limit of the call.
        name: Name of a case in `CASES`.
        way: Kind of the plain step, one of `PLAIN`.
    """
    config, device = config_of(place, name), place.device
    size, best = config.privacy.batch, float("inf")
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    for microbatch in (size,) if "compiled" in way or place.tiny else (size, size // 2, size // 4):
        with contextlib.suppress(torch.OutOfMemoryError):
            best = min(best, _Plain(config, way, microbatch, device).seconds())
    if best == float("inf"):
        raise RuntimeError(
            f"the plain step does not fit into the memory of the device, not even in {size // 4} records at a time"
        )
    return _figures(config, best)


def _figures(config: Config, seconds: float) -> dict[str, Any]:
    peak = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else 0.0
    batch = config.privacy.batch
    return {"ms": round(1e3 * seconds, 2), "records_per_second": round(batch / seconds, 1), "peak_gib": round(peak, 2)}


class _Plain:
    """A step without privacy.

    Args:
        config: Configuration, of which model, loss, views and batch are used.
        way: Kind of the step, one of `PLAIN`.
        microbatch: Number of records in a microbatch.
        device: Device that computes.
    """

    def __init__(self, config: Config, way: str, microbatch: int, device: torch.device) -> None:
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.benchmark = True
        torch.backends.cudnn.deterministic = False
        torch.manual_seed(0)
        self._device, self._microbatch, self._bf16 = device, microbatch, "bf16" in way
        self._mode: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext
        if way == FUSED:
            from benchmarks.gpu.fused_norm import FusedNorm  # it needs Triton

            self._mode = FusedNorm
        model = build_model(config.model, config.objective, config.adaptation, config.data.size or 32).to(device).train()
        self._model: nn.Module = model.to(memory_format=torch.channels_last) if self._bf16 else model
        self._called = torch.compile(self._loss) if "compiled" in way else self._loss
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._optimizer = torch.optim.Adam(trained, 1e-3, fused=device.type == "cuda")
        text, batch = config.model.reads_text, config.privacy.batch
        self._images = torch.randint(0, 256, (batch, 3, config.data.size or 32, config.data.size or 32), dtype=torch.uint8)
        self._count, self._maker = 1 if text else 3, ImageViews(config.views)
        self._tokens: Tensor | None = None
        if (tokenizer := tokenizer_for(config.model)) is not None:
            self._tokens = tokenizer([f"a photo of thing number {number}" for number in range(batch)])[:, None].to(device)
        self._graph: torch.cuda.CUDAGraph | None = None
        if "graph" in way and device.type == "cuda":
            self._capture()

    def seconds(self) -> float:
        """Returns the median seconds of several steps, after one that warms up."""

        def step() -> None:
            for start in range(0, len(self._images), self._microbatch):
                self._gradients(self._views(slice(start, start + self._microbatch)))
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=self._graph is None)
            if self._device.type == "cuda":
                torch.cuda.synchronize()

        return throughput.median_seconds(step, _REPEATS)

    def _views(self, part: slice) -> dict[str, Tensor]:
        images = self._images[part].to(self._device)
        uniforms = torch.rand(len(images), self._count, self._maker.columns, device=self._device)
        views = {"image": self._maker(images, uniforms)}
        return views if self._tokens is None else views | {"text": self._tokens[part]}

    def _loss(self, views: dict[str, Tensor]) -> Tensor:
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._bf16), self._mode():
            embeddings = self._model(views)
        present = torch.ones(len(views["image"]), dtype=torch.bool, device=self._device)
        return group_loss({name: z.float() for name, z in embeddings.items()}, present, self._model.temperature)

    def _gradients(self, views: dict[str, Tensor]) -> None:
        if self._graph is None:
            self._called(views).backward()
            return
        for name, view in views.items():
            self._given[name].copy_(view)
        self._graph.replay()

    def _capture(self) -> None:
        self._given = {name: view.clone() for name, view in self._views(slice(0, self._microbatch)).items()}
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(3):
                self._loss(self._given).backward()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._loss(self._given).backward()
        self._graph = graph


def views(place: Place) -> dict[str, float]:
    """Measures the milliseconds for 4,096 random views of 32 px."""
    rate = throughput.made_views(32, 2, 32 if place.tiny else 2_048, place.device)
    return {"ms_of_4096": round(2_048e3 / rate, 2)}


def decoding(place: Place) -> dict[str, Any]:
    """Measures how many JPEG files of 224 px one core, and all cores, decode per second; counts the physical cores, too."""
    side = 32 if place.tiny else 224
    alone, together = (throughput.decoded_images(side, workers) for workers in (1, None))
    siblings = {path.read_text().strip() for path in Path("/sys/devices/system/cpu").glob("cpu*/topology/thread_siblings_list")}
    facts = {"whole_cores": min(cores(), len(siblings))} if siblings else {}
    return {"one_core": round(alone, 1), "all": round(together, 1), "cores": cores(), **facts}
