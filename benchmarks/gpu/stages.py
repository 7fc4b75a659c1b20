"""The parts of each stage, in the order in which they are done."""

from __future__ import annotations

import functools
from typing import Any

from benchmarks import throughput
from benchmarks.draws import draws
from benchmarks.gpu import checks, speed, towers, training
from benchmarks.gpu.place import Part, Place

EPSILONS = (10, 1)  # of the paper's Table 1
_RESNET = {"image": "resnet18", "width": 64}
_RUN = 60.0  # seconds under which a run is not taken up again: building and loading take a good part of them


def stages() -> dict[int, list[Part]]:
    """By number."""
    return {1: _first(), 2: _table(), 3: _recipes(), 4: _towers()}


def _first() -> list[Part]:
    found = [Part("checks", (name,), 60.0, check) for name, check in checks.CHECKS.items()]
    found += [
        Part("throughput", ("device",), 0.0, lambda place: place.device.type),
        *(
            Part("throughput", ("gradients", name), 40.0, functools.partial(speed.gradients, model=name))
            for name, (config, *_) in throughput.MODELS.items()
            if not config.external
        ),
        Part("throughput", ("coordinator",), 20.0, speed.coordinator),
        Part("throughput", ("worker",), 30.0, lambda place: draws()),
        Part("throughput", ("transport",), 30.0, speed.transport),
    ]
    for name, model in (("small CNN", {"image": "cnn", "width": 32}), ("ResNet-18", _RESNET)):
        for batch in speed.BATCHES:
            measure = functools.partial(speed.memory, model=model, batch=batch)
            found.append(Part("memory", (name, str(batch)), 60.0, measure))
    found += [
        Part("step", ("overhead", name), 60.0, functools.partial(speed.overheads, model=name)) for name in speed.OVERHEADS
    ]
    return found


def _table() -> list[Part]:
    return [
        Part("table1", (f"{method}, epsilon {epsilon}",), _RUN, functools.partial(_cell, "table1", (method,), epsilon))
        for epsilon in EPSILONS
        for method in ("group", "batch")
    ]


def _recipes() -> list[Part]:
    found = [
        Part("recipe", (f"recipe, epsilon {epsilon}",), _RUN, functools.partial(_labelled, "recipe", "recipe", epsilon))
        for epsilon in EPSILONS
    ]
    found += [
        # Making the start takes 300 steps of 256 records at any size of the run.
        Part("recipe", ("procedural start, epsilon 10",), _RUN, functools.partial(training.started, epsilon=10.0), tiny=False),
        Part("recipe", ("pyramid alone, epsilon 10",), _RUN, functools.partial(_labelled, "recipe", "DP-GCL, pyramid", 10.0)),
        Part("recipe", ("scenes, epsilon 8",), _RUN, training.scenes),
    ]
    return found


def _towers() -> list[Part]:
    found = [
        Part("vit", ("exactness",), 60.0, towers.exactness),
        # Beside the models of stage 1, where `dpfed cluster cost` looks for it.
        Part("throughput", ("gradients", towers.MODEL), 90.0, functools.partial(towers.gradients, precision="fp32", size=16)),
    ]
    for size in (16, 64):
        measure = functools.partial(towers.gradients, precision="bf16", size=size)
        found.append(Part("vit", ("gradients", f"bf16, S = {size}"), 90.0, measure))
    found.append(Part("vit", ("overhead",), 120.0, towers.overhead))
    for batch in (256, 1_024):
        found.append(Part("vit", ("memory", str(batch)), 90.0, functools.partial(towers.memory, batch=batch)))
    return found


def _cell(name: str, methods: tuple[str, ...], epsilon: float, place: Place) -> dict[str, Any]:
    return training.cell(place, name, training.variants_of(name, *methods), epsilon)


def _labelled(name: str, label: str, epsilon: float, place: Place) -> dict[str, Any]:
    return training.cell(place, name, training.variants_of(name, "group", label=label), epsilon)
