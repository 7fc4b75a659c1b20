"""Which records of a store are one data owner's: found where they are drawn, from the store's own mapped numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from dpfed.data.store.columns import blocks
from dpfed.data.store.records import RecordStore


class OwnRows:
    """The training records of one of several owners, as rows of the store. Nothing is copied, and nothing is read beforehand.

    Args:
        store: that the owner opened.
        keys: ``(N,)`` what decides, by row: `dpfed.data.sampling.owner_keys`.
        owner: 0 .. owners - 1.
        owners: how many there are.
    """

    def __init__(self, store: RecordStore, keys: np.ndarray, owner: int = 0, owners: int = 1) -> None:
        self._store, self._keys, self._owner, self._owners = store, keys, owner, owners

    def __call__(self, first: int, end: int) -> np.ndarray:
        """Which of the rows between two are the owner's, ``(end - first,)`` bool.

        Raises:
            UserError: for rows that are not what the store's header says.
        """
        training = self._store.index.training(first, end)
        if self._owners == 1:
            return training
        return training & (self._keys[first:end] % np.uint64(self._owners) == self._owner)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """All of them, ``(n,)`` int64, ascending."""
        found = [first + np.flatnonzero(self(first, end)) for first, end in blocks(len(self._store))]
        return np.asarray(np.concatenate(found) if found else np.zeros(0, np.int64), dtype)
