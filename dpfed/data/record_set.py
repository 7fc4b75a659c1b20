"""Defines the interface by which training, evaluation and budgets read records.

The records are those of a record store, or of a data set of the user's own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

import numpy as np

from dpfed.data.store.index import blocks
from dpfed.data.store.record import SPLITS
from dpfed.errors import UserError, nearest


class RecordSet(ABC):
    """A sequence of N records, which are read by their indices 0 .. N - 1.

    Attributes:
        name: Name of the data set.
        kind: ``"image"`` or ``"image-text"``.
        public: Whether anyone may see the records.
        path: Folder of a store; for other records, a path made of their name.
        keys: Unique key of each record, ``(N,)`` uint64: a function of the record itself, and never of its position.
        units: Key of each record's unit, ``(N,)`` uint64; ``None``: there are no units.
        unit_name: Name of the kind of unit, such as ``"person"``; ``None``: there are no units.
        splits: Split of each record, an index into `dpfed.data.store.record.SPLITS`, ``(N,)`` int8.
        labels: For each label name, the class numbers of the records, ``(N,)`` int64; -1 for a record without the label.
        label_names: For each label name, the names of its classes in the order of their numbers.
        contents: Fingerprint of all records.
        contents_key: Secret key of the fingerprint; ``None``: the fingerprint has no key.
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
        """Returns the captions of the records, a list for each index. If the kind is ``"image-text"``, no list is empty."""

    @abstractmethod
    def encoded(self, indices: np.ndarray) -> list[bytes]:
        """Returns the records' images as bytes, one object for each index. Equal images have equal bytes."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """The value that two processes compare to check that they have opened the same records."""

    @property
    def budget_names(self) -> np.ndarray:
        """The names by which a lifetime budget recognises records, ``(N,)`` uint64.

        A record keeps its name if the order of the records changes, or if other records are added or removed.
        """
        return self.keys

    @property
    def budget_fingerprint(self) -> str:
        """The fingerprint by which a lifetime budget recognises the whole record set; `budget_names` are for single records."""
        return self.contents

    @property
    def budget_folder(self) -> Path | None:
        """The folder that keeps a copy of the ledger of the records' budget; ``None``: only the registry keeps the ledger."""
        return self.path

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def training_records(self) -> int:
        """The number of training records."""
        return self.count("train")

    @property
    def training_units(self) -> int | None:
        """The number of units of the training records; ``None``: there are no units."""
        return None if self.units is None else len(np.unique(self.units[self.split("train")]))

    def split(self, name: str) -> np.ndarray:
        """Returns the rows of a split.

        Args:
            name: ``"train"``, ``"validation"`` or ``"test"``.

        Returns:
            The rows, ``(n,)`` int64, ascending; empty if the split has no records.

        Raises:
            UserError: If there is no split of that name.
        """
        number = split_number(name)
        rows = [first + np.flatnonzero(self.splits[first:end] == number) for first, end in blocks(len(self))]
        return np.concatenate(rows) if rows else np.zeros(0, np.int64)

    def count(self, name: str) -> int:
        """Returns the number of records of a split; see `split`."""
        return len(self.split(name))

    def within(self, name: str) -> Callable[[int, int], np.ndarray]:
        """Returns a function that marks the rows of a split.

        Args:
            name: ``"train"``, ``"validation"`` or ``"test"``.

        Returns:
            A function of (first, end). It says for each row from `first` to `end` - 1 whether the row belongs to the split,
            ``(end - first,)`` bool.

        Raises:
            UserError: If there is no split of that name.
        """
        number = split_number(name)
        return lambda first, end: self.splits[first:end] == number

    def smallest(self, rows: Callable[[int, int], np.ndarray], count: int) -> np.ndarray:
        """Chooses the records with the smallest keys. They are the same records in whatever order the records are stored.

        Args:
            rows: Function that marks the rows to choose from, as `within` returns it. It is called block by block.
            count: Number of records to choose.

        Returns:
            The rows of the chosen records in the order of their keys, ``(n,)`` int64; n is less than `count` if fewer rows are
            marked.
        """
        chosen, keys = np.zeros(0, np.int64), np.zeros(0, np.uint64)
        for first, end in blocks(len(self)):
            marked = first + np.flatnonzero(rows(first, end))
            chosen, keys = np.append(chosen, marked), np.append(keys, self.keys[marked])
            if len(keys) > count:
                order = np.argsort(keys, kind="stable")[:count]
                chosen, keys = chosen[order], keys[order]
        return chosen[np.argsort(keys, kind="stable")]

    def share_units(self, first: str, second: str) -> bool:
        """Returns whether any unit has records in both the split named `first` and the split named `second`."""
        units, within = self.units, self.within(first)
        if units is None:
            return False
        others = np.unique(units[self.split(second)])
        return any(np.isin(units[at:end][within(at, end)], others).any() for at, end in blocks(len(self)))


def split_number(split: str) -> int:
    """Returns the number of a split: its index in `SPLITS`.

    Raises:
        UserError: If there is no split of that name.
    """
    if split not in SPLITS:
        raise UserError(f"unknown split {split!r}; {nearest(split, SPLITS)} [split-unknown]")
    return SPLITS.index(split)
