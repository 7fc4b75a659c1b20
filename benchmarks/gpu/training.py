"""Trains runs of a paper's table with the paper's settings; a run that is not finished in one call resumes in the next."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.gpu.place import Place, TimeIsUp
from benchmarks.reproduced import figures
from dpfed.config import parse_config
from dpfed.console.terminal import watching
from dpfed.evaluation.measured import Evaluation
from dpfed.progress import Progress
from dpfed.reproduce.comparison import DATA_SETS
from dpfed.reproduce.experiments import experiment
from dpfed.reproduce.outcome import reproduce
from dpfed.reproduce.runs import Request
from dpfed.runs.pretraining import pretrain

_EVERY = 20  # steps between two checkpoints: what a call that is cut short loses at most
_RESERVE = 10.0  # seconds that a call keeps for what comes after the last step
# None changes what a step computes, but for rounding.
_HERE = {"training.checkpoint_every": _EVERY, "training.precision": "bf16", "bounding.microbatch": 2_048}
_TINY = {
    "model.image": "cnn",
    "model.width": 8,
    "model.embedding": 8,
    "model.head_hidden": 16,
    "data.validation": 40,
    "privacy.batch": 32,
    "privacy.steps": 4,
    "training.checkpoint_every": 2,
}


class Until(Progress):
    """A `Progress` that ends a run at a checkpoint if the next one would come too late.

    Args:
        place: Place of the call, with its time limit.
        every: Number of steps between two checkpoints.
        inner: Display that gets all notes, stages and evaluations.
    """

    def __init__(self, place: Place, every: int, inner: Progress) -> None:
        self._place, self._every, self._inner = place, every, inner

    def note(self, text: str) -> None:
        """See `Progress`."""
        self._inner.note(text)

    def on_evaluation(self, figures: list[Evaluation]) -> None:
        """See `Callback`."""
        self._inner.on_evaluation(figures)

    def stage(self, name: str, total: int | None) -> Callable[[int], None]:
        """See `Progress`."""
        tell = self._inner.stage(name, total)
        if total is None or name not in ("private steps", "steps"):
            return tell
        began, first = time.time(), None
        last, longest = began, 0.0

        def advance(done: int) -> None:
            nonlocal first, last, longest
            tell(done)
            first = done if first is None else first
            if done == first or done % self._every or done >= total:
                return
            now = time.time()
            longest, last = max(longest, now - last), now
            if self._place.left < 1.2 * longest + _RESERVE:
                each = (now - began) / (done - first)
                rest = (total - done) * each / 60
                raise TimeIsUp(f"{done:,} of {total:,} steps, {each:.2f} s each: about {rest:.0f} more minutes")

        return advance


def cell(place: Place, method: str = "group", epsilon: float | None = 10.0) -> dict[str, Any]:
    """Trains a method on CIFAR-10 at the paper's settings, and returns its figures beside the paper's.

    Args:
        place: Place of the call.
        method: Value of ``bounding.method``: ``group``, ``batch`` or ``none``.
        epsilon: Epsilon of the guarantee; ``None``: no privacy.

    Raises:
        TimeIsUp: When the rest must wait for the next call.
    """
    more = _HERE | {"data.stores": str(place.work / "stores")} | (_TINY if place.tiny else {})
    source = experiment("table1" if epsilon is not None else "table13")
    wanted = [variant for variant in source.variants if variant.method == method]
    changed = tuple(dataclasses.replace(variant, changes=variant.changes | more) for variant in wanted)
    request = Request(
        dataclasses.replace(source, variants=changed, sweep=None),
        DATA_SETS["cifar10"],
        "gpu",
        (10.0 if epsilon is None else epsilon,),
        None,
        _records(place),
        True,
        place.work / "reproduce",
    )
    with watching() as shown:
        return figures(reproduce(request, Until(place, int(more["training.checkpoint_every"]), shown)))


def in_precision(place: Place, precision: str) -> dict[str, Any]:
    """Trains one ResNet-18 of the same draw in a precision, and returns the curves of its figures and of its noisy gradients.

    Args:
        place: Place of the call.
        precision: ``bf16`` or ``fp32``.

    Raises:
        TimeIsUp: When the rest must wait for the next call.
    """
    steps, every = (4, 2) if place.tiny else (2_000, 100)
    tree = {
        "name": "precision",
        "data": {"source": "parquet", "path": str(_records(place)), "size": 32, "stores": str(place.work / "stores")},
        "views": {"crop_scale": [0.2, 1.0], "flip": 0.5, "jitter": 0.8, "grayscale": 0.2},
        "model": {"image": "cnn", "width": 8} if place.tiny else {"image": "resnet18", "width": 64},
        "bounding": {"group_size": 16},
        "privacy": {"epsilon": 8.0, "batch": 32 if place.tiny else 256, "steps": steps, "seed": 1},
        "training": {"device": place.device.type, "precision": precision, "checkpoint_every": every},
        "evaluation": {"split": "test", "tasks": ["knn"], "every": steps // 2 if place.tiny else 200},
    }
    run = place.work / "precision" / precision
    with watching() as shown:
        finished = pretrain(parse_config(tree), run, Until(place, every, shown), resume=True)
    rows = [json.loads(line) for line in finished.metrics.read_text(encoding="utf-8").splitlines()]
    norms = [[row["step"], row["noisy_gradient_norm"]] for row in rows if row.get("noisy_gradient_norm") is not None]
    results = json.loads(finished.results.read_text(encoding="utf-8"))["evaluations"]
    knn = [[one["step"], round(100 * one["value"], 2)] for one in results if one["name"] == "knn200_accuracy"]
    return {"steps": steps, "knn": knn, "noisy_gradient_norms": norms[:: max(1, len(norms) // 40)]}


def _records(place: Place) -> Path:
    if place.data is None:
        raise FileNotFoundError("the records were not carried: python -m benchmarks.gpu pack --data DIR, or --data DIR here")
    return place.data
