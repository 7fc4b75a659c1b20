"""Models around a user's own encoders: any module from images to features, and any module from tokens to features.

A first forward pass finds the number of features of an encoder (`finish_model`).
"""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral
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
        embedding: D, dimensions of the space in which views are contrasted, for the default head.
        hidden: Width of the default head's hidden layer.
        head: Projection head from features to ``(n, D)``; `embedding` and `hidden` are then ignored. Default: two linear
            layers with a ReLU between them.
        temperature: Temperature, which divides cosine similarities in losses that read the model's temperature.
        learn_temperature: Whether the temperature, and the bias if the loss has one, are trained parameters.
        normalize: Whether the loss sees embeddings of unit length. If a loss of `dpfed.losses` other than `DCL` and
            `Prediction` is passed to `dpfed.Trainer`, the trainer sets the value that this loss requires.

    Raises:
        UserError: If the encoder or the head is not a module, a width is not a whole number of at least 1, or the temperature
            is not positive and finite, or is learnt and below 0.01.
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
            refuse_widths("SimCLR", embedding=embedding, hidden=hidden)
            head = nn.Sequential(nn.LazyLinear(hidden), nn.ReLU(), nn.Linear(hidden, embedding))
        _require_module(head, "head")
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
        learn_temperature: Whether the temperature is a parameter; see `SimCLR`.
        normalize: Whether the loss sees embeddings of unit length; see `SimCLR`.

    Raises:
        UserError: If a tower is not a module, the tokenizer fails or does not return such tokens, the number of different
            tokens is unknown or too small, or `embedding` or the temperature is refused (see `SimCLR`).
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
        refuse_widths("TwoTower", embedding=embedding)
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
        self.context = 0  # not known yet
        tokens = self(["a", "two of them, in a longer text"])
        self.context = int(tokens.shape[1])
        self(["a"])  # a tokenizer that pads to the longest text of a list gives fewer tokens here
        if isinstance(vocabulary, Integral) and int(tokens.max()) >= vocabulary:
            raise UserError(
                f"TwoTower: the tokenizer gave the token {int(tokens.max())}, expected all below vocabulary = {vocabulary}. "
                "[model-vocabulary]"
            )
        known = vocabulary or getattr(function, "vocabulary", None) or getattr(function, "vocab_size", None)
        if not isinstance(known, Integral) or known <= int(tokens.max()):
            raise UserError(
                f"TwoTower: expected a vocabulary size above the tokenizer's largest token, got {known!r}: give the number of "
                "different tokens as vocabulary=. [model-vocabulary-other]"
            )
        self.vocabulary = int(known)

    def __call__(self, texts: list[str]) -> Tensor:
        """Returns the tokens of n texts, ``(n, L)`` int64.

        Raises:
            UserError: If the function fails, or does not return such tokens with the L of its first call.
        """
        if not texts and self.context:  # a step may draw no record
            return torch.zeros(0, self.context, dtype=torch.int64)
        try:
            tokens = self._function(list(texts))
        except Exception as error:
            raise UserError(
                f"TwoTower: the tokenizer failed on a list of {len(texts)} texts; expected tokens ({len(texts)}, L): "
                f"{type(error).__name__}: {error}. [model-tokenizer]",
                public="TwoTower: the tokenizer failed on a list of texts.",  # the error may quote a caption
            ) from error
        shaped = isinstance(tokens, Tensor) and tokens.dim() == 2 and len(tokens) == len(texts) and tokens.shape[1] > 0
        if not shaped or tokens.is_floating_point():
            raise UserError(
                f"TwoTower: the tokenizer gave {described(tokens)} for {len(texts)} texts, expected a tensor ({len(texts)}, L) "
                "of int64 with L of 1 or more. [model-tokenizer-other]"
            )
        if self.context not in (0, tokens.shape[1]):  # a record's padding would depend on the other records of a batch
            raise UserError(
                f"TwoTower: the tokenizer gave {self.context} tokens for each text of one list, and another number for a list "
                "of other texts: let the tokenizer pad and cut all texts to the same number of tokens. [model-tokenizer-length]"
            )
        return tokens.long()


def as_model(given: Any) -> nn.Module:
    """Returns a model that `dpfed.Trainer` can train: the given model itself, or a `SimCLR` around the given encoder.

    Args:
        given: A `SimCLR`, a `TwoTower`, another model with ``forward(views)`` (docs/commands.md), ``temperature`` and
            ``features``, or an encoder of images. A module without the attribute ``temperature`` or without the method
            ``features`` counts as an encoder.

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
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            for what, tower, given in towers:
                _features(tower, given.cpu(), what)
            views = {"image": image[:, None].cpu(), **({} if tokens is None else {"text": tokens[:, None].cpu()})}
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
    parameters = list(model.parameters())
    if not parameters:
        raise UserError(f"{type(model).__name__} has no parameters: there is nothing to train. [model-no-parameters]")
    kinds = {parameter.dtype for parameter in parameters}
    if any(parameter.is_meta for parameter in parameters):
        raise UserError("the model has parameters on 'meta', which have no values: build it on a real device. [model-meta]")
    model.to("cpu")  # new heads are on the CPU, and the model may be on a GPU; the run moves all of it later
    if kinds != {torch.float32}:
        said = " and ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds))
        raise UserError(
            f"the model has parameters of {said}, expected float32: call .float() on it; Trainer(precision='bf16') runs the "
            "forward pass in half precision. [model-precision]"
        )


def refuse_widths(name: str, **widths: int) -> None:
    """Refuses widths of layers that are not whole numbers of at least 1.

    Args:
        name: Name of the model.
        widths: Widths by name.

    Raises:
        UserError: If a width is not such a number; the message names the width.
    """
    for key, width in widths.items():
        if not isinstance(width, Integral) or isinstance(width, bool) or width < 1:
            said = repr(width) if isinstance(width, int | float | str) else described(width)
            raise UserError(f"{name}: expected {key} to be a whole number of 1 or more, got {said}. [model-width]")


def _require_module(given: Any, what: str) -> None:
    if not isinstance(given, nn.Module):
        raise UserError(f"expected a torch.nn.Module as {what}, got {described(given)}. [model-not-module]")
