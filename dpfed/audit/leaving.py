"""What leaves the mechanism in a step: the noisy sum that is kept, and all that the optimizer makes of it.

Each is brought back to the gradient that it seems to hold, in the units of the sum. In a sound run all of them follow from the
noisy sum. Where one of them saw the sum without noise, it gives the canaries away.
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
    """Takes what the coordinator would keep on disk."""

    def __init__(self) -> None:
        super().__init__(Path())
        self._last: Tensor | None = None

    def save(self, release: Release, noisy: Tensor) -> None:
        """See `Releases`."""
        self._last = noisy.detach().cpu().double().clone()

    def load(self, step: int, blocks: Blocks, digest: str | None = None) -> Tensor | None:
        """Nothing is ever repeated."""
        return None

    def latest(self) -> int | None:
        """Nothing is ever repeated."""
        return None

    def taken(self) -> Tensor:
        """The last release."""
        if self._last is None:
            raise AssertionError("the coordinator kept no release of the step")
        return self._last


class Watched:
    """Weights and optimizer state, step by step.

    Args:
        coordinator: of the run.
        model: of the run.
        divisor: of the noisy sums.
    """

    def __init__(self, coordinator: Coordinator, model: nn.Module, divisor: float) -> None:
        self._optimizer, self._vector, self._divisor = coordinator.optimizer, TrainableVector(model), divisor
        self._before: Leaving = {WEIGHTS: self._vector.gather().double()}

    def step(self) -> Leaving:
        """What the step that is just over seems to say of the sum, by channel."""
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
        """The optimizer's vectors of P numbers: one for each parameter, laid end to end."""
        states = [self._optimizer.state[parameter] for parameter in self._vector.parameters]
        names = [name for name in states[0] if name in ("momentum_buffer", "exp_avg", "exp_avg_sq")]
        return {name: torch.cat([state[name].detach().double().flatten() for state in states]) for name in names}
