"""Whether CUDA computes what the CPU computes: sums, noise, digests, resumed runs, refusals. Each check says whether it passed.

On a machine without a GPU, as in tests, the device is the CPU itself, and the checks hold trivially.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.digests import CASES, tree_of
from benchmarks.gpu.place import Place
from dpfed.bounding.engines import ENGINES, GroupBatch, LayerwiseEngine, LoopEngine
from dpfed.config import Config, ModelConfig, ObjectiveConfig, parse_config
from dpfed.errors import UserError
from dpfed.models.building import build_model
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.noise import digest_of
from dpfed.privacy.randomness import Randomness
from dpfed.progress import Silent
from dpfed.runs.assembly import assemble
from dpfed.runs.pretraining import pretrain
from dpfed.runs.resolution import resolve
from dpfed.runs.resuming import resume

CPU = torch.device("cpu")
SUMS, NORMS = 1e-4, 1e-5  # relative, in float32; TF32 would differ by 1e-3
CONVOLUTION = 1e-5
ULPS = 1  # of float32: noise and sum are added in float64 and rounded once
_MODELS = {
    "small CNN": ModelConfig(image="cnn", width=32),
    "ResNet-18": ModelConfig(image="resnet18", width=64),
}
_TINY = {"small CNN": ModelConfig(image="cnn", width=8)}
# Methods whose engines draw noise of their own draw other noise where a sum differs in its last bit: nothing to compare.
_METHODS = (
    "group",
    "group, capped",
    "batch",
    "sample",
    "logit",
    "public",
    "none",
    "images",
    "siglip",
    "barlow twins",
    "vicreg",
)
_OWN_NOISE = ("released", "dpcl")


def engines(place: Place) -> dict[str, Any]:
    """The clipped sums and norms of every engine, against its own on the CPU."""
    torch.manual_seed(0)
    found: dict[str, Any] = {}
    for name, config in _TINY.items() if place.tiny else _MODELS.items():
        images = torch.randn(32, 3, 3, 32, 32)
        starts = [0, 4, 5, 9, 17, 24, 32]  # one group has a record alone: it counts for nothing
        model = build_model(config, ObjectiveConfig())
        here = {engine.name: _sums(engine(model), GroupBatch({"image": images}, starts)) for engine in ENGINES.values()}
        model.to(place.device)
        batch = GroupBatch({"image": images.to(place.device)}, starts)
        for engine in ENGINES.values():
            total, own = _sums(engine(model), batch)
            expected, norms = here[engine.name]
            found[f"{name}, {engine.name}"] = {"sum": _off(total, expected), "norms": _off(own.sort()[0], norms.sort()[0])}
    return {"passed": all(one["sum"] < SUMS and one["norms"] < NORMS for one in found.values()), "relative_difference": found}


def methods(place: Place) -> dict[str, Any]:
    """A worker's whole step with every method: drawn, augmented, clipped and added up there and on the CPU."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in _METHODS[:2] if place.tiny else _METHODS:
            there, here = (_step(name, Path(folder), device) for device in (place.device, CPU))
            found[name] = _off(there, here)
        for name in () if place.tiny else _OWN_NOISE:
            found[name] = 0.0 if torch.isfinite(_step(name, Path(folder), place.device)).all() else float("inf")
    return {"passed": all(off < SUMS for off in found.values()), "relative_difference": found}


def noise(place: Place) -> dict[str, Any]:
    """The same key gives the same noise there as here, but for the last bit."""
    count = 3_000 if place.tiny else 3_000_000
    values = torch.randn(count, generator=torch.Generator().manual_seed(0))
    results = []
    for device in (place.device, place.device, CPU):
        noisy = values.to(device, copy=True)
        Randomness.from_seed(0).add_normal_(noisy, 1.0, "check", 0)
        results.append(noisy.cpu())
    there, again, here = results
    ulps = (_ordered(there) - _ordered(here)).abs()
    return {
        "passed": torch.equal(there, again) and int(ulps.max()) <= ULPS,
        "repeats": torch.equal(there, again),
        "ulps_at_most": int(ulps.max()),
        "share_that_differs": (ulps > 0).double().mean().item(),
    }


def digests(place: Place) -> dict[str, Any]:
    """One vector has one digest, wherever it lies; says, too, whether a step that is computed twice gives the same bits."""
    vector = torch.randn(100_003)
    with tempfile.TemporaryDirectory() as folder:
        steps = [_step("images", Path(folder), place.device, float32=True) for _ in range(2)]
    return {"passed": digest_of(vector) == digest_of(vector.to(place.device)), "step_repeats": torch.equal(*steps)}


