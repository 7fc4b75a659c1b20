"""The public records that join the groups of private ones (`dpfed.bounding.methods.public`): who meets who.

Which public records join a group is a function of the key of the group's own record, and the step: no other private record has
a part in it. Which set they are drawn from is known before training: `dpfed.data.public_store`.
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
        views: makes the views of the public store.
        indices: ``(P,)`` int64 indices of that store.
        count: M, public records in every group.

    Raises:
        ValueError: if there are fewer than M indices.
    """

    def __init__(self, views: ViewMaker, indices: np.ndarray, count: int) -> None:
        if len(indices) < count:
            raise ValueError(f"{len(indices)} public records are fewer than {count}")
        self._views, self._indices, self.count = views, indices, count

    def of(self, keys: np.ndarray, randomness: Randomness, step: int) -> np.ndarray:
        """Which public records join some groups; those of one group differ from each other.

        Args:
            keys: ``(G,)`` uint64, of the record (or unit) that makes each group.
            randomness: the workers'.
            step: training step.

        Returns:
            ``(G, M)`` indices of the public store; each row is a function of its key and the step alone.
        """
        uniforms = randomness.per_record("public", step, keys, self.count)
        places = np.empty((len(keys), 0), np.int64)
        for column in range(self.count):  # a uniform place among those that are left, counted around the ones that are taken
            left = len(self._indices) - column
            place = np.minimum((uniforms[:, column] * left).astype(np.int64), left - 1)
            for taken in places.T:  # ascending
                place = place + (place >= taken)
            places = np.sort(np.column_stack([places, place]), axis=1)
        return self._indices[places]

    @staticmethod
    def _apart(randomness: Randomness) -> Randomness:
        """A public record may have the name of a private one: their views share no draw."""
        return Randomness(randomness.key("public"))

    def prefetch(self, keys: Iterable[np.ndarray], randomness: Randomness, step: int, device: torch.device) -> None:
        """Says for whose groups public records will be asked next, in order; see `ViewMaker.prefetch`."""
        self._views.prefetch([self.of(own, randomness, step).ravel() for own in keys], self._apart(randomness), step, device)

    def joined(
        self,
        views: dict[str, Tensor],
        offsets: list[int],
        keys: np.ndarray,
        randomness: Randomness,
        step: int,
        device: torch.device,
    ) -> tuple[dict[str, Tensor], list[int]]:
        """The groups with their public records behind their own.

        Args:
            views: of the groups' own records, one group after the other.
            offsets: G + 1 offsets of the groups.
            keys: see `of`.
            randomness: the workers'.
            step: training step.
            device: where the views are.

        Returns:
            Views and offsets, M records longer for every group.
        """
        groups, count = len(keys), self.count
        public = self._views(self.of(keys, randomness, step).ravel(), self._apart(randomness), step, device)
        group = np.concatenate([np.repeat(np.arange(groups), np.diff(offsets)), np.repeat(np.arange(groups), count)])
        rows = to_device(torch.from_numpy(np.argsort(group, kind="stable")), device)  # stable: own records first
        together = {name: torch.cat([own, public[name]])[rows] for name, own in views.items()}
        return together, [start + count * number for number, start in enumerate(offsets)]
