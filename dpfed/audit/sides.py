"""The records of a membership audit: members of the run's training split, and records that the run never saw."""

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

_LEAST = 200  # smallest number of members, and of non-members: half are attacked, and 1% of these hundred is one record
_AT_ONCE = 32  # number of records whose views are made at a time


@dataclass(frozen=True)
class Sides:
    """The records of an audit: members, then non-members, n in all, and further training records as references.

    Attributes:
        parts: Parts of the run, with the members' store and with the non-members' store.
        indices: Rows of the members and of the non-members in their stores.
        references: Rows of further training records, which form a group with each record of the audit.
        randomness: Randomness of the views.
    """

    parts: tuple[Parts, Parts]
    indices: tuple[np.ndarray, np.ndarray]
    references: np.ndarray
    randomness: Randomness

    @classmethod
    def draw(cls, parts: Parts, non_members: str | Path | None, records: int, randomness: Randomness) -> Sides:
        """Draws the records.

        Args:
            parts: Parts of the run.
            non_members: Store of records that the run never saw; default: records of the run's store outside the training
                split.
            records: Largest number of members, and of non-members, at least 200; 0: all.
            randomness: Randomness of the draw and of the views.

        Raises:
            UserError: If `records` is neither 0 nor at least 200, there are too few records on either side, the store of
                non-members cannot be opened, or it lacks the captions that the model reads.
        """
        others = parts if non_members is None else parts.with_learner(records=_store(non_members, parts))
        stores = parts.store, others.store
        candidates = parts.store.split("train"), _never_seen(*stores)
        if records != 0 and records < _LEAST:
            raise UserError(f"--records {records}: expected 0 (all) or at least {_LEAST}. [attack-records]")
        if len(candidates[0]) < (least := _LEAST + REFERENCES):
            raise UserError(
                f"the audit needs at least {least} training records, and the run has {len(candidates[0]):,}: audit a run on "
                "more records. [attack-few-members]"
            )
        if len(candidates[1]) < _LEAST:
            raise UserError(
                f"the audit needs at least {_LEAST} records that share no id or unit with a training record, and found "
                f"{len(candidates[1]):,}: name a store with more, --non-members STORE. [attack-few]"
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
        """Whether both the run's store and the non-members' store are public."""
        return all(parts.store.public for parts in self.parts)

    @property
    def member(self) -> Tensor:
        """Membership of each record, ``(n,)`` bool."""
        return torch.arange(sum(map(len, self.indices))) < len(self.indices[0])

    @property
    def known(self) -> Tensor:
        """Records whose membership the adversary knows, ``(n,)`` bool: half of each side; the other half is attacked."""
        return torch.cat([torch.arange(len(indices)) >= len(indices) // 2 for indices in self.indices])

    def views(self) -> Iterator[dict[str, Tensor]]:
        """Yields the views of one record after another, drawn J = `DRAWS` times for each record; the members come first.

        Yields:
            ``{"image": (J, V, 3, size, size), "text": (J, W, L)}``: V views of the image, each size x size pixels,
            and W texts of L tokens. There is no ``"text"`` for a model of images alone.
        """
        for parts, indices in zip(self.parts, self.indices, strict=True):
            for start in range(0, len(indices), _AT_ONCE):
                views = self._draws(parts, indices[start : start + _AT_ONCE])
                for index in range(len(views["image"])):
                    yield {name: view[index] for name, view in views.items()}

    def reference_views(self) -> dict[str, Tensor]:
        """Returns J draws of the views of the R references: ``{"image": (R, J, V, 3, size, size), "text": (R, J, W, L)}``.

        J, V, W and L are those of `views`. There is no ``"text"`` for a model of images alone.
        """
        return self._draws(self.parts[0], self.references)

    def _draws(self, parts: Parts, indices: np.ndarray) -> dict[str, Tensor]:
        # The fewest views that a contrast needs: two images, or an image and a text.
        make = parts.views.maker(parts.store, views_per_image(parts.config, augmentations=0))
        draws = [make(indices, self.randomness, draw, parts.learner.device) for draw in range(DRAWS)]
        return {name: torch.stack([views[name] for views in draws], 1) for name in draws[0]}


def _store(path: str | Path, parts: Parts) -> RecordStore:
    store = RecordStore.open(path)
    if parts.config.model.reads_text and store.kind != "image-text":
        raise UserError(
            f"the run's model reads captions, and {store.name} has none: give a store with captions, --non-members STORE. "
            "[attack-texts]"
        )
    return store


def _never_seen(trained: RecordSet, store: RecordSet) -> np.ndarray:
    """Returns the rows of a store that share neither id nor unit with a training record of the run."""
    indices = trained.split("train")
    unseen = ~np.isin(store.keys, trained.keys[indices])
    if trained.units is not None and store.units is not None:
        unseen &= ~np.isin(store.units, trained.units[indices])
    return np.flatnonzero(unseen)
