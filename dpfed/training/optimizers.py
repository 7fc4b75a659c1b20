"""Makes optimizers and their learning rates. Both are post-processing of a noisy gradient, so they cost no privacy."""

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

# The optimizer of a run of private moments, whose noisy sums are the weights themselves (`post_processing.SetWeights`).
SETTING = OptimizerConfig(name="sgd", learning_rate=1.0, momentum=0.0)

MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
MakeSchedule = Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]


@dataclass(frozen=True)
class OwnOptimizer:
    """A user's own optimizer, with its own learning rates.

    Attributes:
        make: Function that returns the optimizer of a list of parameters.
        schedule: Function that returns the scheduler of an optimizer; its `step` is called after each step. ``None``: the
            learning rates stay constant.
    """

    make: MakeOptimizer
    schedule: MakeSchedule | None = None


class Update:
    """An optimizer with its learning-rate schedule.

    Args:
        config: Configuration of the optimizer; ignored if `own_optimizer` is given.
        parameters: Parameters that the optimizer updates.
        steps: T, number of steps of the run.
        own_optimizer: The user's own optimizer.
        manual: Whether the user steps the optimizer: then a step only leaves the noisy mean gradient in ``.grad`` of the
            parameters.

    Attributes:
        optimizer: The torch optimizer.
        has_own_rate: Whether the learning rates are those of a user's own optimizer, and not the configuration's.

    Raises:
        UserError: If `own_optimizer.make`, or the optimizer of another library that `config` names, raises an error or does not
            return a torch optimizer of these parameters; or if `own_optimizer.schedule` raises an error or does not return a
            scheduler of this optimizer whose ``step()`` takes no metric.
    """

    def __init__(
        self,
        config: OptimizerConfig,
        parameters: list[nn.Parameter],
        steps: int,
        own_optimizer: OwnOptimizer | None = None,
        manual: bool = False,
    ) -> None:
        self._config, self._steps = config, steps
        self.optimizer = build_optimizer(config, parameters) if own_optimizer is None else _made(own_optimizer, parameters)
        self._scheduler = (
            None
            if own_optimizer is None or own_optimizer.schedule is None
            else _scheduled(own_optimizer.schedule, self.optimizer)
        )
        self.has_own_rate, self._manual = own_optimizer is not None, manual

    def rate(self, step: int) -> float:
        """Returns the learning rate of a step; for a user's own optimizer, the current rate of its first parameter group."""
        return (
            float(self.optimizer.param_groups[0]["lr"]) if self.has_own_rate else learning_rate(self._config, step, self._steps)
        )

    def take_step(self, step: int, parameters: Iterable[Tensor], parts: Iterable[Tensor]) -> float:
        """Takes one step of the optimizer; with `manual`, only sets the gradients.

        Args:
            step: Step, 0 .. T - 1.
            parameters: Trainable parameters of the model.
            parts: Gradient of each parameter.

        Returns:
            The learning rate.
        """
        rate = self.rate(step)
        if self._manual:
            for parameter, part in zip(parameters, parts, strict=True):
                parameter.grad = part
            return rate
        take_step(self.optimizer, parameters, parts, None if self.has_own_rate else rate)
        self.skip(1)
        return rate

    def skip(self, steps: int) -> None:
        """Advances the user's own scheduler, if there is one, by a number of steps."""
        if self._scheduler is None:
            return
        with warnings.catch_warnings():  # torch warns if a scheduler steps before its optimizer
            warnings.filterwarnings("ignore", message=".*lr_scheduler.step", category=UserWarning)
            for _ in range(steps):
                self._scheduler.step()


def build_optimizer(config: OptimizerConfig, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Builds the configured optimizer over the trainable parameters.

    Raises:
        UserError: If an optimizer of another library cannot be imported, rejects its arguments, or is not a torch optimizer.
    """
    common: dict[str, Any] = {"lr": config.learning_rate, "weight_decay": config.weight_decay}
    fused = all(parameter.is_cuda for parameter in parameters) or None  # one launch; on a CPU, torch's default
    match config.name:
        case "sgd":
            return torch.optim.SGD(parameters, momentum=config.momentum, fused=fused, **common)
        case "adam":
            return torch.optim.Adam(parameters, fused=fused, **common)
        case "adamw":
            return torch.optim.AdamW(parameters, fused=fused, **common)
        case "lars":
            from timm.optim import Lars  # a slow import that only this optimizer needs

            return Lars(parameters, momentum=config.momentum, **common)
    given = {
        "lr": config.learning_rate,
        **({"weight_decay": config.weight_decay} if config.weight_decay else {}),
        **config.options,
    }
    kind = discovery.named(config.name, "optimizer.name")
    return _made(OwnOptimizer(lambda trained: kind(trained, **given)), parameters)


def take_step(
    optimizer: torch.optim.Optimizer, parameters: Iterable[Tensor], parts: Iterable[Tensor], rate: float | None
) -> None:
    """Sets the gradients, takes one step of an optimizer, and clears the gradients.

    Args:
        optimizer: Optimizer over the parameters.
        parameters: Trainable parameters of the model.
        parts: Gradient of each parameter.
        rate: Learning rate; ``None``: the rates that the optimizer already has.
    """
    for group in optimizer.param_groups if rate is not None else ():
        group["lr"] = rate
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.grad = part
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def _made(own_optimizer: OwnOptimizer, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    try:
        optimizer = own_optimizer.make(list(parameters))
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"the optimizer cannot be made ({type(error).__name__}: {error}). [optimizer-own]") from error
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise UserError(
            f"expected a torch.optim.Optimizer, but the function that makes the optimizer returned {type(optimizer).__name__}. "
            "[optimizer-own-kind]"
        )
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if held != {id(parameter) for parameter in parameters}:
        raise UserError(
            f"the {len(held)} parameters of the optimizer are not the {len(parameters)} that the model trains: give a function "
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
        of_other = isinstance(scheduler, torch.optim.lr_scheduler.LRScheduler) and not fits
        returned = f"{type(scheduler).__name__}{' of another optimizer' if of_other else ''}"
        raise UserError(
            "expected a function that returns a scheduler of the optimizer that it was given, such as lambda optimizer: "
            "CosineAnnealingLR(optimizer, T_max). The scheduler's step() must take no metric. "
            f"The function returned {returned}. [optimizer-schedule-kind]"
        )
    return scheduler
