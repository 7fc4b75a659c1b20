"""Models around encoders of the user's own: any module from images to features, and from tokens to features.

How many features an encoder gives shows when the model is run for the first time (`finish_model`).
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
    """An image encoder with a projection head, which is thrown away after training (Chen et al. 2020).

    Args:
        encoder: any module, images ``(n, C, H, W)`` -> features ``(n, F)``.
        embedding: D, dimensions of the space in which views are contrasted.
        hidden: width of the head's hidden layer.
        head: features -> ``(n, D)``, in the place of a head of two layers.
        temperature: divides cosine similarities, for losses that read the model's.
        learn_temperature: whether it is a parameter.
        normalize: whether the loss sees embeddings of unit length.

    Raises:
        UserError: if the encoder is not a module, or a temperature is not positive and finite.
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
        image: any module, images ``(n, C, H, W)`` -> features ``(n, F)``.
        text: any module, tokens ``(n, L)`` -> features ``(n, F_t)``.
        tokenizer: a function of a list of n texts, which gives tokens ``(n, L)`` int64; L is the same for all texts.
        vocabulary: how many tokens there are; default: what the tokenizer says.
        embedding: D, dimensions of the space.
        temperature: see `SimCLR`, as the next ones.
        learn_temperature: see there.
        normalize: see there.

    Raises:
        UserError: if a tower is not a module; if the tokenizer gives something else, or does not say how many tokens there are.
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
    """A text encoder and a linear head."""

    def __init__(self, backbone: nn.Module, embedding: int) -> None:
        super().__init__()
        self.backbone, self.head = backbone, nn.LazyLinear(embedding, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """``(n, L)`` -> ``(n, D)``."""
        return self.head(self.backbone(tokens))


class OwnTokenizer:
    """A tokenizer of the user's own, with what is known of its tokens.

    Args:
        function: a list of n texts -> ``(n, L)`` int64.
        vocabulary: how many tokens there are; ``None``: the function's attribute ``vocabulary`` or ``vocab_size`` says it.

    Attributes:
        vocabulary: how many tokens there are.
        context: L.

    Raises:
        UserError: for a function that gives something else.
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
                f"TwoTower: the tokenizer does not say how many tokens there are (it says {known!r}): give vocabulary=, "
                "a number that is larger than every token. [model-vocabulary-other]"
            )
        self.vocabulary = known

    def __call__(self, texts: list[str]) -> Tensor:
        """``(n, L)`` int64 of n texts."""
        try:
            tokens = self._function(list(texts))
        except Exception as error:
            raise UserError(
                f"TwoTower: the tokenizer failed on a list of {len(texts)} texts, which it has to make ({len(texts)}, L) of: "
                f"{type(error).__name__}: {error}. [model-tokenizer]"
            ) from error
        if not isinstance(tokens, Tensor) or tokens.dim() != 2 or len(tokens) != len(texts) or tokens.is_floating_point():
            raise UserError(
                f"TwoTower: the tokenizer gave {described(tokens)} for {len(texts)} texts, expected int64 ({len(texts)}, L). "
                "[model-tokenizer-other]"
            )
        return tokens.long()


def as_model(given: Any) -> nn.Module:
    """A model of the contract: as it is, or an encoder with a projection head.

    Args:
        given: a `SimCLR`, a `TwoTower`, another model of the contract (docs/library.md), or an encoder.

    Raises:
        UserError: if it is not a module.
    """
    _require_module(given, "model")
    return given if hasattr(given, "temperature") and callable(getattr(given, "features", None)) else SimCLR(given)


def finish_model(model: nn.Module, image: Tensor, tokens: Tensor | None) -> None:
    """Runs a model once, so that layers which wait for the width of their input get it, and refuses one that does not fit.

    Args:
        model: on its device.
        image: ``(n, C, H, W)``, n = 2 or more.
        tokens: ``(n, L)``, of models that read text.

    Raises:
        UserError: for a model that gives something else than features; for parameters on several devices, or of half precision.
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
        found = tower(given)
    except Exception as error:
        raise UserError(
            f"the encoder {name} failed on {what} {tuple(given.shape)}: {type(error).__name__}: "
            f"{str(error).splitlines()[0] if str(error) else ''}. [model-encoder-fails]"
        ) from error
    if not isinstance(found, Tensor) or found.dim() != 2 or len(found) != len(given) or not found.is_floating_point():
        raise UserError(
            f"the encoder {name} got {what} {tuple(given.shape)} and gave {described(found)}: expected features "
            f"({len(given)}, F), one row each. Return one tensor, and let it end with pooling. [model-encoder-output]"
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
    kinds = {one.dtype for one in ready}
    if any(one.is_meta for one in ready):
        raise UserError("the model has parameters on 'meta', which have no values: build it on a real device. [model-meta]")
    model.to("cpu")  # heads that were just made, and a model that came on a GPU; the run moves them together
    if kinds != {torch.float32}:
        said = " and ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds))
        raise UserError(
            f"the model has parameters of {said}, expected float32: call .float() on it; Trainer(precision='bf16') makes the "
            "forward pass in half precision. [model-precision]"
        )


def _ready(model: nn.Module) -> list[nn.Parameter]:
    lazy = torch.nn.parameter.UninitializedParameter
    return [one for one in model.parameters() if not isinstance(one, lazy)]


def _require_module(given: Any, what: str) -> None:
    if not isinstance(given, nn.Module):
        raise UserError(f"expected a torch.nn.Module as {what}, got {described(given)}. [model-not-module]")
