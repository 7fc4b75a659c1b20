"""Chooses the engine for a model's clipped gradients on this machine: `layerwise` if it fits the model, `loop` otherwise."""

from __future__ import annotations

import bisect
import copy
import math
from collections.abc import Callable

import torch
from torch import nn

from dpfed.bounding.clipping import Clip
from dpfed.bounding.engines.batch_invariance import DependsOnOthers, refusal_of_dropout
from dpfed.bounding.engines.engine import Engine, GroupBatch, Precision
from dpfed.bounding.engines.layerwise import IfUnlike, LayerwiseEngine
from dpfed.bounding.engines.loop import LoopEngine
from dpfed.errors import UserError
from dpfed.models.norm import mixes_records
from dpfed.models.parameters import exact_type
from dpfed.objectives import GroupLoss
from dpfed.objectives.infonce import group_loss

ENGINES: dict[str, type[LoopEngine] | type[LayerwiseEngine]] = {engine.name: engine for engine in (LoopEngine, LayerwiseEngine)}
_DIFFERENCE = 1e-6  # largest relative difference, in float64, between engines that agree
# Every gradient is normalised: a sum of unclipped gradients would not reveal that part of one was assigned to another group.
_NORMALISED = Clip(1.0, math.inf, 1e-3)
_RECORDS = 16  # records on which engines are compared, in two groups or more: a single group cannot be mistaken for another
_FEW = 8  # groups on which the engine is tried at its own precision
_SHORT = 1_000  # a run of fewer groups ends before the check pays off


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
    """Builds an engine by name.

    Args:
        name: Name of the engine in `ENGINES`.
        model: Model, on its device.
        precision: Precision of the forward pass.
        loss: Loss of one group.
        group_size: S, the expected number of records in a group.
        if_unlike: Action if groups that share a pass change each other's result, see `LayerwiseEngine`.
        records: Approximate number of records of a pass, see `LayerwiseEngine`; ``None``: the engine's default.
        check_every: Number of steps between checks, see `LayerwiseEngine`; ``None``: only one check, before the first pass.

    Raises:
        ValueError: If there is no engine of this name.
        UserError: If the model has no trainable parameter, or the engine is `layerwise` and a layer mixes records.
    """
    if name == "layerwise":
        return LayerwiseEngine(model, precision, loss, records, group_size, if_unlike, check_every)
    if name != "loop":
        raise ValueError(f"expected an engine named {' or '.join(ENGINES)}, got {name!r}")
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
    """Returns ``layerwise`` if this engine fits the model and the run is long enough, and ``loop`` otherwise.

    Args:
        model: Model, on its device.
        batch: Groups of the shape that training will use, filled with random numbers, on which the engines are compared; only a
            few of the groups are used.
        precision: Precision of the forward pass.
        loss: Loss of one group.
        groups: Number of groups in the whole run. A run of fewer than 1,000 groups uses ``loop``, which needs no check.
        told: Callback that receives the choice, with the reason if the choice is ``loop``. For a model with BatchNorm over a
            group, it is not called, because only ``loop`` fits such a model.
        records: Approximate number of records of a pass, see `LayerwiseEngine`; ``None``: the engine's default.

    Raises:
        torch.OutOfMemoryError: If there is too little memory even for ``loop``.
    """
    if mixes_records(model):
        return "loop"  # no other engine fits, see `refuse_mixing`
    if groups < _SHORT:
        told("engine: loop; the run is too short for layerwise")
        return "loop"
    refusal = _refusal(model, batch, precision, loss, records)
    if refusal is None:
        told("engine: layerwise")
        return "layerwise"
    why = "too little memory" if isinstance(refusal, torch.OutOfMemoryError) else "layerwise does not fit"
    if isinstance(refusal, UserError):  # without its advice, which is for users who configured layerwise
        said, colon, _ = refusal.sentence.rpartition(": ")
        why = said if colon else refusal.sentence.rstrip(".")
    told(f"engine: loop; {why}")
    return "loop"


