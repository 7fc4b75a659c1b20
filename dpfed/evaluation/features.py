"""Computes a frozen model's features and embeddings of many records, batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from dpfed.data.memory import records_without_gradients
from dpfed.models.contract import method_of
from dpfed.models.moments import features_of

_Items = TypeVar("_Items", np.ndarray, list[str])
ReadImages = Callable[[np.ndarray], Tensor]
ImagesFn = Callable[[Tensor], Tensor]
Tokenizer = Callable[[list[str]], Tensor]
_TEXTS = 512  # captions in one forward pass


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Puts a model in evaluation mode without gradients for the ``with`` block, and then restores the model's mode."""
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        model.train(was_training)


@dataclass
class Embedder:
    """Computes one model's features and embeddings of records and captions.

    Attributes:
        model: Model with ``features``, and for captions ``embed_images`` and ``embed_text``.
        read: Function from indices of a store, ``(n,)``, to images ``(n, C, H, W)``: uint8, or floats for a data set of the
            user's own.
        images_fn: Function from images as they are read to the model's input; normally ``ImageViews.plain``.
        tokenizer: Function from a list of texts to tokens, int64 ``(n, L)``; ``None`` for a model that reads only images.
        device: Device of the model.
    """

    model: nn.Module
    read: ReadImages
    images_fn: ImagesFn
    tokenizer: Tokenizer | None
    device: torch.device | str

    def features(self, indices: np.ndarray) -> Tensor:
        """Returns features of records: outputs of the model's ``features``, or of ``embed_images`` if it has heads of moments.

        Args:
            indices: Indices of the records in the store, int64 ``(n,)``.

        Returns:
            Features float32 ``(n, F)`` on the CPU, in the order of the indices.

        Raises:
            ValueError: If there are no indices.
            UserError: If the model has no method ``features`` (or ``embed_images``, if it has heads of moments), or an image
                cannot be read.
        """
        return self._of_images(indices, method_of(self.model, features_of(self.model)))

    def images(self, indices: np.ndarray) -> Tensor:
        """Returns a two-tower model's image embeddings, in the space shared with text: float32 ``(n, D)`` on the CPU.

        Raises:
            ValueError: If there are no indices.
            UserError: If the model has no ``embed_images``, or an image cannot be read.
        """
        return self._of_images(indices, method_of(self.model, "embed_images"))

    def texts(self, captions: list[str]) -> Tensor:
        """Returns a two-tower model's text embeddings: float32 ``(len(captions), D)`` on the CPU.

        Raises:
            ValueError: If there are no captions, or `tokenizer` is ``None``.
            UserError: If the model has no ``embed_text``.
        """
        if self.tokenizer is None:
            raise ValueError("texts cannot be embedded without a tokenizer")
        embed, tokens = method_of(self.model, "embed_text"), self.tokenizer
        return _in_batches(captions, _TEXTS, self.model, lambda part: embed(tokens(part).to(self.device)))

    def _reader(self, indices: np.ndarray) -> Callable[[np.ndarray], Tensor]:
        """Returns a function from a part of these indices to the model's input, on the model's device."""
        # Bytes are sent to the device and converted to floats there: a quarter of the traffic.
        return lambda part: self.images_fn(self.read(part).to(self.device)).to(self.device)

    def _of_images(self, indices: np.ndarray, embed: Callable[[Tensor], Tensor]) -> Tensor:
        read = self._reader(indices)
        shape = read(indices[:1]).shape[1:] if len(indices) else ()
        batch = records_without_gradients(shape, self.device)
        return _in_batches(indices, batch, self.model, lambda part: embed(read(part)))


EmbedderOf = Callable[[nn.Module], Embedder]


def _in_batches(items: _Items, batch: int, model: nn.Module, embed: Callable[[_Items], Tensor]) -> Tensor:
    if len(items) == 0:
        raise ValueError("nothing to embed: expected at least one record or caption")
    with frozen(model):
        parts = [embed(items[start : start + batch]).float().cpu() for start in range(0, len(items), batch)]
    # Cloned outside inference mode, so that a linear probe may differentiate through its inputs.
    return torch.cat(parts).clone()
