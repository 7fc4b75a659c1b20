"""Views that consist of features, computed beforehand by frozen towers, in place of images or captions."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import Tensor

from dpfed.data.transfer import to_device
from dpfed.data.views.batches import ViewMaker
from dpfed.features.cache import Features
from dpfed.privacy.randomness import Randomness


class CachedViews(ViewMaker):
    """Makes the views of records from features. Each record's views depend only on that record and on what is drawn for it.

    Args:
        views: Maker of views from images, whose settings this maker takes over.
        features: Features of the records.
        cached: V, number of views of each image in `features`.
        texts: Whether the text views are features, too; otherwise they are tokens.
    """

    def __init__(self, views: ViewMaker, features: Features, cached: int, texts: bool) -> None:
        self.__dict__.update(views.__dict__)
        self._features, self._cached, self._texts_are_features = features, cached, texts

    def prefetch(self, batches: Iterable[np.ndarray], randomness: Randomness, step: int, device: torch.device) -> None:
        """Does nothing: the files of features are mapped into memory, so nothing is read ahead."""

    def _images(self, indices: np.ndarray, randomness: Randomness, step: int, device: torch.device) -> Tensor:
        """Returns features of image views, ``(n, count, F)``: `count` of each record's V views, drawn without replacement."""
        order = randomness.per_record("views", step, self._store.keys[indices], self._cached).argsort(1, kind="stable")
        return to_device(self._features.images(self._features.positions(indices), order[:, : self._count]), device)

    def _texts(
        self, tokenizer: Callable[[list[str]], Tensor], indices: np.ndarray, randomness: Randomness, step: int
    ) -> Tensor:
        """Returns text views of the records.

        Returns:
            Features of one drawn caption of each record, ``(n, 1, F_t)``; if text views are not features, tokens ``(n, W, L)``.
        """
        if not self._texts_are_features:
            return super()._texts(tokenizer, indices, randomness, step)
        choice = randomness.per_record("caption", step, self._store.keys[indices], 1)[:, 0]
        return self._features.texts(self._features.positions(indices), choice)[:, None]


class FeatureViews(ViewMaker):
    """Returns the features of a record as its views, the same in every step.

    The views are the features of all the record's image views, and the mean of its captions' features.

    Args:
        features: Features of the records.
        views: V, number of views of each image in `features`.
        texts: Whether `features` contains features of captions.
    """

    def __init__(self, features: Features, views: int, texts: bool) -> None:
        self._features, self._each, self._captioned = features, np.arange(views), texts

    def prefetch(self, batches: Iterable[np.ndarray], randomness: Randomness, step: int, device: torch.device) -> None:
        """Does nothing: the files of features are mapped into memory, so nothing is read ahead."""

    def __call__(self, indices: np.ndarray, randomness: Randomness, step: int, device: torch.device) -> dict[str, Tensor]:
        """Returns all features of the given records.

        Args:
            indices: Rows of the store, ``(n,)``.
            randomness: Not used.
            step: Not used.
            device: Device of the result.

        Returns:
            Features ``{"image": (n, V, F)[, "text": (n, 1, F_t)]}``. The text features are the mean over a record's captions.
        """
        places = self._features.positions(indices)
        views = {"image": self._features.images(places, np.tile(self._each, (len(places), 1)))}
        if self._captioned:
            views["text"] = self._features.text_means(places)[:, None]
        return {side: tensor.to(device) for side, tensor in views.items()}