def require_fitting(model: nn.Module, batch: GroupBatch, precision: Precision = "fp32", loss: GroupLoss = group_loss) -> None:
    """Rejects `layerwise` if its result differs from that of `loop`, for example because it assigns records to wrong groups.

    The two engines are compared on `batch`, groups of the shape that training will use, filled with random numbers.

    `layerwise` is not rejected on a device where groups that share a pass change each other's result, nor for a model with
    dropout. In these cases, `layerwise` takes one group at a time, and warns.

    Raises:
        UserError: If the results differ, or `layerwise` fails, for example for lack of memory; the message names the engines to
            use.
        torch.OutOfMemoryError: If there is too little memory even for ``loop``.
    """
    refusal = _refusal(model, batch, precision, loss)
    if isinstance(refusal, UserError) and not isinstance(refusal, DependsOnOthers):
        raise refusal
    if refusal is not None and not isinstance(refusal, UserError):
        said = str(refusal).partition("\n")[0]
        raise UserError(
            f"bounding.engine = 'layerwise' fails for this model ({said}): set it to 'auto' or 'loop'. [engine-fails]"
        )


def _refusal(
    model: nn.Module, batch: GroupBatch, precision: Precision, loss: GroupLoss, records: int | None = None
) -> Exception | None:
    """Compares `layerwise` with `loop` on noise, in float64, and checks that groups do not change each other's result.

    In float32, two correct computations of a deep network differ by parts in a thousand: if the input of a ReLU is close to
    zero, it may be positive in one computation and negative in the other.

    Args:
        model: Model, on its device.
        batch: Groups of the shape that training will use, filled with noise.
        precision: Precision of the forward pass.
        loss: Loss of one group.
        records: Approximate number of records of a pass, see `LayerwiseEngine`; ``None``: the engine's default.

    Returns:
        The error that explains why `layerwise` does not fit; ``None`` if it fits.
    """
    if (random := refusal_of_dropout(model)) is not None:  # two engines draw other numbers
        return random
    exact, few = _in_float64(model, batch.first(max(2, bisect.bisect_left(batch.offsets, _RECORDS))))
    oracle = LoopEngine(exact, "fp32", loss)
    expected, actual = oracle.zeros(), oracle.zeros()
    try:
        oracle.add_clipped(few, _NORMALISED, expected)
    except torch.OutOfMemoryError:  # `loop` needs this memory, too
        raise
    except RuntimeError as error:  # such as of a user's own model with constants in float32
        return error
    size = round(batch.offsets[-1] / (len(batch.offsets) - 1))
    try:
        build_engine("layerwise", exact, "fp32", loss, size, "go on").add_clipped(few, _NORMALISED, actual)
        if not torch.linalg.vector_norm(actual - expected) <= _DIFFERENCE * torch.linalg.vector_norm(expected):
            raise UserError(
                "bounding.engine = 'layerwise' gives other clipped gradients than 'loop' for this model (compared on "
                "random views): set it to 'auto' or 'loop'. [engine-differs]"
            )
        engine = build_engine("layerwise", model, precision, loss, size, "try", records)
        engine.add_clipped(batch.first(_FEW), _NORMALISED, engine.zeros())
    except Exception as error:  # any: too little GPU memory, or a call of torch whose arguments no rule expects
        return error
    return None


def _in_float64(model: nn.Module, batch: GroupBatch) -> tuple[nn.Module, GroupBatch]:
    """Returns float64 copies of a model and of a batch; returns both unchanged if the device has no float64."""
    if exact_type(next(iter(batch.views.values())).device) != torch.float64:
        return model, batch
    views = {name: view.double() if view.is_floating_point() else view for name, view in batch.views.items()}
    return copy.deepcopy(model).double(), GroupBatch(views, batch.offsets, batch.step)
