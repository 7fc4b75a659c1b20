"""Post-processing of public noisy sums: filters of the gradient, averages of the weights, target networks.

Differential privacy is closed under post-processing, so no processor costs epsilon. A processor may read nothing but the
coordinator's releases. A run has a list of processors, in order. Each keeps its own state, which checkpoints store under the
processor's name and no other code reads. To add a processor, write a class in this module and a line in `post_processors`.
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
    """A function of the noisy sums. Each method does nothing unless it is overridden.

    Attributes:
        name: Name under which a checkpoint stores the processor's state, one word.
    """

    name: str

    def gradient(self, step: int, gradient: Tensor) -> Tensor:
        """Returns the gradient ``(P,)`` that the optimizer gets instead of the noisy gradient ``(P,)``."""
        return gradient

    def updated(self, step: int) -> None:
        """Runs after each step, once the model has its new parameters."""

    def averaged(self, weights: Tensor) -> Tensor:
        """Returns the weights ``(P,)`` that are measured and published instead of the current training weights ``(P,)``."""
        return weights

    def state_dict(self) -> dict[str, Tensor]:
        """Returns all state that a resumed run needs."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restores a state that `state_dict` returned."""


class MovingAverage(PostProcessor):
    """An exponential moving average of the weights, which is measured and published in place of the last weights.

    Args:
        model: Model whose trainable parameters are averaged.
        decay: Decay of the average. A warm-up of the decay, min(decay, (1 + step) / (10 + step)), keeps the untrained weights
            from dominating.
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
    """Makes the weights equal to the noisy sums of private moments: each step's sum becomes the weights in that step's slice.

    A slice holds 0 before its step, and the optimizer subtracts the gradient that it gets
    (`dpfed.training.optimizers.SETTING`). So the gradient is the negated sum in the step's slice, and 0 elsewhere.
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
    """Updates the target network of a `BYOL` after each step. The target is a buffer of the model: there is no other state."""

    name = "moving_target"

    def __init__(self, model: BYOL) -> None:
        self._model = model

    def updated(self, step: int) -> None:
        """See `PostProcessor`."""
        self._model.follow()


def post_processors(config: OptimizerConfig, model: nn.Module) -> list[PostProcessor]:
    """Returns the processors that a configuration and a model need, in order.

    Args:
        config: The ``[optimizer]`` section.
        model: Model, on its device, with the weights from which averages start.
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
    """Gives the model the weights that are measured and published; after the ``with`` block, restores the training weights."""
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
    """Returns the states of all processors; each tensor's name is prefixed with its processor's name and a slash."""
    return {f"{processor.name}/{name}": value for processor in processors for name, value in processor.state_dict().items()}


def load_states(processors: Sequence[PostProcessor], states: Mapping[str, Tensor], origin: str) -> None:
    """Restores the states of all processors.

    Args:
        processors: Processors of the run, as its configuration names them.
        states: States of all processors; see `states_of`.
        origin: Source of the states, such as a file, for the message.

    Raises:
        UserError: If the states belong to other processors.
    """
    expected, given = states_of(processors), dict(states)
    if expected.keys() != given.keys() or any(given[name].shape != value.shape for name, value in expected.items()):
        kept, wanted = (sorted({name.partition("/")[0] for name in names}) for names in (given, expected))
        raise UserError(
            f"{origin} does not fit the config: it contains {_listed(kept)}, and the config needs {_listed(wanted)}. Set "
            "optimizer.ema (and the model) as they were when it was written. [optimizer-ema]"
        )
    for processor in processors:
        state = {name: value for name, value in given.items() if name.startswith(f"{processor.name}/")}
        processor.load_state_dict({name.partition("/")[2]: value for name, value in state.items()})


def _listed(names: list[str]) -> str:
    return ", ".join(name.replace("_", " ") for name in names) or "no averages"
