"""A worker that holds other records than it was made with: a neighbour of itself."""

import numpy as np

from dpfed.data.sampling import participants_of
from dpfed.training.worker import Worker


def keep_only(worker: Worker, indices: np.ndarray, keys: np.ndarray) -> None:
    """Leaves it some records of the store.

    Args:
        worker: is changed; without units.
        indices: ``(n,)`` that stay.
        keys: ``(N,)`` of the whole store.
    """
    worker._indices, worker._keys = indices, keys[indices]
    worker._participants = participants_of(worker._plan, worker._randomness, worker._keys)
