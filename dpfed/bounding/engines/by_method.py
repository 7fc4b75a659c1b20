"""Which engine computes the sum of each method of bounding, and how it is made: a method's own file is arithmetic and proof.

A method that lets the configuration choose (`Method.picks_engine`) has one of those for gradients of groups. The others stand
in a table; methods for comparison have theirs in their own room (`dpfed.baselines.engines`).
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
    """What an engine is made from; each engine takes what it needs.

    Attributes:
        model: on its device.
        plan: what is promised.
        randomness: the workers' secret, for methods that release noisy statistics on the way (`GroupBatch.step` says the step).
        rank: the worker's number.
        precision: of the forward pass.
        loss: of one group.
        loss_name: one of `dpfed.objectives.OBJECTIVES`, for engines that are made for certain losses.
        loss_options: of that loss.
        contrasted: records that are contrasted with each other, expected.
        reads_text: whether the model contrasts images with captions.
        options: the method's own, checked.
        engine: one of `dpfed.bounding.engines.ENGINES`, for methods that have several.
        microbatch: records whose activations are in memory at a time.
        pass_records: of a pass over several groups; ``None``: as many as the engine takes by itself.
        check_every: steps after which `layerwise` compares groups with themselves again; ``None``: never.
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
    """The chosen one for gradients of groups."""
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
