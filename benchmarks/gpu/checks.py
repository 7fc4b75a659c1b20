"""Checks that CUDA computes what the CPU computes: sums, noise, views, digests, resumed runs. Each result says if it passed.

On a machine without a GPU, as in tests, the device is the CPU itself, and the checks hold trivially.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import throughput
from benchmarks.digests import CASES, tree_of
from benchmarks.gpu.place import Place
from dpfed.bounding.clipping import Clip
from dpfed.bounding.engines import Engine, GroupBatch, LayerwiseEngine, LoopEngine, Precision
from dpfed.config import AdaptationConfig, Config, ModelConfig, ObjectiveConfig, ViewsConfig, parse_config
from dpfed.data.views.images import ImageViews
from dpfed.errors import Notice
from dpfed.models.building import build_model
from dpfed.privacy.blocks import LENGTH, Blocks, SumNoise, has_kernel
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.noise import GaussianNoise, digest_of
from dpfed.privacy.randomness import Randomness
from dpfed.privacy.universal_hash import UniversalHash
from dpfed.progress import Silent
from dpfed.runs.build import build
from dpfed.runs.pretraining import pretrain, resume

CPU = torch.device("cpu")
SUMS = 1e-4  # relative, in float32; TF32 would differ by 1e-3
EXACT = 1e-7  # relative, in float64; clip factors are rounded to float32
CONVOLUTION = 1e-5
VIEWS = 1e-4  # of a number in -1 .. 1
NOISE_STEPS = 1  # of the sum's grid: the noise is rounded down to whole ones
_NOISE = GaussianNoise(1.0, 2.0**-20)  # its numbers fit into float32 exactly
_LONGEST = 2.0**24  # steps of a clipped gradient
_MODELS = {"small CNN": ModelConfig(image="cnn", width=32), "ResNet-18": ModelConfig(image="resnet18", width=64)}
_TINY = {"small CNN": ModelConfig(image="cnn", width=8)}
_LORA, _FULL = AdaptationConfig(), AdaptationConfig(image="full")
# Model, what of it is trained, side of the images.
SHARED = {
    "small CNN": (_MODELS["small CNN"], _FULL, 32),
    "ResNet-18": (_MODELS["ResNet-18"], _FULL, 32),
    "ResNet-18, ImageNet stem": (ModelConfig(image="resnet18", width=64, stem="imagenet"), _FULL, 32),
    "timm ViT": (ModelConfig(image="timm/vit_small_patch16_224"), _FULL, 224),
    "timm ConvNeXt": (ModelConfig(image="timm/convnext_atto"), _FULL, 224),
    "open_clip ViT-B-32": (ModelConfig(kind="open_clip", architecture="ViT-B-32"), _LORA, 224),
}
_SHARED_TINY = {"small CNN": (_TINY["small CNN"], _FULL, 16)}
# Methods whose engines draw noise of their own draw other noise where a sum differs in its last bit: nothing to compare.
_METHODS = ("group", "group, capped", "batch", "sample", "logit", "public", "none", "images", "siglip", "barlow twins")
_OWN_NOISE = ("released", "dpcl")


def engines(place: Place) -> dict[str, Any]:
    """Compares the clipped sums and norms of every engine with those of the loop engine on the CPU.

    All compute in float64, where correct engines agree. In float32, two correct engines may differ by a few thousandths in a
    deep network's gradient: a ReLU's input that is almost zero may be positive in one engine and negative in the other.
    """
    torch.manual_seed(0)
    differences: dict[str, Any] = {}
    for name, config in _TINY.items() if place.tiny else _MODELS.items():
        images = torch.randn(32, 3, 3, 32, 32, dtype=torch.float64)
        offsets = [0, 4, 5, 9, 17, 24, 32]  # one group has a record alone: it counts for nothing
        model = build_model(config, ObjectiveConfig()).double()
        expected, norms = _sums(LoopEngine(model), GroupBatch({"image": images}, offsets))
        model.to(place.device)
        batch = GroupBatch({"image": images.to(place.device)}, offsets)
        for engine in (LoopEngine(model), LayerwiseEngine(model, if_unlike="go on")):
            total, group_norms = _sums(engine, batch)
            differences[f"{name}, {engine.name}"] = {
                "sum": _off(total, expected),
                "norms": _off(group_norms.sort()[0], norms.sort()[0]),
            }
    return {
        "passed": all(one["sum"] < EXACT and one["norms"] < EXACT for one in differences.values()),
        "relative_difference": differences,
    }


def others(place: Place, name: str) -> dict[str, Any]:
    """Checks that a group's contribution does not depend on the other groups in its pass through the model.

    The check adds a group that contributes nothing to the sum; the sum must keep its bits. If the engine itself finds that the
    device fails this, it takes one group at a time, which costs only time. Its notice names the first operation that differs.

    Args:
        place: Device, folders and time limit of the call.
        name: Name of a model in `SHARED`.
    """
    config, adaptation, side = _SHARED_TINY[name] if place.tiny else SHARED[name]
    by_precision: dict[str, Any] = {}
    for precision in ("bf16", "fp32"):
        model = build_model(config, ObjectiveConfig(), adaptation, side).to(place.device)
        by_precision[precision] = _moved_by_a_stranger(model, precision, side, place.device)
        torch.cuda.empty_cache() if place.device.type == "cuda" else None
    refused = "; ".join(f"{precision}: {one['refused']}" for precision, one in by_precision.items() if one["refused"])
    return {
        "passed": all(one["moved"] == 0 for one in by_precision.values()),
        "steps_moved": by_precision,
        "refused": refused or None,
    }


def gradients(place: Place, name: str) -> dict[str, Any]:
    """Measures the gradients of a model of `throughput.MODELS`, with as many records in a batch as fit into the memory."""
    config, size, _, most = throughput.MODELS[name]
    records = 32 if place.tiny else most or 512
    config = _TINY["small CNN"] if place.tiny else config
    while True:
        try:
            return throughput.gradients(config, size, records, place.device)
        except torch.OutOfMemoryError:
            if records < 32:
                raise
        torch.cuda.empty_cache()  # outside of the handler, which holds the tensors of the failed call
        records //= 2


def _moved_by_a_stranger(model: nn.Module, precision: Precision, side: int, device: torch.device) -> dict[str, Any]:
    """Returns how far a group of infinite pixels, which adds nothing, moves the exact sum of other groups.

    The records of the other groups are nearly equal.

    Returns:
        The largest change of a number of the sum, in grid steps (``moved``), the engine's notice if it takes one group at a
        time (``refused``), and the engine's `repeats` (``recorded``).
    """
    generator = torch.Generator().manual_seed(1)
    groups = 24
    size = 4
    least = 1e-5
    text = hasattr(model, "embed_text")

    def records(count: int) -> dict[str, Tensor]:
        shape = (count, 1 if text else 2, 3, side, side)
        images = torch.randn(1, *shape[1:], generator=generator) + 1e-3 * torch.randn(*shape, generator=generator)
        tokens = {"text": torch.randint(1, 300, (1, 1, 77), generator=generator).expand(count, 1, 77)} if text else {}
        return {"image": images, **tokens}

    def total(engine: Engine, of: list[dict[str, Tensor]]) -> Tensor:
        offsets = [0, *itertools.accumulate(len(views["image"]) for views in of)]
        views = {name: torch.cat([views[name] for views in of]).to(device) for name in of[0]}
        into = engine.zeros().long()
        engine.add_clipped(GroupBatch(views, offsets), Clip(_LONGEST, _LONGEST / least), into)
        return into

    sizes = (2 + torch.poisson(torch.full((groups,), float(size)), generator=generator).int()).tolist()
    ours, engine, refused = [records(count) for count in sizes], LayerwiseEngine(model, precision, group_size=size), None
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        alone = total(engine, ours)
        refused = next((str(note.message) for note in notes if issubclass(note.category, Notice)), None)
    most = 0
    for count in (2, 7, 12):
        stranger = records(count)
        stranger["image"] = stranger["image"] * float("inf")
        for at in (0, groups // 2, groups):
            beside = total(engine, [*ours[:at], stranger, *ours[at:]])
            most = max(most, int((beside - alone).abs().max()))
    return {"moved": most, "refused": refused, "recorded": engine.repeats}


def methods(place: Place) -> dict[str, Any]:
    """Compares a worker's whole step (draws, views, clipped sum) on the device with the step on the CPU, for every method."""
    differences = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in _METHODS[:2] if place.tiny else _METHODS:
            there, here = (_step(name, Path(folder), device) for device in (place.device, CPU))
            differences[name] = _off(there, here)
        for name in () if place.tiny else _OWN_NOISE:
            differences[name] = 0.0 if torch.isfinite(_step(name, Path(folder), place.device)).all() else float("inf")
    return {"passed": all(off < SUMS for off in differences.values()), "relative_difference": differences}


