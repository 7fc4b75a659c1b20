"""Frozen features and embeddings of many records, batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Puts a model in evaluation mode without gradients, and back into the mode in which it was."""
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        model.train(was_training)


def extract(model: nn.Module, read: ReadImages, indices: np.ndarray, images_fn: ImagesFn, device: torch.device | str) -> Tensor:
    """Features of records: the backbone's output, without the projection head, or what released moments made of it.

    Args:
        model: has ``features(images (n, 3, H, W)) -> (n, F)``.
        read: images of indices of a store, uint8 ``(n, 3, size, size)``.
        indices: (n,) int64, which records, in this order.
        images_fn: maps uint8 ``(n, 3, H, W)`` to the model's floats; normally ``ImageViews.plain``.
        device: where the model is.

    Returns:
        ``(n, F)`` float32 on the CPU.

    Raises:
        ValueError: for no indices.
    """
    embed = method_of(model, features_of(model))
    return _of_images(model, read, indices, images_fn, device, embed)


def embed_images(
    model: nn.Module, read: ReadImages, indices: np.ndarray, images_fn: ImagesFn, device: torch.device | str
) -> Tensor:
    """Image embeddings of a two-tower model, in the space that it shares with text: ``(n, D)`` float32 on the CPU."""
    return _of_images(model, read, indices, images_fn, device, method_of(model, "embed_images"))


def embed_captions(
    model: nn.Module, captions: list[str], tokenizer: Tokenizer, device: torch.device | str, batch: int = 512
) -> Tensor:
    """Text embeddings of a two-tower model: ``(len(captions), D)`` float32 on the CPU.

    Args:
        model: has ``embed_text(tokens (n, L)) -> (n, D)``.
        captions: at least one text.
        tokenizer: maps a list of texts to int64 tokens ``(n, L)``.
        device: where the model is.
        batch: captions in memory at a time.
    """
    return _in_batches(captions, batch, model, lambda part: method_of(model, "embed_text")(tokenizer(part).to(device)))


def _of_images(
    model: nn.Module,
    read: ReadImages,
    indices: np.ndarray,
    images_fn: ImagesFn,
    device: torch.device | str,
    embed: Callable[[Tensor], Tensor],
) -> Tensor:
    shape = read(indices[:1]).shape[1:] if len(indices) else ()
    batch = records_without_gradients(shape, device)
    return _in_batches(indices, batch, model, lambda part: embed(_images(read, part, images_fn, device)))


def _images(read: ReadImages, indices: np.ndarray, images_fn: ImagesFn, device: torch.device | str) -> Tensor:
    # Bytes travel to the device, floats are made there: a quarter of the traffic.
    return images_fn(read(indices).to(device)).to(device)


def _in_batches(items: _Items, batch: int, model: nn.Module, embed: Callable[[_Items], Tensor]) -> Tensor:
    if len(items) == 0:
        raise ValueError("nothing to embed: expected at least one record or caption")
    with frozen(model):
        parts = [embed(items[start : start + batch]).float().cpu() for start in range(0, len(items), batch)]
    # Cloned outside inference mode, so that a linear probe may differentiate through what it is given.
    return torch.cat(parts).clone()
