"""The outputs of the mechanism in a step: the stored noisy sum, and the weights and states that the optimizer derives from it.

Each output is called a channel, and is converted back to the sum that it implies. In a sound run all channels follow from the
noisy sum. A channel that depends on the sum without noise reveals the canaries.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from dpfed.models.parameters import TrainableVector
from dpfed.privacy.blocks import Blocks
from dpfed.privacy.ledger import Release
from dpfed.training.coordinator import Coordinator
from dpfed.training.releases import Releases

Leaving = dict[str, Tensor]  # channel -> (P,) float64
SUMS, WEIGHTS = "noisy sums", "weights"


class ReleasesInMemory(Releases):
    """Keeps the last release in memory, in place of the coordinator's files."""

    def __init__(self) -> None:
        super().__init__(Path())
        self._last: Tensor | None = None

    def save(self, release: Release, noisy: Tensor) -> None:
        """Keeps a release in the place of the last one; see `Releases`."""
        self._last = noisy.detach().cpu().double().clone()

    def load(self, step: int, blocks: Blocks, digest: str | None = None) -> Tensor | None:
        """Returns ``None``: the audit never repeats a step."""
        return None

    def latest(self) -> int | None:
        """Returns ``None``: the audit never repeats a step."""
        return None

    def taken(self) -> Tensor:
        """Returns the last release, ``(P,)`` float64."""
        if self._last is None:
            raise AssertionError("the coordinator kept no release of the step")
        return self._last


class Watched:
    """Observes the weights and the optimizer's state after each step.

    Args:
        coordinator: Coordinator of the run.
        model: Model of the run.
        divisor: Divisor of the noisy sums, which turns them into the gradients that the optimizer gets.
    """

    def __init__(self, coordinator: Coordinator, model: nn.Module, divisor: float) -> None:
        self._optimizer, self._vector, self._divisor = coordinator.optimizer, TrainableVector(model), divisor
        self._before: Leaving = {WEIGHTS: self._vector.gather().double()}

    def step(self) -> Leaving:
        """Returns the sum that each channel implies for the step that has just ended, ``(P,)`` float64 by channel.

        The weights imply the sum only under SGD without momentum: their change is divided by the learning rate. An optimizer's
        second moment implies only the absolute values of the sum.
        """
        group = self._optimizer.param_groups[0]
        now = {WEIGHTS: self._vector.gather().double(), **self._states()}
        seen = {}
        for name, value in now.items():
            before = self._before.get(name, torch.zeros_like(value))
            if name == WEIGHTS:
                gradient = (before - value) / (group["lr"] or 1.0)
            elif name == "momentum_buffer":
                gradient = value - group["momentum"] * before
            else:
                decay = group["betas"][name.endswith("_sq")]
                gradient = (value - decay * before) / (1 - decay)
            seen[name] = self._divisor * (gradient.clamp(min=0).sqrt() if name.endswith("_sq") else gradient)
        self._before = now
        return seen

    def _states(self) -> Leaving:
        """Returns the optimizer's state vectors by name, each concatenated over all parameters, ``(P,)`` float64."""
        states = [self._optimizer.state[parameter] for parameter in self._vector.parameters]
        names = [name for name in states[0] if name in ("momentum_buffer", "exp_avg", "exp_avg_sq")]
        return {name: torch.cat([state[name].detach().double().flatten() for state in states]) for name in names}
