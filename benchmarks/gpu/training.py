"""Runs that go on from call to call: cells of the papers' tables at their own settings, and our recipes."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.gpu.place import Place, TimeIsUp
from benchmarks.reproduced import figures
from dpfed.config import load_config
from dpfed.console.terminal import watching
from dpfed.progress import Watcher
from dpfed.reproduce.comparison import Variant
from dpfed.reproduce.datasets import DATA_SETS
from dpfed.reproduce.experiments import experiment
from dpfed.reproduce.outcome import reproduce
from dpfed.reproduce.runs import Request, plan_runs
from dpfed.runs.making import make_start_if_wanted
from dpfed.runs.pretraining import pretrain

_EVERY = 20  # steps between two checkpoints: what a call that is cut short loses at most
_RESERVE = 10.0  # seconds that a call keeps for what comes after the last step
# Neither changes what a step computes, but for the last bits.
_HERE = {"training.checkpoint_every": _EVERY, "bounding.microbatch": 512}
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


class Until:
    """A `Watcher` that ends a run at a checkpoint if the next one would come too late.

    Args:
        place: until when.
        every: steps between two checkpoints.
        inner: what is shown.
    """

    def __init__(self, place: Place, every: int, inner: Watcher) -> None:
        self._place, self._every, self._inner = place, every, inner
        self.note, self.evaluated, self.figures = inner.note, inner.evaluated, inner.figures

    def stage(self, name: str, total: int | None) -> Callable[[int], None]:
        """See `Watcher`."""
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


def cell(place: Place, name: str, variants: tuple[Variant, ...], epsilon: float) -> dict[str, Any]:
    """Some rows of an experiment on CIFAR-10 at the paper's settings.

    Args:
        place: where the runs are kept.
        name: of the experiment.
        variants: of it that are wanted.
        epsilon: the promise.

    Raises:
        TimeIsUp: when the rest must wait for the next call.
    """
    more = _HERE | {"data.stores": str(place.work / "stores")} | (_TINY if place.tiny else {})
    changed = tuple(dataclasses.replace(variant, changes=variant.changes | more) for variant in variants)
    request = Request(
        dataclasses.replace(experiment(name), variants=changed, sweep=None),
        DATA_SETS["cifar10"],
        "gpu",
        (epsilon,),
        None,
        _records(place),
        True,
        place.work / "reproduce",
    )
    with watching() as shown:
        watcher = Until(place, more["training.checkpoint_every"], shown)
        for item in plan_runs(request):  # a start is part of the configuration, so it must be there before the runs are named
            make_start_if_wanted(item.config, watcher, lambda _: None)
        return figures(reproduce(request, watcher))


def variants_of(name: str, *methods: str, label: str | None = None) -> tuple[Variant, ...]:
    """The variants of an experiment with one of these methods, and with this label if one is given."""
    every = experiment(name).variants
    return tuple(one for one in every if one.method in methods and label in (None, one.label))


def shipped(place: Place, name: str, changes: dict[str, Any]) -> dict[str, Any]:
    """What results.json says of a run of a shipped configuration.

    Args:
        place: where the run is kept, under the configuration's own name.
        name: of the configuration.
        changes: by key.

    Raises:
        TimeIsUp: when the rest must wait for the next call.
    """
    own = {"data.path": str(_records(place)), "data.stores": str(place.work / "stores")}
    changes = own | {"training.checkpoint_every": _EVERY} | changes
    config = load_config(name, [f"{key}={value}" for key, value in changes.items()])
    with watching() as shown:
        run = pretrain(config, place.work / "runs" / config.name, Until(place, _EVERY, shown), resume=True)
    return json.loads(run.results.read_text(encoding="utf-8"))


def scenes(place: Place) -> dict[str, Any]:
    """Captioned scenes: the public half in full, then the private half through adapters."""
    small = {"privacy.batch": 8, "privacy.steps": 2, "bounding.group_size": 4} if place.tiny else {}
    public = shipped(place, "adapt/cifar10-public", small | ({"optimizer.warmup": 0} if place.tiny else {}))
    start = f"local-dir:{place.work / 'runs' / 'cifar10-public' / 'model'}"
    return {"public": public, "adapted": shipped(place, "adapt/cifar10", small | {"model.architecture": start})}


def started(place: Place, epsilon: float) -> dict[str, Any]:
    """DP-GCL's cell of Table 1 from a procedural start instead of random weights."""
    variants = variants_of("table1", "group")
    procedural = tuple(dataclasses.replace(one, changes=one.changes | {"model.start": "procedural"}) for one in variants)
    return cell(place, "table1", procedural, epsilon)


def _records(place: Place) -> Path:
    if place.data is None:
        raise FileNotFoundError("the records were not carried: python -m benchmarks.gpu pack --data DIR, or --data DIR here")
    return place.data
