"""Views whose images, and captions of a frozen text tower, are features that were computed before."""

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
    """Makes the views of records out of their features; a record's views depend on that record and its own draws only.

    Args:
        views: Makes the same views out of images.
        features: Features of the records.
        cached: V, views of each record that are there.
        texts: Whether captions are features, too; otherwise they are tokens.
    """

    def __init__(self, views: ViewMaker, features: Features, cached: int, texts: bool) -> None:
        self.__dict__.update(views.__dict__)
        self._features, self._cached, self._texts_are_features = features, cached, texts

    def prefetch(self, batches: Iterable[np.ndarray], randomness: Randomness, step: int, device: torch.device) -> None:
        """Nothing is read ahead: features are mapped."""

    def _images(self, indices: np.ndarray, randomness: Randomness, step: int, device: torch.device) -> Tensor:
        """``(n, count, F)``: each record draws which of its V views, none twice."""
        order = randomness.per_record("views", step, self._store.keys[indices], self._cached).argsort(1, kind="stable")
        return to_device(self._features.images(self._features.positions(indices), order[:, : self._count]), device)

    def _texts(
        self, tokenizer: Callable[[list[str]], Tensor], indices: np.ndarray, randomness: Randomness, step: int
    ) -> Tensor:
        """``(n, 1, F_t)``, or tokens."""
        if not self._texts_are_features:
            return super()._texts(tokenizer, indices, randomness, step)
        choice = randomness.per_record("caption", step, self._store.keys[indices], 1)[:, 0]
        return self._features.texts(self._features.positions(indices), choice)[:, None]


class FeatureViews(ViewMaker):
    """Features of frozen towers, in the place of views.

    Args:
        features: Features of the records, which were computed once.
        views: V, of each image.
        texts: Whether there are features of captions.
    """

    def __init__(self, features: Features, views: int, texts: bool) -> None:
        self._features, self._each, self._captioned = features, np.arange(views), texts

    def prefetch(self, batches: Iterable[np.ndarray], randomness: Randomness, step: int, device: torch.device) -> None:
        """See `ViewMaker.prefetch`: nothing is read ahead, for features are mapped."""

    def __call__(self, indices: np.ndarray, randomness: Randomness, step: int, device: torch.device) -> dict[str, Tensor]:
        """Returns all features of some records, the same in each step.

        Returns:
            ``{"image": (n, V, F)[, "text": (n, 1, F_t)]}``; text is the mean of a record's captions.
        """
        places = self._features.positions(indices)
        found = {"image": self._features.images(places, np.tile(self._each, (len(places), 1)))}
        if self._captioned:
            found["text"] = self._features.text_means(places)[:, None]
        return {side: own.to(device) for side, own in found.items()}
