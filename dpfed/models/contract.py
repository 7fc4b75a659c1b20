"""What a model must offer beside its forward pass, whoever wrote it (docs/library.md)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from dpfed.errors import UserError

_CONTRACT = {
    "features": "features(images (n, 3, H, W)) -> (n, F)",
    "embed_images": "embed_images(images (n, 3, H, W)) -> (n, D)",
    "embed_text": "embed_text(tokens (n, L)) -> (n, D)",
    "move": "move()",
    "moving_weights": "moving_weights() -> (name, tensor) pairs",
}


def temperature_of(model: nn.Module) -> Tensor:
    """What a model's cosine similarities are divided by: a scalar tensor.

    Raises:
        UserError: if the model has no such attribute.
    """
    temperature = getattr(model, "temperature", None)
    if not isinstance(temperature, Tensor) or temperature.dim() != 0:
        found = "has none" if temperature is None else f"has {_described(temperature)}"
        raise UserError(
            f"{type(model).__name__} needs an attribute 'temperature', a tensor without dimensions, and {found}; write, for "
            "example, self.register_buffer('temperature', torch.tensor(0.1))."
        )
    return temperature


def bias_of(model: nn.Module) -> Tensor | None:
    """What is added to every logit of a pairwise loss: a scalar tensor; ``None`` if the model has no such attribute."""
    return getattr(model, "bias", None)


def method_of(model: nn.Module, name: str) -> Callable[..., Any]:
    """A method that not every model needs.

    Args:
        model: any.
        name: one of those that `_CONTRACT` describes.

    Raises:
        UserError: if the model has no such method.
    """
    method = getattr(model, name, None)
    if not callable(method):
        raise UserError(f"{type(model).__name__} has no method {_CONTRACT[name]}, which is needed here: add it.")
    return method


def _described(value: object) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
