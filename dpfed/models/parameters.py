"""The trainable parameters of a model as one flat vector: what is clipped, noised, sent and hashed."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dpfed.errors import UserError
from dpfed.models.contract import method_of


def exact_type(device: torch.device) -> torch.dtype:
    """What norms and sums are added up in: float32 errs by a part in a thousand over millions. mps has no better."""
    return torch.float32 if device.type == "mps" else torch.float64


class TrainableVector:
    """Names, shapes and order of a model's trainable parameters.

    Raises:
        UserError: if nothing is trainable.
    """

    def __init__(self, model: nn.Module) -> None:
        named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
        if not named:
            raise UserError("the model has no trainable parameter: unfreeze a layer or add adapters.")
        self.names = [name for name, _ in named]
        self.parameters = [parameter for _, parameter in named]
        self.numel = sum(parameter.numel() for parameter in self.parameters)
        self.device = self.parameters[0].device

    def zeros(self) -> Tensor:
        """An empty sum of gradients: a flat ``(P,)`` vector of `exact_type` on the model's device."""
        return torch.zeros(self.numel, dtype=exact_type(self.device), device=self.device)

    def split(self, flat: Tensor) -> list[Tensor]:
        """Views into a flat ``(P,)`` vector, one per parameter, in their shapes."""
        parts = flat.split([parameter.numel() for parameter in self.parameters])
        return [part.view_as(parameter) for part, parameter in zip(parts, self.parameters, strict=True)]

    def gather(self) -> Tensor:
        """A flat copy of the parameters' values."""
        return torch.cat([parameter.detach().reshape(-1).float() for parameter in self.parameters])

    @torch.no_grad()
    def assign(self, flat: Tensor) -> None:
        """Writes a flat vector into the parameters."""
        for parameter, part in zip(self.parameters, self.split(flat), strict=True):
            parameter.copy_(part)


class BroadcastVector(TrainableVector):
    """What changes from step to step, and so goes from the coordinator to the workers: the trainable parameters, and behind
    them the weights that a model moves itself (`dpfed.models.byol`), if it has any.

    The coordinator alone moves those, and sends them: so a worker holds the right ones whichever steps it missed.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        moving = dict(method_of(model, "moving_weights")()) if hasattr(model, "moving_weights") else {}
        self.names += moving.keys()
        self.parameters += moving.values()
        self.numel += sum(weights.numel() for weights in moving.values())
