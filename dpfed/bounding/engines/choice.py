"""Which engine is the fastest for a model, on this machine."""

from __future__ import annotations

import math
import time
from collections.abc import Collection

import torch
from torch import nn

from dpfed.bounding.engines.engine import Engine, GroupBatch, Precision
from dpfed.bounding.engines.layerwise import LayerwiseEngine
from dpfed.bounding.engines.loop import LoopEngine
from dpfed.bounding.engines.vmap import VmapEngine
from dpfed.errors import UserError
from dpfed.models.norm import mixes_records
from dpfed.objectives import GroupLoss
from dpfed.objectives.infonce import group_loss

ENGINES: dict[str, type[LoopEngine] | type[VmapEngine] | type[LayerwiseEngine]] = {
    engine.name: engine for engine in (LoopEngine, VmapEngine, LayerwiseEngine)
}
_DIFFERENCE = 1e-3  # relative, between engines that compute the same
_FEW = 8  # groups on which engines are compared: one group alone could not be mistaken for another
_SLOW = 1.0  # seconds for a few groups, from where on engines are compared on these few only


def build_engine(name: str, model: nn.Module, precision: Precision, loss: GroupLoss, group_size: int) -> Engine:
    """An engine by name.

    Args:
        name: one of `ENGINES`.
        model: see `fastest_engine`.
        precision: see `fastest_engine`.
        loss: see `fastest_engine`.
        group_size: S, expected records in a group.
    """
    if name == "layerwise":
        return LayerwiseEngine(model, precision, loss, group_size=group_size)
    return ENGINES[name](model, precision, loss)


def fastest_engine(model: nn.Module, batch: GroupBatch, precision: Precision = "fp32", loss: GroupLoss = group_loss) -> str:
    """Times each engine that fits the model on a batch of stand-in views (never private ones) and names the fastest.

    Args:
        model: on its device.
        batch: groups of the shape that training will see, filled with noise; of a slow model only a few of them are used.
        precision: of the forward pass.
        loss: of one group.
    """
    if precision != "fp32":
        return "loop"  # see `require_fp32`
    few = batch.first(2 * torch.get_num_threads())
    names = set(ENGINES)
    if not mixes_records(model) and VmapEngine(model, precision, loss).chunk == 1:
        names.remove("vmap")  # a large model: nothing is left to vectorise over
    engines = fitting_engines(model, batch.first(_FEW), precision, loss, names)
    slow = _seconds(engines["loop"], few) > _SLOW
    best = dict.fromkeys(engines, math.inf)
    for _ in range(1 if slow else 3):
        for name, engine in engines.items():  # in turns, so that a busy moment of the machine meets all
            best[name] = min(best[name], _seconds(engine, few if slow else batch))
    return min(best, key=best.__getitem__)


def require_fitting(
    name: str, model: nn.Module, batch: GroupBatch, precision: Precision = "fp32", loss: GroupLoss = group_loss
) -> None:
    """Refuses an engine that does not come to the loop's result: it may take records of one group for those of another.

    Raises:
        UserError: saying which to use.
    """
    few = batch.first(_FEW)
    if name not in fitting_engines(model, few, precision, loss, (name,)):
        raise UserError(
            f"bounding.engine = '{name}' does not come to this model's clipped gradients, by comparison on noise: set it to "
            "'auto' or 'loop'."
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
    if mixes_records(model) or precision != "fp32":  # the others pass records of several groups at once
        return engines
    norms = engines["loop"].add_clipped(batch, 1.0, engines["loop"].zeros())
    # Low enough to clip: a gradient that was put down to another group would not show in a sum of whole gradients.
    clip_norm = norms.median().item() / 2 if len(norms) else 1.0
    expected = engines["loop"].zeros()
    engines["loop"].add_clipped(batch, clip_norm, expected)
    for name in ENGINES:
        if name == "loop" or name not in names:
            continue
        engine = build_engine(name, model, precision, loss, round(batch.starts[-1] / (len(batch.starts) - 1)))
        into = engine.zeros()
        try:
            engine.add_clipped(batch, clip_norm, into)
        except (RuntimeError, UserError):  # no rule for one of the model's operations
            continue
        if torch.linalg.vector_norm(into - expected) <= _DIFFERENCE * torch.linalg.vector_norm(expected):
            engines[name] = engine
    return engines


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
