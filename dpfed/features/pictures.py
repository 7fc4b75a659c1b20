"""A trained encoder as a transformer of scikit-learn: pictures -> an array of features."""

from __future__ import annotations

from typing import Any, Protocol, Self

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import Tags
from torch import Tensor


class Embeds(Protocol):
    """Encoder as `dpfed.load` returns it."""

    def features(self, images: Any) -> Tensor:
        """``(n, F)``."""

    def embed_images(self, images: Any) -> Tensor:
        """``(n, D)``."""


class PictureFeatures(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Features of pictures, for a `sklearn.pipeline.Pipeline`. It learns nothing from what it is fitted on.

    Args:
        encoder: See `dpfed.load`.
        contrast: Embeddings of unit length in the space of the contrast, in the place of features.
        batch: Pictures in a pass.
    """

    def __init__(self, encoder: Embeds, contrast: bool = False, batch: int = 64) -> None:
        self.encoder, self.contrast, self.batch = encoder, contrast, batch

    def fit(self, X: Any, y: Any = None) -> Self:
        """Nothing is learnt."""
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Features of pictures.

        Args:
            X: A list of PIL images or arrays of any size, or a uint8 array ``(n, H, W, 3)``.

        Returns:
            ``(n, F)`` float32.

        Raises:
            UserError: For something else, or no picture.
        """
        embed = self.encoder.embed_images if self.contrast else self.encoder.features
        parts = [X[first : first + self.batch] for first in range(0, len(X), self.batch)] or [X]
        return np.concatenate([embed(part).cpu().numpy() for part in parts])

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.requires_fit, tags.input_tags.two_d_array = False, False
        return tags
