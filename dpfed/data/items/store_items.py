"""A record store as a map-style data set of images."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from dpfed.data.decoding import decode
from dpfed.data.store.records import RecordStore


class StoreItems(Sequence[Any]):
    """The items of a store, by row: mappings with the column ``image``, a PIL image at its stored size.

    Args:
        store: Record store; each process opens it anew.
    """

    def __init__(self, store: RecordStore) -> None:
        self._store = store

    @functools.cached_property
    def splits(self) -> np.ndarray:
        """The split of each record, an index into `dpfed.data.store.record.SPLITS`, ``(N,)`` int8."""
        return self._store.splits

    def __len__(self) -> int:
        return len(self._store)

    def __getitem__(self, row: Any) -> Any:
        stored = self._store.encoded(np.array([row]))[0]
        size = self._store.size
        if size is not None:
            pixels = np.frombuffer(stored, np.uint8).reshape(3, size, size)
            return {"image": Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0)))}
        return {"image": decode(stored)}
