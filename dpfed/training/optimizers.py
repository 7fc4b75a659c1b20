"""Optimizers and their learning rates: post-processing of a private gradient, so none of it costs privacy."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dpfed import discovery
from dpfed.errors import UserError
from dpfed.training.options import OptimizerConfig
from dpfed.training.schedules import learning_rate

# Of a run in closed form, whose noisy sums are the weights themselves (`dpfed.training.post_processing.SetWeights`).
SETTING = OptimizerConfig(name="sgd", learning_rate=1.0, momentum=0.0)

MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
MakeSchedule = Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]


@dataclass(frozen=True)
class OwnOptimizer:
    """An optimizer of the user's own, with its own learning rates.

    Attributes:
        make: gives the optimizer of some parameters.
        schedule: gives the scheduler of an optimizer, whose `step` is called after each step; ``None``: the learning rates
            stay.
    """

    make: MakeOptimizer
    schedule: MakeSchedule | None = None


class Update:
    """An optimizer, and how its learning rate goes.

    Args:
        config: of the optimizer, unless it is the user's own.
        parameters: that it updates.
        steps: length of the run.
        own: the user's own.
        manual: the user steps the optimizer: a step leaves the noisy mean in ``.grad`` of the parameters.

    Attributes:
        optimizer: torch's.

    Raises:
        UserError: for an own optimizer that is of other parameters, or none at all.
    """

    def __init__(
        self,
        config: OptimizerConfig,
        parameters: list[nn.Parameter],
        steps: int,
        own: OwnOptimizer | None = None,
        manual: bool = False,
    ) -> None:
        self._config, self._steps = config, steps
        self.optimizer = build_optimizer(config, parameters) if own is None else _made(own, parameters)
        self._scheduler = None if own is None or own.schedule is None else _scheduled(own.schedule, self.optimizer)
        self._has_own_rate, self._manual = own is not None, manual

    def rate(self, step: int) -> float:
        """The learning rate of a step; of an own optimizer, that of its first group of parameters now."""
        return (
            float(self.optimizer.param_groups[0]["lr"])
            if self._has_own_rate
            else learning_rate(self._config, step, self._steps)
        )

    def take_step(self, step: int, parameters: Iterable[Tensor], parts: Iterable[Tensor]) -> float:
        """One step of the optimizer.

        Args:
            step: 0 .. T - 1.
            parameters: those of the model.
            parts: the gradient of each.

        Returns:
            The learning rate.
        """
        rate = self.rate(step)
        if self._manual:
            for parameter, part in zip(parameters, parts, strict=True):
                parameter.grad = part
            return rate
        take_step(self.optimizer, parameters, parts, None if self._has_own_rate else rate)
        self.skip(1)
        return rate

    def skip(self, steps: int) -> None:
        """Moves the learning rates on by some steps, of which nothing else is known: they were taken before, or left out."""
        if self._scheduler is None:
            return
        with warnings.catch_warnings():  # torch warns of a scheduler that moves on before the optimizer does
            warnings.filterwarnings("ignore", message=".*lr_scheduler.step", category=UserWarning)
            for _ in range(steps):
                self._scheduler.step()


def build_optimizer(config: OptimizerConfig, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """The configured optimizer over the trainable parameters.

    Raises:
        UserError: for one of another library that is not there, or does not take these arguments.
    """
    common: dict[str, Any] = {"lr": config.learning_rate, "weight_decay": config.weight_decay}
    match config.name:
        case "sgd":
            return torch.optim.SGD(parameters, momentum=config.momentum, **common)
        case "adam":
            return torch.optim.Adam(parameters, **common)
        case "adamw":
            return torch.optim.AdamW(parameters, **common)
        case "lars":
            from timm.optim import Lars  # a slow import that only this optimizer needs

            return Lars(parameters, momentum=config.momentum, **common)
    given = {
        "lr": config.learning_rate,
        **({"weight_decay": config.weight_decay} if config.weight_decay else {}),
        **config.options,
    }
    kind = discovery.named(config.name, "optimizer.name")
    return _made(OwnOptimizer(lambda own: kind(own, **given)), parameters)


def take_step(
    optimizer: torch.optim.Optimizer, parameters: Iterable[Tensor], parts: Iterable[Tensor], rate: float | None
) -> None:
    """One step of an optimizer.

    Args:
        optimizer: over the parameters.
        parameters: those of the model.
        parts: the gradient of each.
        rate: learning rate; ``None``: as the optimizer has it.
    """
    for group in optimizer.param_groups if rate is not None else ():
        group["lr"] = rate
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.grad = part
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def _made(own: OwnOptimizer, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    try:
        optimizer = own.make(list(parameters))
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"the optimizer cannot be made ({type(error).__name__}: {error}). [optimizer-own]") from error
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise UserError(f"expected a torch.optim.Optimizer, got {type(optimizer).__name__}. [optimizer-own-kind]")
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if held != {id(parameter) for parameter in parameters}:
        raise UserError(
            f"the optimizer holds {len(held)} parameters, and the model trains {len(parameters)} others: give a function "
            "of the parameters, such as lambda parameters: AdamW(parameters, 1e-3). [optimizer-other-parameters]"
        )
    return optimizer


def _scheduled(make: MakeSchedule, optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    try:
        scheduler = make(optimizer)
    except Exception as error:
        raise UserError(f"the schedule cannot be made ({type(error).__name__}: {error}). [optimizer-schedule]") from error
    fits = isinstance(scheduler, torch.optim.lr_scheduler.LRScheduler) and getattr(scheduler, "optimizer", None) is optimizer
    if not fits or isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise UserError(
            f"expected a scheduler of the optimizer whose step() takes no figure, such as lambda optimizer: "
            f"CosineAnnealingLR(optimizer, T_max), got {type(scheduler).__name__}. [optimizer-schedule-kind]"
        )
    return scheduler
