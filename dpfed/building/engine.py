"""Makes the engine that computes the clipped sums of a run, from the run's configuration."""

from __future__ import annotations

from torch import nn

from dpfed import discovery
from dpfed.bounding.engines import Engine
from dpfed.bounding.engines.by_method import MAKERS, EngineInputs, MakeEngine, of_groups
from dpfed.building.method import contrasted, group_loss, options_of
from dpfed.config import Config
from dpfed.objectives import GroupLoss
from dpfed.privacy.method import FOREIGN_METHODS, Method, engine_of
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.randomness import Randomness


def engine_for(
    model: nn.Module, plan: PrivacyPlan, randomness: Randomness, rank: int, *, config: Config, loss: GroupLoss | None = None
) -> Engine:
    """Makes the engine of a worker.

    Args:
        model: Model, on its device.
        plan: Privacy plan of the run.
        randomness: Secret randomness of the workers.
        rank: Number of the worker, from 0.
        config: Configuration with its defaults resolved and no choice left open.
        loss: Loss of one group; default: the configuration's.

    Returns:
        The engine.
    """
    return maker_of(plan.bounding.method)(
        EngineInputs(
            model=model,
            plan=plan,
            randomness=randomness,
            rank=rank,
            precision=config.training.precision,
            loss=loss or group_loss(config),
            loss_name=config.objective.name,
            loss_options=config.objective.loss_options,
            contrasted=contrasted(config),
            reads_text=config.model.reads_text,
            options=options_of(config),
            engine=config.bounding.engine,
            microbatch=config.bounding.microbatch,
            pass_records=config.bounding.pass_records,
            check_every=config.training.checkpointed(plan.steps),
        )
    )


def maker_of(method: Method) -> MakeEngine:
    """Returns the function that makes the engine of a method."""
    if method.picks_engine:
        return of_groups
    if method.name in MAKERS:
        return MAKERS[method.name]
    if method.name in FOREIGN_METHODS:
        return engine_of(FOREIGN_METHODS[method.name])
    return discovery.part("baselines", "engines").MAKERS[method.name]
