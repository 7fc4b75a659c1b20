"""Makes a scikit-learn transformer of a trained encoder. It turns pictures into an array of features."""

from __future__ import annotations

from typing import Any, Protocol, Self

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import Tags
from torch import Tensor


class Embeds(Protocol):
    """The interface of an encoder, as `dpfed.load` returns it."""

    def features(self, images: Any) -> Tensor:
        """Returns the features of n images, ``(n, F)``."""

    def embed_images(self, images: Any) -> Tensor:
        """Returns the embeddings of n images, ``(n, D)``: vectors of unit length, which the contrastive loss compares."""


class PictureFeatures(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Turns pictures into features as a step of a `sklearn.pipeline.Pipeline`.

    Fitting changes nothing, because the encoder is already trained.

    Args:
        encoder: Encoder that `dpfed.load` returns.
        contrast: Whether to return embeddings instead of features. Embeddings are vectors of unit length, which the contrastive
            loss compares (`Embeds.embed_images`).
        batch: Number of pictures in one forward pass.
    """

    def __init__(self, encoder: Embeds, contrast: bool = False, batch: int = 64) -> None:
        self.encoder, self.contrast, self.batch = encoder, contrast, batch

    def fit(self, X: Any, y: Any = None) -> Self:
        """Returns this object, and ignores the arguments."""
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Computes the features of pictures.

        Args:
            X: List of PIL images or uint8 arrays of any size, or one uint8 array ``(n, H, W, 3)``. Put one image into a list.

        Returns:
            Features ``(n, F)`` float32, or embeddings ``(n, D)`` if `contrast` is set.

        Raises:
            UserError: If `X` has another form, or contains no picture.
        """
        embed = self.encoder.embed_images if self.contrast else self.encoder.features
        is_divided = hasattr(X, "__len__") and getattr(X, "ndim", None) not in (2, 3)  # a part of one image would be an image
        parts = [X[first : first + self.batch] for first in range(0, len(X), self.batch)] if is_divided else []
        return np.concatenate([embed(part).cpu().numpy() for part in parts or [X]])

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.requires_fit, tags.input_tags.two_d_array = False, False
        return tags