def noise(place: Place) -> dict[str, Any]:
    """Checks that a key gives the same noise on the device and on the CPU, up to one step of the grid."""
    blocks = Blocks(3_000, 1_000) if place.tiny else Blocks(3_000_000, LENGTH)
    values = torch.randint(-(1 << 20), 1 << 20, (blocks.size,), generator=torch.Generator().manual_seed(0))
    added = SumNoise(_NOISE, Randomness.from_seed(0), blocks, "check")
    there, again, here = (added.noisy(values.to(device), 0).cpu() for device in (place.device, place.device, CPU))
    steps = ((there - here) / _NOISE.unit).abs()
    return {
        "passed": torch.equal(there, again) and int(steps.max()) <= NOISE_STEPS,
        "repeats": torch.equal(there, again),
        "kernel": has_kernel(values.to(place.device), blocks.length),
        "steps_at_most": int(steps.max()),
        "share_that_differs": (steps > 0).double().mean().item(),
    }


def views(place: Place) -> dict[str, Any]:
    """Checks that random views on the device are those of the CPU, up to rounding, and independent of the rest of the batch."""
    maker, generator = (
        ImageViews(ViewsConfig(crop_scale=(0.2, 1.0), flip=0.5, jitter=0.8, grayscale=0.2, blur=0.5)),
        torch.Generator(),
    )
    images = torch.randint(0, 256, (9, 3, 48, 48), dtype=torch.uint8, generator=generator.manual_seed(0))
    uniforms = torch.rand(9, 2, maker.columns, generator=generator)
    expected, there = maker(images, uniforms), maker(images.to(place.device), uniforms.to(place.device))
    alone = maker(images[4:5].to(place.device), uniforms[4:5].to(place.device))
    off = (there.cpu() - expected).abs().max().item()
    return {"passed": off < VIEWS and torch.equal(alone[0], there[4]), "off_at_most": off, "kernels": ImageViews.has_kernels}


