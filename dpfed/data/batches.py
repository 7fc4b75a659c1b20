"""From rows of a store to the views of their records."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from dpfed.data.records import RecordStore
from dpfed.data.views import ImageViews
from dpfed.randomness import Randomness


class ViewMaker:
    """Makes the random views of records; each record's views depend on that record and its own draws only.

    Args:
        store: the records.
        views: random image views.
        count: image views per record (2 + N_a for images alone, 1 + N_a beside texts).
        size: side of the images, pixels.
        tokenizer: for image-text models; ``None`` for image models.
    """

    def __init__(
        self,
        store: RecordStore,
        views: ImageViews,
        count: int,
        size: int,
        tokenizer: Callable[[list[str]], Tensor] | None = None,
    ) -> None:
        self._store, self._views, self._count, self._size, self._tokenizer = store, views, count, size, tokenizer

    def __call__(self, rows: np.ndarray, randomness: Randomness, step: int, device: torch.device) -> dict[str, Tensor]:
        """Views of some records.

        Args:
            rows: ``(n,)`` rows of the store.
            randomness: source of the views' parameters and of the choice of a caption.
            step: training step.
            device: where the views are made.

        Returns:
            ``{"image": (n, V, 3, H, W) float32, "text": (n, 1, L) int64}``.
        """
        keys = self._store.keys[rows]
        columns = self._views.columns * self._count
        uniforms = randomness.per_record("views", step, keys, columns).astype(np.float32)
        uniforms = torch.from_numpy(uniforms).view(len(rows), self._count, self._views.columns).to(device)
        result = {"image": self._views(self._store.images(rows, self._size).to(device), uniforms)}
        if self._tokenizer is not None:
            choice = randomness.per_record("caption", step, keys, 1)[:, 0]
            captions = self._store.captions(rows)
            texts = [texts[int(u * len(texts))] for u, texts in zip(choice, captions, strict=True)]
            result["text"] = self._tokenizer(texts).to(device)[:, None]
        return result
