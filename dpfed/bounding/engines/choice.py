"""Which engine computes a model's clipped gradients on this machine: `layerwise` where it fits, and the loop otherwise."""

from __future__ import annotations

import bisect
import copy
import math
from collections.abc import Callable

import torch
from torch import nn

from dpfed.bounding.clipping import Clip
from dpfed.bounding.engines.batch_invariance import DependsOnOthers
from dpfed.bounding.engines.engine import Engine, GroupBatch, Precision
from dpfed.bounding.engines.layerwise import IfUnlike, LayerwiseEngine
from dpfed.bounding.engines.loop import LoopEngine
from dpfed.errors import UserError
from dpfed.models.norm import mixes_records
from dpfed.models.parameters import exact_type
from dpfed.objectives import GroupLoss
from dpfed.objectives.infonce import group_loss

ENGINES: dict[str, type[LoopEngine] | type[LayerwiseEngine]] = {engine.name: engine for engine in (LoopEngine, LayerwiseEngine)}
_DIFFERENCE = 1e-6  # relative, in float64, between engines that compute the same
# A gradient that was put down to another group would not show in a sum of whole gradients.
_NORMALISED = Clip(1.0, math.inf, 1e-3)
_RECORDS = 16  # that engines are compared on, in two groups or more: one alone could not be mistaken for another
_FEW = 8  # groups on which the engine itself is tried
_SHORT = 1_000  # groups of a run that is over before the check pays


def build_engine(
    name: str,
    model: nn.Module,
    precision: Precision,
    loss: GroupLoss,
    group_size: int,
    if_unlike: IfUnlike = "warn",
    records: int | None = None,
    check_every: int | None = None,
) -> Engine:
    """An engine by name.

    Args:
        name: one of `ENGINES`.
        model: see `choose_engine`.
        precision: see `choose_engine`.
        loss: see `choose_engine`.
        group_size: S, expected records in a group.
        if_unlike: see `LayerwiseEngine`, as the next.
        records: see `if_unlike`.
        check_every: see `if_unlike`.
    """
    if name == "layerwise":
        return LayerwiseEngine(model, precision, loss, records, group_size, if_unlike, check_every)
    return LoopEngine(model, precision, loss)


def choose_engine(
    model: nn.Module,
    batch: GroupBatch,
    precision: Precision = "fp32",
    loss: GroupLoss = group_loss,
    groups: float = math.inf,
    told: Callable[[str], None] = lambda text: None,
    records: int | None = None,
) -> str:
    """Names `layerwise` where it fits the model, on a batch of stand-in views (never private ones), and the loop otherwise.

    Args:
        model: on its device.
        batch: groups of the shape that training will see, filled with noise; a few are used.
        precision: of the forward pass.
        loss: of one group.
        groups: that the whole run will pass through the engine; one of few takes the loop, which needs no check.
        told: hears what is taken, and why.
        records: see `LayerwiseEngine`.
    """
    if mixes_records(model):
        return "loop"  # see `refuse_mixing`: nothing else fits
    if groups < _SHORT:
        told("engine: loop; the run is too short for layerwise")
        return "loop"
    refusal = _refusal(model, batch, precision, loss, records)
    if refusal is None:
        told("engine: layerwise")
        return "layerwise"
    why = "too little memory" if isinstance(refusal, torch.OutOfMemoryError) else "layerwise does not fit"
    if isinstance(refusal, UserError):  # its advice is for whoever asked for layerwise
        why = str(refusal).rpartition(": ")[0]
    told(f"engine: loop; {why}")
    return "loop"


def require_fitting(model: nn.Module, batch: GroupBatch, precision: Precision = "fp32", loss: GroupLoss = group_loss) -> None:
    """Refuses `layerwise` where it does not come to the loop's result: it may take records of one group for those of another.

    Where groups affect each other it is not refused: it will take one group at a time, and say so.

    Raises:
        UserError: saying which to use.
    """
    refusal = _refusal(model, batch, precision, loss)
    if isinstance(refusal, UserError) and not isinstance(refusal, DependsOnOthers):
        raise refusal
    if isinstance(refusal, RuntimeError):
        said = str(refusal).partition("\n")[0]
        raise UserError(f"bounding.engine = 'layerwise' fails for this model ({said}): set 'auto' or 'loop'. [engine-fails]")


def _refusal(
    model: nn.Module, batch: GroupBatch, precision: Precision, loss: GroupLoss, records: int | None = None
) -> Exception | None:
    """Compares `layerwise` with the loop on noise, in float64, and asks whether it computes groups alike.

    In float32 two right ways through a deep network differ by parts in a thousand: where the input of a ReLU is about zero,
    they may come out on different sides.

    Args:
        model: see `choose_engine`.
        batch: see `choose_engine`.
        precision: see `choose_engine`.
        loss: see `choose_engine`.
        records: see `LayerwiseEngine`.

    Returns:
        The error that says why it does not fit; ``None``: it does.
    """
    exact, few = _in_float64(model, batch.first(max(2, bisect.bisect_left(batch.offsets, _RECORDS))))
    oracle = LoopEngine(exact, "fp32", loss)
    expected, actual = oracle.zeros(), oracle.zeros()
    oracle.add_clipped(few, _NORMALISED, expected)
    size = round(batch.offsets[-1] / (len(batch.offsets) - 1))
    try:
        build_engine("layerwise", exact, "fp32", loss, size, "go on").add_clipped(few, _NORMALISED, actual)
        if not torch.linalg.vector_norm(actual - expected) <= _DIFFERENCE * torch.linalg.vector_norm(expected):
            raise UserError(
                "bounding.engine = 'layerwise' gives other clipped gradients than 'loop' for this model (compared on noise): "
                "set it to 'auto' or 'loop'. [engine-differs]"
            )
        engine = build_engine("layerwise", model, precision, loss, size, "try", records)
        engine.add_clipped(batch.first(_FEW), _NORMALISED, engine.zeros())
    except (RuntimeError, UserError) as error:  # also an operation without a rule, too little memory of the GPU
        return error
    return None


def _in_float64(model: nn.Module, batch: GroupBatch) -> tuple[nn.Module, GroupBatch]:
    """Copies of a model and of views; as they are where the device has no float64."""
    if exact_type(next(iter(batch.views.values())).device) != torch.float64:
        return model, batch
    views = {name: view.double() if view.is_floating_point() else view for name, view in batch.views.items()}
    return copy.deepcopy(model).double(), GroupBatch(views, batch.offsets, batch.step)
