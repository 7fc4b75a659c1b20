"""The parts of each call, in the order in which they are done, each with the seconds that it takes on a GPU, about."""

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
    """All that matters, what matters most first."""
    found = [Part("checks", (name,), 10.0, checks.CHECKS[name]) for name in _FIRST]
    *plain, captured, compiled = steps.PLAIN
    for name in steps.CASES:
        found.append(_step(name, "private", _SECONDS.get(name, 20.0), steps.private))
        found.append(_step(name, captured, 20.0, functools.partial(steps.plain, way=captured)))
    found += [
        Part("throughput", ("coordinator",), 10.0, lambda place: throughput.coordinator(place.device)),
        Part("step", ("views",), 3.0, steps.views),
        Part("step", ("decoding",), 10.0, steps.decoding),
    ]
    found += [Part("checks", (name,), 10.0, check) for name, check in checks.CHECKS.items() if name not in _FIRST]
    found += [
        Part("checks", ("others", name), 15.0, functools.partial(checks.others, name=name), tiny=name == "small CNN")
        for name in checks.SHARED
    ]
    for way in (*plain[::-1], compiled):
        seconds = 60.0 if way == compiled else 10.0
        found += [_step(name, way, seconds, functools.partial(steps.plain, way=way)) for name in steps.CASES]
    return found + _for_cost()


def _step(name: str, way: str, seconds: float, work: Callable[..., Any]) -> Part:
    is_tiny = name == next(iter(steps.CASES)) and "compiled" not in way  # all are alike then
    return Part("step", (name, way), seconds, functools.partial(work, name=name), is_tiny)


def table() -> list[Part]:
    """DP-GCL's CIFAR-10 cell of the paper's Table 1: epsilon 10, at its own settings."""
    return [Part("table1", ("group, epsilon 10",), 60.0, training.cell)]


def _for_cost() -> list[Part]:
    """What `dpfed cluster cost` asks of a machine beside the coordinator."""
    return [
        Part("throughput", ("device",), 0.0, lambda place: place.device.type),
        Part("throughput", ("worker",), 20.0, lambda place: draws()),
        Part("throughput", ("transport",), 20.0, lambda place: throughput.transport()),
        *(
            Part("throughput", ("gradients", name), 40.0, functools.partial(checks.gradients, name=name), tiny="CNN" in name)
            for name in throughput.MODELS
        ),
    ]
