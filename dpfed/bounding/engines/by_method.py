"""Builds the engine of each bounding method; a method's own file holds only its arithmetic and its proof.

Some methods let the configuration choose their engine (`Method.picks_engine`): they use an engine for gradients of groups. Each
other method has one engine, which a function in `MAKERS` builds. The engines of methods that exist only for comparison are in
`dpfed.baselines.engines`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from dpfed.bounding.engines.choice import build_engine
from dpfed.bounding.engines.engine import Engine, Precision
from dpfed.bounding.engines.gradient_cache import BatchEngine
from dpfed.bounding.pair_moments import MomentsEngine
from dpfed.objectives import GroupLoss
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.randomness import Randomness


@dataclass(frozen=True)
class EngineInputs:
    """Inputs from which an engine is built; each engine uses only the inputs that it needs.

    Attributes:
        model: Model, on its device.
        plan: Plan of the private run.
        randomness: Secret randomness of the workers, for methods that release noisy statistics within a step.
        rank: Number of the worker, from 0.
        precision: Precision of the forward pass.
        loss: Loss of one group.
        loss_name: Name of the loss in the configuration, for engines that support certain losses only.
        loss_options: Options of the loss.
        contrasted: Expected number of records that are contrasted with each other.
        reads_text: Whether the model contrasts images with captions.
        options: Checked options of the method.
        engine: Name of the engine in `dpfed.bounding.engines.ENGINES`, for methods with `Method.picks_engine`.
        microbatch: Number of records whose activations are in memory at a time.
        pass_records: Approximate number of records of a pass over several groups; ``None``: the engine's default.
        check_every: Number of steps after which `layerwise` repeats its check of batch invariance; ``None``: never.
    """

    model: nn.Module
    plan: PrivacyPlan
    randomness: Randomness
    rank: int
    precision: Precision
    loss: GroupLoss
    loss_name: str
    loss_options: Any
    contrasted: int
    reads_text: bool
    options: Any
    engine: str
    microbatch: int
    pass_records: int | None = None
    check_every: int | None = None


MakeEngine = Callable[[EngineInputs], Engine]


def of_groups(given: EngineInputs) -> Engine:
    """Builds the configured engine for gradients of groups."""
    return build_engine(
        given.engine,
        given.model,
        given.precision,
        given.loss,
        given.contrasted,
        records=given.pass_records,
        check_every=given.check_every,
    )


def _of_batches(given: EngineInputs) -> Engine:
    return BatchEngine(given.model, given.precision, given.loss, given.microbatch)


def _of_moments(given: EngineInputs) -> Engine:
    return MomentsEngine(given.model, given.plan)


MAKERS: Mapping[str, MakeEngine] = {"batch": _of_batches, "moments": _of_moments}
