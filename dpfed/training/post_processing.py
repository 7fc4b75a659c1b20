"""What is done with a noisy sum once it is public: filters of the gradient, averages of the weights, weights that follow.

Differential privacy is closed under post-processing, so nothing here costs epsilon, and nothing here may look at anything but
what the coordinator released. A run has a list of processors, in order. Each keeps its own state: checkpoints carry it under
its name, and nobody else knows what it holds. To add one: a class here, and a line in `post_processors`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from dpfed.errors import UserError
from dpfed.models.byol import BYOL
from dpfed.models.moment_layout import MomentLayout
from dpfed.models.moments import ATTRIBUTE, MomentHeads
from dpfed.models.parameters import TrainableVector
from dpfed.training.options import OptimizerConfig


class PostProcessor:
    """One thing that follows from the noisy sums; each method does nothing unless it is overridden.

    Attributes:
        name: under which a checkpoint keeps the state: a word.
    """

    name: str

    def gradient(self, step: int, gradient: Tensor) -> Tensor:
        """The gradient ``(P,)`` for the optimizer, in place of the noisy one ``(P,)``."""
        return gradient

    def updated(self, step: int) -> None:
        """The model has its new parameters."""

    def averaged(self, weights: Tensor) -> Tensor:
        """The weights ``(P,)`` that are measured and published, in place of those that training continues with ``(P,)``."""
        return weights

    def state_dict(self) -> dict[str, Tensor]:
        """All that a resumed run must have back."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Takes back what `state_dict` gave."""


class MovingAverage(PostProcessor):
    """An exponential moving average of the weights: it is measured and published in place of the last ones.

    Args:
        model: whose trainable parameters are averaged.
        decay: of the average. Its own warm-up keeps it from holding on to the untrained weights.
    """

    name = "moving_average"

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._vector, self._decay = TrainableVector(model), decay
        self._weights = self._vector.gather()

    def updated(self, step: int) -> None:
        """See `PostProcessor`."""
        decay = min(self._decay, (1 + step) / (10 + step))
        self._weights.lerp_(self._vector.gather(), 1 - decay)

    def averaged(self, weights: Tensor) -> Tensor:
        """See `PostProcessor`."""
        return self._weights

    def state_dict(self) -> dict[str, Tensor]:
        """See `PostProcessor`."""
        return {"weights": self._weights}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """See `PostProcessor`."""
        self._weights.copy_(state["weights"])


class SetWeights(PostProcessor):
    """Writes each noisy sum into its place in the weights, where a run is in closed form, and nowhere else.

    The optimizer subtracts what it gets (`dpfed.training.optimizers.SETTING`), and each place holds 0 before its step.
    """

    name = "set_weights"

    def __init__(self, layout: MomentLayout) -> None:
        self._layout = layout

    def gradient(self, step: int, gradient: Tensor) -> Tensor:
        """See `PostProcessor`."""
        placed = torch.zeros_like(gradient)
        placed[self._layout.place(step)] = -gradient[self._layout.place(step)]
        return placed


class MovingTarget(PostProcessor):
    """Moves the target of a `BYOL` after each step. The target is a buffer of the model, so there is no other state."""

    name = "moving_target"

    def __init__(self, model: BYOL) -> None:
        self._model = model

    def updated(self, step: int) -> None:
        """See `PostProcessor`."""
        self._model.follow()


def post_processors(config: OptimizerConfig, model: nn.Module) -> list[PostProcessor]:
    """The processors that a configuration and a model ask for, in order.

    Args:
        config: the ``[optimizer]`` section.
        model: on its device, at the weights from which averages start.
    """
    processors: list[PostProcessor] = []
    if isinstance(heads := getattr(model, ATTRIBUTE, None), MomentHeads):
        processors.append(SetWeights(heads.layout))
    if isinstance(model, BYOL):
        processors.append(MovingTarget(model))
    if config.ema:
        processors.append(MovingAverage(model, config.ema))
    return processors


@contextlib.contextmanager
def averaged_weights(model: nn.Module, processors: Sequence[PostProcessor]) -> Iterator[None]:
    """The model with the weights that are measured and published; afterwards with those that training continues with."""
    vector = TrainableVector(model)
    current = vector.gather()
    assign_averaged_weights(model, processors)
    try:
        yield
    finally:
        vector.assign(current)


def assign_averaged_weights(model: nn.Module, processors: Sequence[PostProcessor]) -> None:
    """Gives the model the weights that are measured and published."""
    vector = TrainableVector(model)
    current = vector.gather()
    weights = current
    for processor in processors:
        weights = processor.averaged(weights)
    if weights is not current:
        vector.assign(weights)


def states_of(processors: Sequence[PostProcessor]) -> dict[str, Tensor]:
    """The state of all, each tensor's name with its processor's in front."""
    return {f"{processor.name}/{name}": value for processor in processors for name, value in processor.state_dict().items()}


def load_states(processors: Sequence[PostProcessor], states: Mapping[str, Tensor], origin: str) -> None:
    """Gives all processors their state back.

    Args:
        processors: of the run, as its configuration asks for them.
        states: see `states_of`.
        origin: where the states are from, for the message.

    Raises:
        UserError: if they are those of other processors.
    """
    expected, given = states_of(processors), dict(states)
    if expected.keys() != given.keys() or any(given[name].shape != value.shape for name, value in expected.items()):
        kept, wanted = (sorted({name.partition("/")[0] for name in names}) for names in (given, expected))
        raise UserError(
            f"{origin} does not fit the config: it keeps {_listed(kept)}, and the config asks for {_listed(wanted)}. Change "
            "optimizer.ema (and the model) back. [optimizer-ema]"
        )
    for processor in processors:
        state = {name: value for name, value in given.items() if name.startswith(f"{processor.name}/")}
        processor.load_state_dict({name.partition("/")[2]: value for name, value in state.items()})


def _listed(names: list[str]) -> str:
    return ", ".join(name.replace("_", " ") for name in names) or "no averages"
