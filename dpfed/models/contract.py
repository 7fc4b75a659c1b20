"""The contract that every model must keep, also a user's own (docs/commands.md), and the messages for models that break it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from dpfed.data.items.item import described
from dpfed.errors import UserError
from dpfed.objectives.classes import LABEL

_CONTRACT = {
    "features": "features(images (n, C, H, W)) -> (n, F)",
    "text_features": "text_features(tokens (n, L)) -> (n, F)",
    "embed_images": "embed_images(images (n, C, H, W)) -> (n, D)",
    "embed_text": "embed_text(tokens (n, L)) -> (n, D)",
}
_TEMPERATURE = "for example self.register_buffer('temperature', torch.tensor(0.1))"


def embeddings_of(model: nn.Module, views: dict[str, Tensor]) -> dict[str, Tensor]:
    """Runs a model on the views of a group, and checks the model's output.

    Args:
        model: Any model.
        views: Views of S records, each with V images and V_t texts of L tokens:
            ``{"image": (S, V, C, H, W)[, "text": (S, V_t, L)]}``. A class label among them is not shown to the model.

    Returns:
        Embeddings ``{"image": (S, V, D)[, "text": (S, V_t, D)]}``, any further tensors ``(S, ..., ...)`` that the model's own
        loss needs, and the centres of a model that has them (`dpfed.models.centres`).

    Raises:
        UserError: If the model's output is not such a dictionary of floating-point tensors. V and V_t are not checked.
    """
    views = {name: view for name, view in views.items() if name != LABEL}
    embeddings = model(views)
    wanted = ", ".join(f"'{name}': ({view.shape[0]}, {view.shape[1]}, D)" for name, view in views.items())
    given = ", ".join(f"'{name}': {tuple(view.shape)}" for name, view in views.items())

    def wrong(result: str) -> UserError:
        return UserError(
            f"{type(model).__name__}.forward got the views {{{given}}} and gave {result}; expected a dictionary of "
            f"floating-point tensors {{{wanted}}}, an embedding for each view. [model-embeddings]"
        )

    if not isinstance(embeddings, dict):
        raise wrong(described(embeddings))
    for name, z in embeddings.items():
        if not isinstance(z, Tensor) or not z.is_floating_point():
            raise wrong(f"{described(z)} as '{name}'")
    if missing := [name for name in views if name not in embeddings]:
        raise wrong(f"no '{missing[0]}', but {list(embeddings)}")
    widths = {embeddings[name].shape[-1] for name in views if embeddings[name].dim()}
    records = len(next(iter(views.values())))
    for z in embeddings.values():
        if z.dim() != 3 or len(z) != records or len(widths) > 1:
            raise wrong("{" + ", ".join(f"'{key}': {tuple(value.shape)}" for key, value in embeddings.items()) + "}")
    if (centres := getattr(model, "centres", None)) is not None:
        return {**embeddings, "centres": centres(records)}
    return embeddings


def temperature_of(model: nn.Module) -> Tensor:
    """Returns a model's temperature, a scalar tensor that divides its cosine similarities.

    Raises:
        UserError: If the model has no attribute ``temperature``, or the attribute is not a scalar tensor.
    """
    temperature = getattr(model, "temperature", None)
    if not isinstance(temperature, Tensor) or temperature.dim() != 0:
        state = "has none" if temperature is None else f"has {described(temperature)}"
        raise UserError(
            f"{type(model).__name__} needs an attribute 'temperature', a tensor without dimensions, but {state}; write "
            f"{_TEMPERATURE}. [model-no-temperature]"
        )
    return temperature


def bias_of(model: nn.Module) -> Tensor | None:
    """Returns a model's bias, a scalar tensor that is added to every logit of a pairwise loss; ``None``: the model has none.

    Raises:
        UserError: If the attribute is not a scalar tensor.
    """
    bias = getattr(model, "bias", None)
    if bias is not None and (not isinstance(bias, Tensor) or bias.dim() != 0):
        raise UserError(
            f"the attribute 'bias' of {type(model).__name__} is added to every logit of a pairwise loss: make it a tensor "
            f"without dimensions, or None. It is {described(bias)}. [model-bias]"
        )
    return bias


def method_of(model: nn.Module, name: str) -> Callable[..., Any]:
    """Returns a method that the contract does not require of every model.

    Args:
        model: Any model.
        name: Name of the method: ``features``, ``text_features``, ``embed_images`` or ``embed_text``.

    Raises:
        UserError: If the model has no such method.
    """
    method = getattr(model, name, None)
    if not callable(method):
        raise UserError(
            f"{type(model).__name__} has no method {_CONTRACT[name]}, without which dpfed cannot continue: add the method to "
            "the class. [model-method]"
        )
    return method
