"""Which engine is the fastest for a model, on this machine."""

from __future__ import annotations

import contextlib
import copy
import math
import time
from collections.abc import Callable, Collection

import torch
from torch import nn

from dpfed.bounding.engines.deadline import Deadline, TooSlow
from dpfed.bounding.engines.engine import Engine, GroupBatch, Precision
from dpfed.bounding.engines.layerwise import IfUnlike, LayerwiseEngine
from dpfed.bounding.engines.loop import LoopEngine
from dpfed.bounding.engines.same_bits import DependsOnOthers
from dpfed.errors import UserError
from dpfed.models.norm import mixes_records
from dpfed.models.parameters import exact_type
from dpfed.objectives import GroupLoss
from dpfed.objectives.infonce import group_loss

ENGINES: dict[str, type[LoopEngine] | type[LayerwiseEngine]] = {engine.name: engine for engine in (LoopEngine, LayerwiseEngine)}
_SHARE = 0.02  # of a run that its trials may take
_LONGEST = 30.0  # seconds that one engine's trial may take: a large vision transformer on two cores takes 20
_ROUNDS = 3
_DIFFERENCE = 1e-6  # relative, in float64, between engines that compute the same
_FEW = 8  # groups on which engines are compared: one group alone could not be mistaken for another
_SLOW = 1.0  # seconds for the loop's first pass, from where on it is not repeated


def build_engine(
    name: str,
    model: nn.Module,
    precision: Precision,
    loss: GroupLoss,
    group_size: int,
    if_unlike: IfUnlike = "warn",
    records: int | None = None,
) -> Engine:
    """An engine by name.

    Args:
        name: one of `ENGINES`.
        model: see `fastest_engine`.
        precision: see `fastest_engine`.
        loss: see `fastest_engine`.
        group_size: S, expected records in a group.
        if_unlike: see `LayerwiseEngine`, as the next.
        records: see `if_unlike`.
    """
    if name == "layerwise":
        return LayerwiseEngine(model, precision, loss, records, group_size, if_unlike)
    return LoopEngine(model, precision, loss)


def fastest_engine(
    model: nn.Module,
    batch: GroupBatch,
    precision: Precision = "fp32",
    loss: GroupLoss = group_loss,
    groups: float = math.inf,
    told: Callable[[str], None] = lambda text: None,
    records: int | None = None,
) -> str:
    """Times each engine that fits the model on a batch of stand-in views (never private ones) and names the fastest.

    All trials together take about a fiftieth of the run at most, and each of them half a minute at most. A run that is too
    short for a trial takes the loop.

    Args:
        model: on its device.
        batch: groups of the shape that training will see, filled with noise; of a slow model only a few of them are used.
        precision: of the forward pass.
        loss: of one group.
        groups: that the whole run will pass through the engine.
        told: hears what each engine took.
        records: see `LayerwiseEngine`.
    """
    if mixes_records(model):
        return "loop"  # see `refuse_mixing`: nothing else fits
    lanes = torch.get_num_threads()
    if _SHARE * groups < 3 * lanes + 2 * _FEW:  # what the loop itself passes here
        told("engine: loop; the run is too short to try others")
        return "loop"
    loop = _Candidate(LoopEngine(model, precision, loss))
    loop.time(batch.first(lanes))  # the first pass also warms up
    if loop.spent < _SLOW:
        loop.time(batch.first(2 * lanes))
    names = [name for name in ENGINES if name != "loop"]
    allowed = min(_LONGEST, _SHARE * groups * loop.rate / (1 + len(names)))
    # Of a slow model fewer, with which an engine like the loop is done in half of its time; two for each lane's pass.
    few = batch.first(min(_FEW, max(2 * lanes, int(allowed / (2 * loop.rate)))))
    candidates, refused = {"loop": loop}, []
    for name, fit in _trials(model, few, precision, loss, names, allowed, records).items():
        if isinstance(fit, _Candidate):
            candidates[name] = fit
        else:
            refused.append(f"{name} {fit}")
    long = batch.first(max(2 * lanes, int(allowed / (_ROUNDS * loop.rate))))
    for part in (few, *[long] * _ROUNDS):
        for candidate in candidates.values():  # in turns, so that a busy moment of the machine meets all
            if candidate.spent + candidate.rate * len(part.sizes) <= allowed:
                candidate.time(part)
    best = min(candidates, key=lambda name: candidates[name].rate)
    others = [f"{name} {candidate}" for name, candidate in candidates.items() if name != best]
    told(f"engine: {best}, {candidates[best]} a group ({', '.join(others + refused) or 'no other fits'})")
    return best


def require_fitting(
    name: str, model: nn.Module, batch: GroupBatch, precision: Precision = "fp32", loss: GroupLoss = group_loss
) -> None:
    """Refuses an engine that does not come to the loop's result: it may take records of one group for those of another.

    Raises:
        UserError: saying which to use.
    """
    if name not in fitting_engines(model, batch.first(_FEW), precision, loss, (name,)):
        raise UserError(
            f"bounding.engine = '{name}' gives other clipped gradients than 'loop' for this model (compared on noise): set it "
            "to 'auto' or 'loop'."
        )