def digests(place: Place) -> dict[str, Any]:
    """Checks that a vector has the same digest on every device; also tells whether a repeated step gives the same bits."""
    vectors = torch.randn(100_003), torch.randint(-(2**62), 2**62, (1_000_003,))
    hashed = UniversalHash(Randomness.from_seed(1))
    same = [way(vector) == way(vector.to(place.device)) for way in (digest_of, hashed.digest) for vector in vectors]
    with tempfile.TemporaryDirectory() as folder:
        steps = [_step("images", Path(folder), place.device) for _ in range(2)]
    figures = {"universal_milliseconds": _milliseconds_of_a_digest(hashed, place.device), "step_repeats": torch.equal(*steps)}
    return {"passed": all(same), **figures}


def _milliseconds_of_a_digest(hashed: UniversalHash, device: torch.device) -> float:
    """Measures the milliseconds of a digest of 11.2 million integers on the device."""
    values, took = torch.ones(11_200_000, dtype=torch.int64, device=device), []
    for _ in range(6):
        started = time.perf_counter()
        hashed.digest(values)  # waits for the device
        took.append(time.perf_counter() - started)
    return round(1e3 * statistics.median(took[1:]), 2)


def resumed(place: Place) -> dict[str, Any]:
    """Checks that a run that is interrupted between two checkpoints resumes at its last commit, and charges each step once."""
    with tempfile.TemporaryDirectory() as folder:
        config, run = _config("images", Path(folder), place.device), Path(folder) / "run"
        try:
            pretrain(config, run, _Interrupting(after=3))
        except _Interrupted:
            pass
        before = _charges(run)
        finished = resume(run)
        after = _charges(run)
    steps = config.privacy.steps
    passed = finished.path == run and len(before) == 3 and after[:3] == before and len(after) == steps
    return {"passed": passed, "charged_before": len(before), "charged_after": len(after), "steps": steps}


