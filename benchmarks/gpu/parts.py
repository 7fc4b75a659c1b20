"""The parts of each kind of call, in the order in which they are done, each with its approximate duration on a GPU."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from benchmarks import throughput
from benchmarks.draws import draws
from benchmarks.gpu import checks, steps, training
from benchmarks.gpu.place import Part

_SECONDS = {"ResNet-50, 224 px": 30.0, "ViT-B-32 LoRA, 224 px": 50.0}  # of a private run; others are faster
_FIRST = "engines", "noise"  # of the checks


def measure() -> list[Part]:
    """Returns the parts of a call ``measure``, the most important ones first."""
    parts = [Part("checks", (name,), 10.0, checks.CHECKS[name]) for name in _FIRST]
    *plain, captured, fused, compiled = steps.PLAIN
    for name in steps.CASES:
        parts.append(_step(name, "private", _SECONDS.get(name, 20.0), steps.private))
        way = fused if fused in steps.ways(name) else captured  # the fastest one, as far as is known
        parts.append(_step(name, way, 20.0, functools.partial(steps.plain, way=way)))
    parts += [
        Part("throughput", ("coordinator",), 10.0, lambda place: throughput.coordinator(place.device)),
        Part("step", ("views",), 3.0, steps.views),
        Part("step", ("decoding",), 10.0, steps.decoding),
    ]
    parts += [Part("checks", (name,), 10.0, check) for name, check in checks.CHECKS.items() if name not in _FIRST]
    parts += [
        Part("checks", ("others", name), 15.0, functools.partial(checks.others, name=name), tiny=name == "small CNN")
        for name in checks.SHARED
    ]
    begun = {part.path for part in parts}
    for way in (captured, *plain[::-1], compiled):
        seconds = 60.0 if way == compiled else 10.0
        names = [name for name in steps.CASES if way in steps.ways(name) and (name, way) not in begun]
        parts += [_step(name, way, seconds, functools.partial(steps.plain, way=way)) for name in names]
    return parts + _for_cost()


def _step(name: str, way: str, seconds: float, work: Callable[..., Any]) -> Part:
    is_tiny = name == next(iter(steps.CASES)) and "compiled" not in way  # all are alike then
    return Part("step", (name, way), seconds, functools.partial(work, name=name), is_tiny)


def table() -> list[Part]:
    """Returns the parts of a call ``table``: runs of the paper's Table 1 on CIFAR-10, and one run each in bf16 and in fp32."""
    parts = [_cell(*one) for one in (("group", 10.0), ("batch", 10.0), ("none", None))]
    parts += [
        Part("precision", (precision,), 60.0, functools.partial(training.in_precision, precision=precision))
        for precision in ("bf16", "fp32")
    ]
    return parts + [_cell(method, epsilon) for epsilon in (4.0, 1.0) for method in ("group", "batch")]


def _cell(method: str, epsilon: float | None) -> Part:
    name = method if epsilon is None else f"{method}, epsilon {str(epsilon).removesuffix('.0')}"
    return Part("table1", (name,), 60.0, functools.partial(training.cell, method=method, epsilon=epsilon))


def _for_cost() -> list[Part]:
    """Returns the parts that measure a machine for `dpfed cluster cost`, except the part for the coordinator."""
    return [
        Part("throughput", ("device",), 0.0, lambda place: place.device.type),
        Part("throughput", ("worker",), 20.0, lambda place: draws()),
        Part("throughput", ("transport",), 20.0, lambda place: throughput.transport()),
        *(
            Part("throughput", ("gradients", name), 40.0, functools.partial(checks.gradients, name=name), tiny="CNN" in name)
            for name in throughput.MODELS
        ),
    ]
