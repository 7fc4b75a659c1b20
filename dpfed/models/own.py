"""Models around a user's own encoders: any module from images to features, and any module from tokens to features.

A first forward pass finds the number of features of an encoder (`finish_model`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from dpfed.data.items.item import described
from dpfed.errors import UserError
from dpfed.models.contrastive import SimCLRModel, TwoTowerModel


class SimCLR(SimCLRModel):
    """An image encoder with a projection head, through which the loss sees the features (Chen et al. 2020).

    Args:
        encoder: Any module from images ``(n, C, H, W)`` to features ``(n, F)``.
        embedding: D, dimensions of the space in which views are contrasted.
        hidden: Width of the head's hidden layer.
        head: Projection head from features to ``(n, D)``; default: two linear layers with a ReLU between them.
        temperature: Temperature, which divides cosine similarities in losses that read the model's temperature.
        learn_temperature: Whether the temperature is a parameter.
        normalize: Whether the loss sees embeddings of unit length.

    Raises:
        UserError: If the encoder is not a module, or the temperature is not positive and finite, or is learnt and below 0.01.
    """

    def __init__(
        self,
        encoder: nn.Module,
        embedding: int = 128,
        *,
        hidden: int = 512,
        head: nn.Module | None = None,
        temperature: float = 0.1,
        learn_temperature: bool = False,
        normalize: bool = True,
    ) -> None:
        _require_module(encoder, "encoder")
        if head is None:
            head = nn.Sequential(nn.LazyLinear(hidden), nn.ReLU(), nn.Linear(hidden, embedding))
        super().__init__(encoder, head, temperature, learn_temperature, unit_length=normalize)


class TwoTower(TwoTowerModel):
    """An image encoder and a text encoder that meet in one space (Radford et al. 2021).

    Args:
        image: Any module from images ``(n, C, H, W)`` to features ``(n, F)``.
        text: Any module from tokens ``(n, L)`` to features ``(n, F_t)``.
        tokenizer: Function from a list of n texts to tokens ``(n, L)`` int64; L is the same for all texts.
        vocabulary: Number of different tokens; default: the tokenizer's attribute ``vocabulary`` or ``vocab_size``.
        embedding: D, dimensions of the common space.
        temperature: Temperature; see `SimCLR`.
        learn_temperature: Whether the temperature is a parameter.
        normalize: Whether the loss sees embeddings of unit length.

    Raises:
        UserError: If a tower is not a module, the tokenizer fails or does not return such tokens, the number of different
            tokens is unknown or too small, or the temperature is refused (see `SimCLR`).
    """

    def __init__(
        self,
        image: nn.Module,
        text: nn.Module,
        tokenizer: Callable[[list[str]], Tensor],
        *,
        vocabulary: int | None = None,
        embedding: int = 128,
        temperature: float = 0.1,
        learn_temperature: bool = False,
        normalize: bool = True,
    ) -> None:
        _require_module(image, "image")
        _require_module(text, "text")
        projection = nn.LazyLinear(embedding, bias=False)
        super().__init__(image, TextTower(text, embedding), projection, temperature, learn_temperature, unit_length=normalize)
        self.tokenizer = OwnTokenizer(tokenizer, vocabulary)


class TextTower(nn.Module):
    """A user's own text encoder, followed by a linear head."""

    def __init__(self, backbone: nn.Module, embedding: int) -> None:
        super().__init__()
        self.backbone, self.head = backbone, nn.LazyLinear(embedding, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Maps tokens ``(n, L)`` to embeddings ``(n, D)``."""
        return self.head(self.backbone(tokens))


class OwnTokenizer:
    """A user's own tokenizer, with the number of its different tokens and the number of tokens of a text.

    Args:
        function: Function from a list of n texts to tokens ``(n, L)`` int64.
        vocabulary: Number of different tokens; ``None``: the function's attribute ``vocabulary`` or ``vocab_size``.

    Attributes:
        vocabulary: Number of different tokens.
        context: L, number of tokens of a text.

    Raises:
        UserError: If the function fails or does not return such tokens, or the number of different tokens is unknown or too
            small.
    """

    def __init__(self, function: Callable[[list[str]], Tensor], vocabulary: int | None) -> None:
        self._function = function
        tokens = self(["a", "two of them, in a longer text"])
        if vocabulary is not None and int(tokens.max()) >= vocabulary:
            raise UserError(
                f"TwoTower: the tokenizer gave the token {int(tokens.max())}, expected all below vocabulary = {vocabulary}. "
                "[model-vocabulary]"
            )
        self.context = int(tokens.shape[1])
        known = vocabulary or getattr(function, "vocabulary", None) or getattr(function, "vocab_size", None)
        if not isinstance(known, int) or known <= int(tokens.max()):
            raise UserError(
                "TwoTower: expected a number of different tokens that is larger than every token of the tokenizer, got "
                f"{known!r}: give this number as vocabulary=. [model-vocabulary-other]"
            )
        self.vocabulary = known

    def __call__(self, texts: list[str]) -> Tensor:
        """Returns the tokens of n texts, ``(n, L)`` int64."""
        try:
            tokens = self._function(list(texts))
        except Exception as error:
            raise UserError(
                f"TwoTower: the tokenizer failed on a list of {len(texts)} texts; expected tokens ({len(texts)}, L): "
                f"{type(error).__name__}: {error}. [model-tokenizer]"
            ) from error
        if not isinstance(tokens, Tensor) or tokens.dim() != 2 or len(tokens) != len(texts) or tokens.is_floating_point():
            raise UserError(
                f"TwoTower: the tokenizer gave {described(tokens)} for {len(texts)} texts, expected int64 ({len(texts)}, L). "
                "[model-tokenizer-other]"
            )
        return tokens.long()


def as_model(given: Any) -> nn.Module:
    """Returns a model that keeps the contract: the given model itself, or a `SimCLR` around the given encoder.

    Args:
        given: A `SimCLR`, a `TwoTower`, another model that keeps the contract (docs/commands.md), or an encoder. A module
            without the attribute ``temperature`` or without the method ``features`` counts as an encoder.

    Raises:
        UserError: If `given` is not a module.
    """
    _require_module(given, "model")
    return given if hasattr(given, "temperature") and callable(getattr(given, "features", None)) else SimCLR(given)


def finish_model(model: nn.Module, image: Tensor, tokens: Tensor | None) -> None:
    """Runs a model once, so that its lazy layers learn the width of their input, and refuses a model that cannot be trained.

    Afterwards the model is on the CPU.

    Args:
        model: Model on any device.
        image: Images, ``(n, C, H, W)``, n = 2 or more.
        tokens: Tokens, ``(n, L)``, for a model that reads text, else ``None``.

    Raises:
        UserError: If the model fails, its encoders do not return features, or it has no parameters, or parameters that are
            not float32 or have no values.
    """
    _refuse_kinds(model)
    towers: list[tuple[str, nn.Module, Tensor]] = []
    encoder = getattr(model, "encoder", None) or getattr(model, "image_encoder", None)
    if isinstance(encoder, nn.Module):
        towers.append(("images", encoder, image))
    text = getattr(getattr(model, "text_encoder", None), "backbone", None)
    if isinstance(text, nn.Module) and tokens is not None:
        towers.append(("tokens", text, tokens))
    device = next(iter(_ready(model))).device
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            for what, tower, given in towers:
                _features(tower, given.to(device), what)
            views = {"image": image[:, None].to(device), **({} if tokens is None else {"text": tokens[:, None].to(device)})}
            _tried(model, views)
    finally:
        model.train(was_training)


def _features(tower: nn.Module, given: Tensor, what: str) -> None:
    name = type(tower).__name__
    try:
        output = tower(given)
    except Exception as error:
        raise UserError(
            f"the encoder {name} failed on {what} {tuple(given.shape)}: {type(error).__name__}: "
            f"{str(error).splitlines()[0] if str(error) else ''}. [model-encoder-fails]"
        ) from error
    if not isinstance(output, Tensor) or output.dim() != 2 or len(output) != len(given) or not output.is_floating_point():
        raise UserError(
            f"the encoder {name} got {what} {tuple(given.shape)} and gave {described(output)}: expected features "
            f"({len(given)}, F), one row each. Return one tensor, for example after pooling. [model-encoder-output]"
        )


def _tried(model: nn.Module, views: dict[str, Tensor]) -> None:
    try:
        model(views)
    except UserError:
        raise
    except Exception as error:
        shapes = ", ".join(f"'{name}': {tuple(view.shape)}" for name, view in views.items())
        said = str(error).splitlines()[0] if str(error) else ""
        raise UserError(
            f"{type(model).__name__}.forward failed on views {{{shapes}}}: {type(error).__name__}: {said}. [model-forward]"
        ) from error


def _refuse_kinds(model: nn.Module) -> None:
    ready = _ready(model)
    if not ready:
        raise UserError(f"{type(model).__name__} has no parameters: there is nothing to train. [model-no-parameters]")
    kinds = {parameter.dtype for parameter in ready}
    if any(parameter.is_meta for parameter in ready):
        raise UserError("the model has parameters on 'meta', which have no values: build it on a real device. [model-meta]")
    model.to("cpu")  # new heads are on the CPU, and the model may be on a GPU; the run moves all of it later
    if kinds != {torch.float32}:
        said = " and ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds))
        raise UserError(
            f"the model has parameters of {said}, expected float32: call .float() on it; Trainer(precision='bf16') runs the "
            "forward pass in half precision. [model-precision]"
        )


def _ready(model: nn.Module) -> list[nn.Parameter]:
    lazy = torch.nn.parameter.UninitializedParameter
    return [parameter for parameter in model.parameters() if not isinstance(parameter, lazy)]


def _require_module(given: Any, what: str) -> None:
    if not isinstance(given, nn.Module):
        raise UserError(f"expected a torch.nn.Module as {what}, got {described(given)}. [model-not-module]")