def resumed(place: Place) -> dict[str, Any]:
    """A run that is interrupted between two checkpoints repeats its kept releases, and pays for each step once."""
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


def bf16(place: Place) -> dict[str, Any]:
    """vmap takes no bf16, layerwise only if others' rounding stays; what the loop computes is near float32, and not it."""
    refused = {}
    with tempfile.TemporaryDirectory() as folder:
        for engine in ("loop", "vmap"):
            tree = tree_of("images", Path(folder))
            tree["bounding"]["engine"] = engine
            tree["training"] = {"device": place.device.type, "precision": "bf16"}
            try:
                resolve(parse_config(tree))
                refused[engine] = False
            except UserError:
                refused[engine] = True
    torch.manual_seed(0)
    model = build_model(ModelConfig(image="cnn", width=8), ObjectiveConfig()).to(place.device)
    batch = GroupBatch({"image": torch.randn(16, 2, 3, 32, 32, device=place.device)}, [0, 8, 16])
    (exact, norms), (rounded, _) = (_sums(LoopEngine(model, precision), batch) for precision in ("fp32", "bf16"))
    off = _off(rounded, exact)
    figures = {"refused": refused, "relative_difference": off}
    blank = torch.full_like(batch.views["image"][:5], torch.nan)  # a group that adds nothing, but shares the others' passes
    further = GroupBatch({"image": torch.cat([batch.views["image"], blank])}, [0, 8, 16, 21])
    try:
        alone, beside = (_clipped(LayerwiseEngine(model, "bf16", group_size=8), one, norms) for one in (batch, further))
        figures |= {"layerwise": _off(alone, rounded), "moved_by_others": (moved := _off(beside, alone))}
    except UserError as refusal:
        figures["layerwise"], moved = str(refusal), 0.0
    passed = refused == {"loop": False, "vmap": True} and 1e-6 < off < 0.3 and moved < 1e-6
    return {"passed": passed, **figures}


def tf32(place: Place) -> dict[str, Any]:
    """Making a run turns TF32 off; a convolution is then as exact as float32."""
    torch.backends.cudnn.allow_tf32 = True
    left_on = _convolution_error(place.device)
    with tempfile.TemporaryDirectory() as folder:
        assemble(resolve(_config("images", Path(folder), place.device)))
    switches = {"cudnn": torch.backends.cudnn.allow_tf32, "matmul": torch.backends.cuda.matmul.allow_tf32}
    error = _convolution_error(place.device)
    passed = not any(switches.values()) and error < CONVOLUTION
    return {"passed": passed, "allowed": switches, "relative_error": error, "relative_error_with_tf32": left_on}


CHECKS: dict[str, Callable[[Place], dict[str, Any]]] = {
    "engines": engines,
    "methods": methods,
    "noise": noise,
    "digests": digests,
    "resumed": resumed,
    "bf16": bf16,
    "tf32": tf32,
}


def _sums(engine: Any, batch: GroupBatch) -> tuple[Tensor, Tensor]:
    """A clipped sum, of groups of which some are clipped, and their norms."""
    norms = engine.add_clipped(batch, 1e9, engine.zeros())
    return _clipped(engine, batch, norms), norms.cpu().double()


def _clipped(engine: Any, batch: GroupBatch, norms: Tensor) -> Tensor:
    total = engine.zeros()
    engine.add_clipped(batch, norms.median().item(), total)
    return total.cpu().double()


def _off(found: Tensor, expected: Tensor) -> float:
    """Norm of the difference over the norm of what is expected."""
    return ((found.cpu().double() - expected.cpu().double()).norm() / expected.cpu().double().norm()).item()


def _ordered(values: Tensor) -> Tensor:
    """Integers in the order of the float32 numbers, one apart where no other number lies between."""
    bits = torch.from_numpy(values.numpy().view(np.int32).astype(np.int64))
    return torch.where(bits < 0, -(bits & 0x7FFFFFFF), bits)


def _config(name: str, folder: Path, device: torch.device) -> Config:
    tree = tree_of(name, folder)
    tree["training"] = {**tree["training"], "device": device.type}
    tree["evaluation"] = {"split": "none"}
    return parse_config(tree)


def _step(name: str, folder: Path, device: torch.device, float32: bool = False) -> Tensor:
    """The sum of the first step of one of `CASES`."""
    assert name in CASES
    randomness = Randomness.from_seed(0)
    parts = assemble(resolve(_config(name, folder, device)), randomness)
    values = parts.worker(randomness.for_owners()).bounded_sum(0).values.cpu()
    return values if float32 else values.double()


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
