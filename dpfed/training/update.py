"""From a noisy sum to new parameters, for all of the numbers or for a slice of them.

A slice takes part in the same arithmetic, number by number, as the whole: so what comes out has the same bits, whoever holds
which numbers (`tests/training/test_update_of_slices.py`). That holds for what looks at one number at a time: SGD, Adam, AdamW,
LARS without weight decay, and averages of the weights. LARS with it (which needs norms of layers), and weights that a model
moves itself, work on the whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from dpfed.config import OptimizerConfig
from dpfed.privacy.plan import PrivacyPlan
from dpfed.training.optimizers import build_optimizer, by_number, learning_rate
from dpfed.training.post_processing import MovingAverage, PostProcessor
from dpfed.training.slices import Slice, SlicedVector, can_be_sliced


def take_step(optimizer: torch.optim.Optimizer, parameters: Iterable[Tensor], parts: Iterable[Tensor], rate: float) -> None:
    """One step of an optimizer.

    Args:
        optimizer: over the parameters.
        parameters: or pieces of them.
        parts: the gradient of each.
        rate: learning rate.
    """
    for group in optimizer.param_groups:
        group["lr"] = rate
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.grad = part
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def squares(gradient: Tensor, length: int) -> list[float]:
    """Of each block of a gradient, the sum of squares: added up block by block, a norm does not depend on who held which."""
    return [block.double().square().sum().item() for block in gradient.split(length)] if gradient.numel() else []


def norm_of(sums: Iterable[float]) -> float:
    """The L2 norm of a gradient, from `squares` of all its blocks."""
    return math.sqrt(math.fsum(sums))


def works_on_slices(config: OptimizerConfig, model: nn.Module, processors: Sequence[PostProcessor]) -> bool:
    """Whether all that is done with a noisy gradient looks at one number at a time."""
    return by_number(config) and all(processor.by_number for processor in processors) and can_be_sliced(model)


class SliceUpdate:
    """Updates a slice of a model's parameters, in place, and keeps the optimizer's state of it.

    Args:
        plan: the divisor.
        model: the same on all processes.
        config: of the optimizer.
        own: which slice.

    Attributes:
        vector: the slice of the parameters.
        optimizer: torch's, over the pieces; ``None``: there are none.
        average: of the weights of the slice, where the configuration wants one.
    """

    def __init__(self, plan: PrivacyPlan, model: nn.Module, config: OptimizerConfig, own: Slice) -> None:
        self._plan, self._config, self._own = plan, config, own
        self.vector = SlicedVector(model, own.place)
        self.optimizer = build_optimizer(config, self.vector.parameters) if self.vector.parameters else None
        self.average = MovingAverage(model, config.ema, self.vector) if config.ema else None

    def take(self, step: int, noisy: Tensor, threshold: float | None) -> list[float]:
        """One step.

        Args:
            step: 0 .. T - 1.
            noisy: of the slice, statistics included; overwritten.
            threshold: see `Coordinator.threshold`.

        Returns:
            `squares` of the gradient.
        """
        gradient = noisy[: self.vector.numel].div_(self._plan.divisor)
        found = squares(gradient, self._own.blocks.length or self._own.blocks.size)
        if threshold is not None and self._plan.clipping == "adaptive":
            gradient = gradient * (threshold / self._plan.clip_norm)  # as `dpfed.training.curve` does
        if self.optimizer is not None:
            rate = learning_rate(self._config, step, self._plan.steps)
            take_step(self.optimizer, self.vector.parameters, self.vector.split(gradient), rate)
        if self.average is not None:
            self.average.updated(step)
        return found

    def statistics(self, noisy: Tensor) -> Tensor:
        """The statistics behind the gradient ``(m,)``, of which those in other slices are zero."""
        whole = torch.zeros(self._plan.statistics_count, device=noisy.device)
        held = noisy[self.vector.numel :]
        if len(held):
            first = self._own.place.stop - len(held) - (self._own.blocks.size - len(whole))
            whole[first : first + len(held)] = held
        return whole

    @property
    def finite(self) -> bool:
        """Whether all parameters of the slice are."""
        return all(bool(torch.isfinite(piece).all()) for piece in self.vector.parameters)
