"""How records become what a model reads: images of one size, random views of them, tokens of texts."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from torch import Tensor

from dpfed.data.record_set import RecordSet
from dpfed.data.store.records import RecordStore
from dpfed.data.views.batches import ViewMaker
from dpfed.data.views.images import ImageViews
from dpfed.data.views.preprocessing import Preprocessing
from dpfed.data.views.texts import TextViews


class Tokenizer(Protocol):
    """Texts to numbers.

    Attributes:
        vocabulary: how many tokens there are.
        context: tokens of a text; what is longer is cut.
    """

    vocabulary: int
    context: int

    def __call__(self, texts: list[str]) -> Tensor:
        """``(n, context)`` int64 of n texts."""


@dataclass(frozen=True)
class RecordViews:
    """How records become what a model reads.

    Attributes:
        images: random and plain views of images.
        size: side of the images, pixels.
        count: V, views of each image in training.
        preprocessing: what the image tower expects.
        tokenizer: of models that read text.
        texts: random views of captions.
    """

    images: ImageViews
    size: int
    count: int
    preprocessing: Preprocessing = field(default_factory=Preprocessing)
    tokenizer: Tokenizer | None = None
    texts: TextViews | None = None

    def read(self, store: RecordSet, indices: np.ndarray) -> Tensor:
        """Images of some records, as the model expects them: uint8 ``(n, 3, size, size)``.

        Args:
            store: the records.
            indices: ``(n,)`` of the store.
        """
        if not isinstance(store, RecordStore):
            raise ValueError(f"the images of {store.name} are not those of a record store")
        wanted = self.preprocessing
        return store.images(indices, self.size, resize=wanted.resize, interpolation=wanted.interpolation)

    def maker(self, store: RecordSet, count: int | None = None) -> ViewMaker:
        """Makes the views of training.

        Args:
            store: the records.
            count: views of each image; default: `count`.
        """
        read = functools.partial(self.read, store)
        return ViewMaker(store, read, self.images, count or self.count, self.tokenizer, self.texts)
