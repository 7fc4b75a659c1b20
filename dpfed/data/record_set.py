"""What training, evaluation and budgets read of records: of a record store, or of a data set of the user's own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

import numpy as np

from dpfed.data.store.index import blocks
from dpfed.data.store.record import SPLITS
from dpfed.errors import UserError, nearest


class RecordSet(ABC):
    """Records by index.

    Attributes:
        name: what the data set is called.
        kind: ``"image"`` or ``"image-text"``.
        public: anyone may see the records.
        path: the folder of a store; of other records, what they are called.
        keys: ``(N,)`` uint64, a function of each record that is unique; never its position.
        units: ``(N,)`` uint64, equal for records that share a unit; ``None``: there are no units.
        unit_name: what a unit is called, such as ``"person"``; ``None``: there are none.
        splits: ``(N,)`` int8, the number of each record's split.
        labels: name -> ``(N,)`` int64, -1 where a record has none.
        label_names: name -> what the numbers mean.
        contents: fingerprint of all records.
        contents_key: the secret that it is keyed with; ``None``: it has none.
    """

    name: str
    kind: str
    public: bool
    path: Path
    keys: np.ndarray
    units: np.ndarray | None
    unit_name: str | None
    splits: np.ndarray
    labels: dict[str, np.ndarray]
    label_names: dict[str, list[str]]
    contents: str
    contents_key: str | None = None

    @abstractmethod
    def captions(self, indices: np.ndarray) -> list[list[str]]:
        """The records' captions, a list for each index; at least one each when the kind is ``"image-text"``."""

    @abstractmethod
    def encoded(self, indices: np.ndarray) -> list[bytes]:
        """The images as bytes, one for each index: equal for equal images."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """What two processes compare to see that they have the same records open."""

    @property
    def budget_names(self) -> np.ndarray:
        """``(N,)`` uint64: by which a lifetime budget knows each record again, in any order and among others."""
        return self.keys

    @property
    def budget_fingerprint(self) -> str:
        """By which a lifetime budget knows all of them together."""
        return self.contents

    @property
    def budget_folder(self) -> Path | None:
        """The folder that keeps a copy of their budget's ledger; ``None``: the registry alone keeps it."""
        return self.path

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def training_records(self) -> int:
        """How many training records there are."""
        return self.count("train")

    @property
    def training_units(self) -> int | None:
        """How many units the training records have; ``None``: there are no units."""
        return None if self.units is None else len(np.unique(self.units[self.split("train")]))

    def split(self, name: str) -> np.ndarray:
        """Rows of a split.

        Args:
            name: ``"train"``, ``"validation"`` or ``"test"``.

        Returns:
            ``(n,)`` int64, ascending; none when there are no such records.

        Raises:
            UserError: for any other name.
        """
        number = split_number(name)
        found = [first + np.flatnonzero(self.splits[first:end] == number) for first, end in blocks(len(self))]
        return np.concatenate(found) if found else np.zeros(0, np.int64)

    def count(self, name: str) -> int:
        """How many records a split has; see `split`."""
        return len(self.split(name))

    def within(self, name: str) -> Callable[[int, int], np.ndarray]:
        """Which of the rows between two are of a split, ``(end - first,)`` bool."""
        number = split_number(name)
        return lambda first, end: self.splits[first:end] == number

    def smallest(self, rows: Callable[[int, int], np.ndarray], count: int) -> np.ndarray:
        """Of some rows, those with the smallest keys: always the same records, whatever their order.

        Args:
            rows: which of the rows between two are meant, ``(end - first,)`` bool; it is asked for one block after the other.
            count: how many.

        Returns:
            ``(n,)`` int64, in the order of their keys; fewer where there are fewer.
        """
        chosen, keys = np.zeros(0, np.int64), np.zeros(0, np.uint64)
        for first, end in blocks(len(self)):
            own = first + np.flatnonzero(rows(first, end))
            chosen, keys = np.append(chosen, own), np.append(keys, self.keys[own])
            if len(keys) > count:
                order = np.argsort(keys, kind="stable")[:count]
                chosen, keys = chosen[order], keys[order]
        return chosen[np.argsort(keys, kind="stable")]

    def share_units(self, first: str, second: str) -> bool:
        """Whether a unit has records in both of two splits."""
        units, within = self.units, self.within(first)
        if units is None:
            return False
        others = np.unique(units[self.split(second)])
        return any(np.isin(units[at:end][within(at, end)], others).any() for at, end in blocks(len(self)))


def split_number(split: str) -> int:
    """The number of a split.

    Raises:
        UserError: for a name that is not one.
    """
    if split not in SPLITS:
        raise UserError(f"unknown split {split!r}; {nearest(split, SPLITS)} [split-unknown]")
    return SPLITS.index(split)
