"""The coordinator: adds the noise, once, and turns the noisy sum into new parameters."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dpfed.bounding.bounded_sum import BoundedSum
from dpfed.config import OptimizerConfig
from dpfed.errors import UserError
from dpfed.models.parameters import TrainableVector
from dpfed.plan import PrivacyPlan
from dpfed.privacy.ledger import Ledger, Release
from dpfed.randomness import Randomness
from dpfed.training.optimizers import build_optimizer, learning_rate


@dataclass(frozen=True)
class StepSummary:
    """What a step may tell: all of it follows from the noisy sum or the configuration."""

    step: int
    learning_rate: float
    noisy_gradient_norm: float

    @property
    def done(self) -> int:
        """Steps finished."""
        return self.step + 1

    def figures(self) -> dict[str, float]:
        """What metrics.jsonl keeps beside step and epsilon."""
        return {"learning_rate": self.learning_rate, "noisy_gradient_norm": self.noisy_gradient_norm}


class Coordinator:
    """Holds the model, the noise, the optimizer and the ledger.

    Args:
        plan: the noise, the divisor and the number of steps.
        model: whose trainable parameters are updated in place.
        config: optimizer, schedule and moving average.
        randomness: the coordinator's secret randomness.
        ledger: written before each release is used.
    """

    def __init__(
        self, plan: PrivacyPlan, model: nn.Module, config: OptimizerConfig, randomness: Randomness, ledger: Ledger
    ) -> None:
        self._plan, self._config, self._randomness, self._ledger = plan, config, randomness, ledger
        self._vector = TrainableVector(model)
        self.optimizer = build_optimizer(config, self._vector.parameters)
        self.average: Tensor | None = self._vector.gather() if config.ema else None

    def apply(self, step: int, total: BoundedSum) -> StepSummary:
        """One step: noise once, charge, divide by the public K, update.

        Args:
            step: 0 .. T - 1.
            total: the sum over all K groups; its values are overwritten with the noisy sum.

        Returns:
            Public figures of the step.

        Raises:
            UserError: if the sum is not what the plan describes, or the budget is spent.
        """
        noisy = self._release(step, total)
        rate = learning_rate(self._config, step, self._plan.steps)
        gradient = noisy.div_(self._plan.groups)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        for parameter, part in zip(self._vector.parameters, self._vector.split(gradient), strict=True):
            parameter.grad = part
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self._check_parameters(step)
        if self.average is not None:
            # The average's own warm-up: a long memory must not hold on to the untrained weights.
            decay = min(self._config.ema, (1 + step) / (10 + step))
            self.average.lerp_(self._vector.gather(), 1 - decay)
        return StepSummary(step, rate, gradient.norm().item())

    def _release(self, step: int, total: BoundedSum) -> Tensor:
        """Adds the noise and pays; a step whose very release was paid for before is repeated for free.

        The noise is a pseudo-random function of the step and of the clean sum itself. The same sum, as in an exact replay, gets
        the same noise; a sum that differs in its last bit gets independent noise, for with the same noise the two releases
        could be subtracted from each other.
        """
        plan = self._plan
        if total.sensitivity > plan.sensitivity or total.groups != plan.groups or total.values.numel() != self._vector.numel:
            raise UserError(
                f"step {step}: expected a sum over {plan.groups} groups and {self._vector.numel} parameters with sensitivity "
                f"{plan.sensitivity:g}, got {total.groups}, {total.values.numel()} and {total.sensitivity:g}."
            )
        if not torch.isfinite(total.values).all():
            raise UserError(f"step {step}: an owner sent a sum that is not finite; it was not used.")
        noisy = total.values
        self._randomness.add_normal_(noisy, plan.noise_std, "noise", step, context=_digest(noisy))
        release = Release(step, _digest(noisy))
        if self._ledger.holds(release):
            self._ledger.note_replay(release)
        else:
            self._ledger.charge(release)
        return noisy

    def _check_parameters(self, step: int) -> None:
        # A function of the noisy sum only, so stopping here tells nothing more.
        if not all(torch.isfinite(parameter).all() for parameter in self._vector.parameters):
            raise UserError(
                f"step {step}: the parameters are no longer finite. Lower optimizer.learning_rate "
                f"(now {self._config.learning_rate:g}) or use a warm-up."
            )


def _digest(noisy: Tensor) -> str:
    return hashlib.blake2b(noisy.detach().cpu().numpy().data, digest_size=16).hexdigest()
