"""Chooses the public records that join each private record in its group (`dpfed.bounding.methods.public`).

Every drawn private record (or unit) has a group of its own. The choice of the public records that join this group is a function
of the step and of the key of the private record (or unit). Other private records do not affect the choice. The public records
to choose from are fixed before training: `dpfed.data.public_store`.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from dpfed.data.transfer import to_device
from dpfed.data.views.batches import ViewMaker
from dpfed.privacy.randomness import Randomness


class PublicNegatives:
    """Draws public records for each group, and appends them to the group's own records.

    Args:
        views: Maker of the views of the public records.
        indices: Indices in the public store of the P records to choose from, ``(P,)`` int64.
        count: M, number of public records in every group.

    Raises:
        ValueError: If P is less than M.
    """

    def __init__(self, views: ViewMaker, indices: np.ndarray, count: int) -> None:
        if len(indices) < count:
            raise ValueError(f"every group needs {count} public records, but there are fewer to choose from: {len(indices)}")
        self._views, self._indices, self.count = views, indices, count

    def of(self, keys: np.ndarray, randomness: Randomness, step: int) -> np.ndarray:
        """Draws the public records of the given groups; no record occurs twice in one group.

        Args:
            keys: Key of the record (or unit) that makes each group, ``(G,)`` uint64.
            randomness: Randomness that the workers share.
            step: Training step.

        Returns:
            Indices in the public store, ``(G, M)``. Each row is a function of its key, the step and `randomness` alone.
        """
        uniforms = randomness.per_record("public", step, keys, self.count)
        places = np.empty((len(keys), 0), np.int64)
        for column in range(self.count):  # a uniform position among the remaining ones, counted around those already taken
            left = len(self._indices) - column
            place = np.minimum((uniforms[:, column] * left).astype(np.int64), left - 1)
            for taken in places.T:  # ascending
                place = place + (place >= taken)
            places = np.sort(np.column_stack([places, place]), axis=1)
        return self._indices[places]

    @staticmethod
    def _apart(randomness: Randomness) -> Randomness:
        """Derives separate randomness for public records.

        A public and a private record may have the same name, and so the same key. Even then, their views must be drawn
        independently.
        """
        return Randomness(randomness.key("public"))

    def prefetch(self, keys: Iterable[np.ndarray], randomness: Randomness, step: int, device: torch.device) -> None:
        """Announces for which groups public records are needed next, so that their images can be read meanwhile.

        Args:
            keys: Keys of the groups of each of the next calls of `joined`, in the order of the calls; see `of`.
            randomness: Randomness that the workers share.
            step: Training step.
            device: Device on which the views will be made.
        """
        self._views.prefetch([self.of(part, randomness, step).ravel() for part in keys], self._apart(randomness), step, device)

    def joined(
        self,
        views: dict[str, Tensor],
        offsets: list[int],
        keys: np.ndarray,
        randomness: Randomness,
        step: int,
        device: torch.device,
    ) -> tuple[dict[str, Tensor], list[int]]:
        """Appends M public records to each of G groups.

        Args:
            views: Views of the groups' own records, one group after the other.
            offsets: Number of records before each group, then the number of all records: G + 1 numbers.
            keys: Keys of the groups, see `of`.
            randomness: Randomness that the workers share.
            step: Training step.
            device: Device of the views.

        Returns:
            Views and offsets of the enlarged groups: in each group, its own records come first, then its public records.
        """
        groups, count = len(keys), self.count
        public = self._views(self.of(keys, randomness, step).ravel(), self._apart(randomness), step, device)
        group = np.concatenate([np.repeat(np.arange(groups), np.diff(offsets)), np.repeat(np.arange(groups), count)])
        rows = to_device(torch.from_numpy(np.argsort(group, kind="stable")), device)  # stable: own records first
        together = {name: torch.cat([private, public[name]])[rows] for name, private in views.items()}
        return together, [start + count * number for number, start in enumerate(offsets)]