def fitting_engines(
    model: nn.Module,
    batch: GroupBatch,
    precision: Precision = "fp32",
    loss: GroupLoss = group_loss,
    names: Collection[str] = tuple(ENGINES),
) -> dict[str, Engine]:
    """The loop, and the engines that can compute a model's clipped gradients and on noise come to the loop's result.

    Args:
        model: see `fastest_engine`.
        batch: a few groups are enough.
        precision: see `fastest_engine`.
        loss: see `fastest_engine`.
        names: of the engines to try.
    """
    engines: dict[str, Engine] = {"loop": LoopEngine(model, precision, loss)}
    if mixes_records(model):  # the others pass records of several groups at once
        return engines
    trials = _trials(model, batch, precision, loss, names)
    return engines | {name: trial.engine for name, trial in trials.items() if isinstance(trial, _Candidate)}


class _Candidate:
    """An engine that fits.

    Attributes:
        engine: the engine.
        rate: seconds for a group, at most; infinitely many before it is timed, or if the GPU's memory is too small.
        spent: seconds that it has taken.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine, self.rate, self.spent = engine, math.inf, 0.0

    def time(self, batch: GroupBatch) -> None:
        """Passes a batch."""
        seconds = _seconds(self.engine, batch)
        self.rate = min(self.rate, seconds / len(batch.sizes)) if math.isfinite(seconds) else seconds
        self.spent += seconds

    def __str__(self) -> str:
        return f"{1e3 * self.rate:.3g} ms" if math.isfinite(self.rate) else "too little memory"


def _trials(
    model: nn.Module,
    batch: GroupBatch,
    precision: Precision,
    loss: GroupLoss,
    names: Collection[str],
    allowed: float | None = None,
    records: int | None = None,
) -> dict[str, _Candidate | str]:
    """Engines besides the loop that were compared with it on noise, in float64, and that compute groups alike.

    In float32 two right ways through a deep network differ by parts in a thousand: where the input of a ReLU is about zero,
    they may come out on different sides.

    Args:
        model: see `fastest_engine`.
        batch: see `fitting_engines`.
        precision: see `fastest_engine`.
        loss: see `fastest_engine`.
        names: of the engines to try.
        allowed: seconds for each; ``None``: as long as it takes.
        records: see `LayerwiseEngine`.

    Returns:
        For each name the engine, or why it is none for this model and this run.
    """
    exact, few = _in_float64(model, batch.first(max(2, len(batch.sizes) // 2)))
    oracle = LoopEngine(exact, "fp32", loss)
    norms = oracle.add_clipped(few, 1.0, oracle.zeros())
    # Low enough to clip: a gradient that was put down to another group would not show in a sum of whole gradients.
    clip_norm = norms.median().item() / 2 if len(norms) else 1.0
    expected = oracle.zeros()
    oracle.add_clipped(few, clip_norm, expected)
    size = round(batch.starts[-1] / (len(batch.starts) - 1))
    found: dict[str, _Candidate | str] = {}
    for name in names:
        if name == "loop":
            continue
        try:
            into = oracle.zeros()
            with contextlib.nullcontext() if allowed is None else Deadline(allowed):
                build_engine(name, exact, "fp32", loss, size, "go on").add_clipped(few, clip_norm, into)
                engine = build_engine(name, model, precision, loss, size, "try", records)
                engine.add_clipped(batch, clip_norm, engine.zeros())
        except TooSlow:
            found[name] = f"stopped after {allowed:.2g} s"
            continue
        except DependsOnOthers:
            found[name] = "groups affect each other"
            continue
        except (RuntimeError, UserError):  # an operation without a rule, too little memory of the GPU
            found[name] = "does not fit"
            continue
        if torch.linalg.vector_norm(into - expected) <= _DIFFERENCE * torch.linalg.vector_norm(expected):
            found[name] = candidate = _Candidate(engine)
            if next(iter(batch.views.values())).device.type != "cpu":
                candidate.time(batch)  # under no deadline, a pass is recorded
                candidate.spent = 0.0
            candidate.time(batch)  # what it did once, before its first pass, does not count
        else:
            found[name] = "does not fit"
    return found


def _in_float64(model: nn.Module, batch: GroupBatch) -> tuple[nn.Module, GroupBatch]:
    """Copies of a model and of views; as they are where the device has no float64."""
    if exact_type(next(iter(batch.views.values())).device) != torch.float64:
        return model, batch
    views = {name: view.double() if view.is_floating_point() else view for name, view in batch.views.items()}
    return copy.deepcopy(model).double(), GroupBatch(views, batch.starts, batch.step)


def _seconds(engine: Engine, batch: GroupBatch) -> float:
    """Of one pass; infinitely many for an engine that keeps more at a time than the GPU's memory holds."""
    into = engine.zeros()
    started = time.perf_counter()
    try:
        engine.add_clipped(batch, 1.0, into)
    except torch.OutOfMemoryError:
        if engine.name == "loop":  # nothing keeps less
            raise
        return math.inf
    into.sum().item()  # waits for the device
    return time.perf_counter() - started