def tf32(place: Place) -> dict[str, Any]:
    """Checks that building a run turns TF32 off, and that a convolution then has the precision of float32."""
    torch.backends.cudnn.allow_tf32 = True
    left_on = _convolution_error(place.device)
    with tempfile.TemporaryDirectory() as folder:
        build(_config("images", Path(folder), place.device))
    switches = {"cudnn": torch.backends.cudnn.allow_tf32, "matmul": torch.backends.cuda.matmul.allow_tf32}
    error = _convolution_error(place.device)
    passed = not any(switches.values()) and error < CONVOLUTION
    return {"passed": passed, "allowed": switches, "relative_error": error, "relative_error_with_tf32": left_on}


CHECKS: dict[str, Callable[[Place], dict[str, Any]]] = {
    "engines": engines,
    "methods": methods,
    "noise": noise,
    "views": views,
    "digests": digests,
    "resumed": resumed,
    "tf32": tf32,
}


def _sums(engine: Any, batch: GroupBatch) -> tuple[Tensor, Tensor]:
    """Returns the sum of the groups' gradients, clipped to the median norm, and the groups' norms."""
    norms = engine.add_clipped(batch, 1e9, engine.zeros())
    return _clipped(engine, batch, norms), norms.cpu().double()


def _clipped(engine: Any, batch: GroupBatch, norms: Tensor) -> Tensor:
    total = engine.zeros()
    engine.add_clipped(batch, norms.median().item(), total)
    return total.cpu().double()


def _off(result: Tensor, expected: Tensor) -> float:
    """Returns the norm of the difference, divided by the norm of the expected tensor."""
    return ((result.cpu().double() - expected.cpu().double()).norm() / expected.cpu().double().norm()).item()


def _config(name: str, folder: Path, device: torch.device) -> Config:
    tree = tree_of(name, folder)
    tree["training"] = {**tree["training"], "device": device.type}
    tree["evaluation"] = {"split": "none"}
    return parse_config(tree)


def _step(name: str, folder: Path, device: torch.device) -> Tensor:
    """Returns the exact sum of the first step of one of `CASES`."""
    assert name in CASES
    randomness = Randomness.from_seed(0)
    parts = build(_config(name, folder, device), randomness)
    return parts.learner.worker(randomness.for_ranks()).bounded_sum(0).values.cpu()


def _convolution_error(device: torch.device) -> float:
    generator = torch.Generator().manual_seed(0)
    images, weight = (torch.randn(*shape, generator=generator) for shape in ((8, 64, 32, 32), (64, 64, 3, 3)))
    exact = torch.nn.functional.conv2d(images.double(), weight.double(), padding=1)
    return _off(torch.nn.functional.conv2d(images.to(device), weight.to(device), padding=1), exact)


def _charges(run: Path) -> list[str]:
    ledger = Ledger.open(run / "ledger.jsonl")
    return [ledger.release_of(step).digest for step in range(ledger.charged)]


class _Interrupted(Exception):
    pass


class _Interrupting(Silent):
    """Ends a run after some steps, as a crash would."""

    def __init__(self, after: int) -> None:
        self._after = after

    def stage(self, name: str, total: int | None) -> Callable[[int], None]:
        def advance(done: int) -> None:
            if name == "private steps" and done == self._after:
                raise _Interrupted

        return advance
