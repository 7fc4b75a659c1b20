"""Whose records an audit looks at: members of the run's training split, and records that it never saw."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dpfed.audit.signals import DRAWS, REFERENCES
from dpfed.data.record_set import RecordSet
from dpfed.data.store.records import RecordStore
from dpfed.errors import UserError
from dpfed.privacy.randomness import Randomness
from dpfed.runs.build import Parts
from dpfed.runs.dummy_batch import views_per_image

_LEAST = 200  # of either side: half are attacked, and 1% of a hundred is one
_AT_ONCE = 32  # records whose views are made at a time


@dataclass(frozen=True)
class Sides:
    """The records of an audit: n members and non-members, in this order, and some references.

    Attributes:
        parts: of the run, with the members' and with the non-members' store.
        indices: of the members and of the non-members.
        references: indices of further training records, with which every record is put into a group.
        randomness: of the views.
    """

    parts: tuple[Parts, Parts]
    indices: tuple[np.ndarray, np.ndarray]
    references: np.ndarray
    randomness: Randomness

    @classmethod
    def draw(cls, parts: Parts, non_members: str | Path | None, records: int, randomness: Randomness) -> Sides:
        """Draws the records.

        Args:
            parts: of the run.
            non_members: a store of records that the run never saw; default: those of its own store that it did not train on.
            records: at most so many of either side; 0: all.
            randomness: of the draw and of the views.

        Raises:
            UserError: for too few records on either side, or non-members without the captions that the model reads.
        """
        others = parts if non_members is None else parts.with_learner(records=_store(non_members, parts))
        stores = parts.store, others.store
        candidates = parts.store.split("train"), _never_seen(*stores)
        counts = len(candidates[0]) - REFERENCES, len(candidates[1])
        if min(counts) < _LEAST or 0 < records < _LEAST:
            raise UserError(
                f"an audit needs at least {_LEAST} non-members, {_LEAST} members and {REFERENCES} more training records, and "
                f"--records at least {_LEAST}; got {counts[1]:,} held-out records that share no id or unit with a training "
                f"record, {len(candidates[0]):,} training records, --records {records:,}. Name other --non-members. "
                "[attack-few]"
            )
        members, unseen = (
            indices[np.argsort(randomness.per_record("audit", side, store.keys[indices], 1)[:, 0])]
            for side, (store, indices) in enumerate(zip(stores, candidates, strict=True))
        )
        references, members = members[:REFERENCES], members[REFERENCES:]
        most = records or None
        return cls((parts, others), (members[:most], unseen[:most]), references, randomness)

    @property
    def public(self) -> bool:
        """Whether anyone may see all of the records."""
        return all(parts.store.public for parts in self.parts)

    @property
    def member(self) -> Tensor:
        """``(n,)`` bool."""
        return torch.arange(sum(map(len, self.indices))) < len(self.indices[0])

    @property
    def known(self) -> Tensor:
        """``(n,)`` bool: the half of either side of which the adversary knows what it is; the other half is attacked."""
        return torch.cat([torch.arange(len(indices)) >= len(indices) // 2 for indices in self.indices])

    def views(self) -> Iterator[dict[str, Tensor]]:
        """Of each record J draws of its views: ``{"image": (J, V, 3, H, W), "text": (J, W, L)}``."""
        for parts, indices in zip(self.parts, self.indices, strict=True):
            for start in range(0, len(indices), _AT_ONCE):
                views = self._draws(parts, indices[start : start + _AT_ONCE])
                for index in range(len(views["image"])):
                    yield {name: view[index] for name, view in views.items()}

    def reference_views(self) -> dict[str, Tensor]:
        """The same of the references, ``(R, J, ...)``."""
        return self._draws(self.parts[0], self.references)

    def _draws(self, parts: Parts, indices: np.ndarray) -> dict[str, Tensor]:
        # The fewest views that a contrast needs: two images, or an image and a text.
        make = parts.views.maker(parts.store, views_per_image(parts.config, augmentations=0))
        draws = [make(indices, self.randomness, draw, parts.learner.device) for draw in range(DRAWS)]
        return {name: torch.stack([views[name] for views in draws], 1) for name in draws[0]}


def _store(path: str | Path, parts: Parts) -> RecordStore:
    store = RecordStore.open(path)
    if parts.config.model.reads_text and store.kind != "image-text":
        raise UserError(f"the run's model reads captions, and {store.name} has none: name other --non-members. [attack-texts]")
    return store


def _never_seen(trained: RecordSet, store: RecordSet) -> np.ndarray:
    """Rows that are no training records of the run and share neither id nor unit with one."""
    indices = trained.split("train")
    unseen = ~np.isin(store.keys, trained.keys[indices])
    if trained.units is not None and store.units is not None:
        unseen &= ~np.isin(store.units, trained.units[indices])
    return np.flatnonzero(unseen)
