"""Prepares records for the model: makes images of one size, random views of these images, and tokens of texts."""

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
    """A function from texts to token numbers.

    Attributes:
        vocabulary: Number of different tokens.
        context: Number of tokens of a text; longer texts are cut.
    """

    vocabulary: int
    context: int

    def __call__(self, texts: list[str]) -> Tensor:
        """Returns the tokens of n texts, ``(n, context)`` int64."""


@dataclass(frozen=True)
class RecordViews:
    """Prepares records for the model.

    Attributes:
        images: Random and plain views of images.
        size: Side of the images, pixels.
        count: V, number of views of each image in training.
        preprocessing: Preprocessing that the image tower expects.
        tokenizer: Tokenizer of models that read text; ``None`` for image models.
        texts: Random views of captions; ``None``: captions are read as they are.
    """

    images: ImageViews
    size: int
    count: int
    preprocessing: Preprocessing = field(default_factory=Preprocessing)
    tokenizer: Tokenizer | None = None
    texts: TextViews | None = None

    def read(self, store: RecordSet, indices: np.ndarray) -> Tensor:
        """Reads the images of the given records as squares of the size that the model expects, ``(n, 3, size, size)`` uint8.

        Args:
            store: Record store.
            indices: Indices of records in the store, ``(n,)``.

        Raises:
            ValueError: If `store` is not a record store.
            UserError: If the images cannot be read, see `RecordStore.images`.
        """
        if not isinstance(store, RecordStore):
            raise ValueError(f"the records {store.name} are in no record store, and only images of a record store can be read")
        wanted = self.preprocessing
        return store.images(indices, self.size, resize=wanted.resize, interpolation=wanted.interpolation)

    def maker(self, store: RecordSet, count: int | None = None) -> ViewMaker:
        """Returns the object that makes the training views of records.

        Args:
            store: Records.
            count: Number of views of each image; ``None``: the attribute `count`.
        """
        read = functools.partial(self.read, store)
        return ViewMaker(store, read, self.images, count or self.count, self.tokenizer, self.texts)
