"""ViT-B-32 with LoRA of rank 16 on q and v of both towers, images of 224 pixels, captions of 77 tokens, random weights."""

from __future__ import annotations

from typing import Any

from benchmarks import step, throughput, vit
from benchmarks.gpu.place import Place
from benchmarks.gpu.speed import fitting
from benchmarks.gpu.speed import memory as memory_of
from dpfed.bounding.engines import Precision
from dpfed.config import ModelConfig

MODEL = "ViT-B-32 LoRA, 224 px"  # of `throughput.MODELS`
SIDE, RECORDS = 224, 1_024
_TINY_SIDE, _TINY_RECORDS = 32, 64


def exactness(place: Place) -> dict[str, Any]:
    """One clipped step against plain autograd on open_clip's own calls."""
    if place.tiny:
        return vit.measure("towers/small.json", 8, 4, place.device)
    return vit.measure(device=place.device)


def gradients(place: Place, precision: Precision, size: int) -> dict[str, Any]:
    """Clipped group gradients per second.

    Args:
        place: where.
        precision: of the forward pass.
        size: S, records of a group.
    """
    config, side, records = _of(place)
    return fitting(lambda count: throughput.gradients(config, side, count, place.device, precision, min(size, count)), records)


def overhead(place: Place) -> dict[str, Any]:
    """A private step over the best non-private one."""
    config, side, records = _of(place)

    def ratios(count: int) -> dict[str, Any]:
        return step.overheads(config, count, 3, (count // 4, count), place.device, side)

    return fitting(ratios, records // 4)


def memory(place: Place, batch: int) -> dict[str, Any]:
    """Of a worker's whole step over generated captioned shapes."""
    config, side, _ = _of(place)
    model = {"kind": "open_clip", "architecture": config.architecture}
    return memory_of(place, model, batch, records=4_096, size=side)


def _of(place: Place) -> tuple[ModelConfig, int, int]:
    """Model, side of the images, records at a time."""
    if place.tiny:
        return ModelConfig(kind="open_clip", architecture="towers/small.json"), _TINY_SIDE, _TINY_RECORDS
    return throughput.MODELS[MODEL][0], SIDE, RECORDS
