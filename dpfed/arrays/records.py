"""Presents the rows of one or two matrices as records, for workers and lifetime budgets."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpfed.arrays.refusal import ArrayError
from dpfed.arrays.rows import Rows
from dpfed.data.record_set import RecordSet
from dpfed.data.store.record import record_key
from dpfed.data.views.batches import ViewMaker
from dpfed.privacy.randomness import Randomness

GROUP = "group"  # name of the privacy unit: all rows with an equal value of `groups`


class ArrayRecords(RecordSet):
    """The records of one or two matrices: row i of X, and of Y if it is given, is record i.

    Keys and contents, by which a lifetime budget recognises records, are computed on first use.

    Args:
        x: Features, named ``image`` in the views.
        y: Other features of the same records, named ``text`` in the views; ``None``: X has views.
        groups: Group of each row, such as a person, ``(N,)``; a row whose group is None, NaN, NaT or blank is a group by
            itself. Spaces around a name do not count. ``None``: no groups.
        path: Folder that keeps the budget of these rows.

    Raises:
        ArrayError: If Y is missing and X has no views; if Y is given and X or Y has views; if X and Y differ in the number or
            the names of their rows; if `groups` is not one number or string for each row; or if there are fewer than two
            records or groups.
    """

    def __init__(self, x: Rows, y: Rows | None, groups: Any, path: Path) -> None:
        self.name, self.public, self.path = "the rows of X" + (" and Y" if y else ""), False, path
        self.kind = "image-text" if y else "image"
        self.x, self.y = x, y
        _refuse_lengths(x, y)
        self.units = None if groups is None else _numbered(groups, len(x))
        self.unit_name = None if groups is None else GROUP
        self.splits = np.zeros(len(x), np.int8)
        self.labels, self.label_names = {}, {}
        if self.protected < 2:
            what = f"{GROUP}s" if groups is not None else "rows"
            raise ArrayError(
                f"{self.protected} sample(s): expected 2 {what} or more; useful heads need thousands. [arrays-few]"
            )

    def __len__(self) -> int:
        return len(self.x)

    @property
    def protected(self) -> int:
        """Number of records, or of groups if there are groups: N of the privacy plan."""
        if self.units is None or not len(self):
            return len(self)
        return int(self.units.max()) + 1

    @property
    def together(self) -> int:
        """Number of records that are read into memory at a time."""
        return min(rows.together for rows in (self.x, self.y) if rows is not None)

    @functools.cached_property
    def keys(self) -> np.ndarray:  # type: ignore[override]
        """See `RecordSet`; a key is a hash of a record's row (or rows), and of its number among records with equal rows."""
        seen: dict[bytes, int] = {}
        keys = np.empty(len(self), np.uint64)
        for rows in self.x.blocks():
            for row, content in zip(rows.tolist(), self._contents_of(rows), strict=True):
                number = seen.get(content, 0)
                seen[content] = number + 1
                keys[row] = record_key(f"{content.hex()} {number}")
        return keys

    @functools.cached_property
    def contents(self) -> str:  # type: ignore[override]
        """See `RecordSet`; a hash of all rows and groups, made without a secret, so it is not published."""
        parts = [self.keys] if self.units is None else [self.keys, self.units]
        order = np.argsort(self.keys, kind="stable")
        return hashlib.blake2b(b"".join(part[order].tobytes() for part in parts), digest_size=16).hexdigest()

    @property
    def fingerprint(self) -> str:
        """See `RecordSet`."""
        return self.contents

    def captions(self, indices: np.ndarray) -> list[list[str]]:
        """See `RecordSet`; a hexadecimal hash of each row of Y stands for the captions; without Y there are no captions."""
        indices = np.asarray(indices)
        if self.y is None:
            return [[] for _ in indices]
        return [[self._hashed(same(row)).hex()] for row in _in_order(self.y, indices)]

    def encoded(self, indices: np.ndarray) -> list[bytes]:
        """See `RecordSet`; rows of X, as bytes, stand for the encoded images."""
        return [same(row) for row in _in_order(self.x, np.asarray(indices))]

    def _contents_of(self, rows: np.ndarray) -> list[bytes]:
        sides = [side.block(rows) for side in (self.x, self.y) if side is not None]
        return [self._hashed(b"".join(same(side[place]) for side in sides)) for place in range(len(rows))]

    @staticmethod
    def _hashed(content: bytes) -> bytes:
        return hashlib.blake2b(content, digest_size=16).digest()


class ArrayViews(ViewMaker):
    """A view maker that returns the rows themselves as views, without random changes.

    Args:
        records: Rows.
        widths: Numbers of columns of X and of Y after padding with zeros.
    """

    def __init__(self, records: ArrayRecords, widths: tuple[int, ...]) -> None:
        self._sides = {"image": records.x.padded(widths[0])}
        if records.y is not None:
            self._sides["text"] = records.y.padded(widths[1])

    def prefetch(self, batches: Iterable[np.ndarray], randomness: Randomness, step: int, device: torch.device) -> None:
        """See `ViewMaker.prefetch`; this class reads nothing ahead."""

    def __call__(self, indices: np.ndarray, randomness: Randomness, step: int, device: torch.device) -> dict[str, Tensor]:
        """Returns the rows of n records: ``{"image": (n, V, F)}``, and with Y also ``"text": (n, 1, F_t)``."""
        return {side: torch.from_numpy(_in_order(rows, indices)).to(device) for side, rows in self._sides.items()}


def same(row: np.ndarray) -> bytes:
    """Returns bytes by which a budget recognises a row; they depend on the row's numbers as float32, not on its type."""
    with np.errstate(over="ignore"):
        return (row.astype(np.float32) + np.float32(0)).tobytes()  # the addition turns -0 into 0


def _in_order(rows: Rows, indices: np.ndarray) -> np.ndarray:
    """Returns the rows with the given numbers, which may be in any order; see `Rows.block`."""
    order = np.argsort(indices, kind="stable")
    ascending = rows.block(indices[order])
    if (order == np.arange(len(order))).all():
        return ascending
    placed = np.empty_like(ascending)
    placed[order] = ascending
    return placed


def _refuse_lengths(x: Rows, y: Rows | None) -> None:
    if y is None:
        if not x.views:
            raise ArrayError(
                "Y is missing: give a second matrix, whose row i belongs to row i of X; or X of shape (rows, views, columns) "
                "with two views or more of each image. [arrays-one-matrix]"
            )
        return
    for rows in (x, y):
        if rows.views:
            raise ArrayError(
                f"{rows.name} has the shape {rows.shape}: with both X and Y, expected (rows, columns). Average views or "
                "captions of each record first. [arrays-views-beside]"
            )
    if len(x) != len(y):
        raise ArrayError(
            f"X has {len(x):,} rows and Y {len(y):,}: row i of each must belong to one record. For an image with several "
            "captions, average the captions' features. [arrays-lengths]"
        )
    if x.names is not None and y.names is not None and not x.names.equals(y.names):
        raise ArrayError("the names in the files of X and Y differ: row i of each must belong to one record. [arrays-names]")


def _numbered(groups: Any, rows: int) -> np.ndarray:
    """Numbers the groups from 0, ``(N,)`` uint64; a row without a group is a group by itself."""
    try:
        given = np.asarray(groups.detach().cpu() if hasattr(groups, "detach") else groups)
    except (TypeError, ValueError) as error:  # for example lists of different lengths
        raise ArrayError(f"groups is not a list of values ({error}): give one for each row. [arrays-groups-odd]") from error
    if given.shape != (rows,):
        raise ArrayError(
            f"groups has the shape {given.shape}: expected one value for each of the {rows:,} rows. [arrays-groups]"
        )
    if given.dtype.kind in "biumM":  # with `equal_nan=False`, each missing time (NaT) is a value by itself
        return np.unique(given, return_inverse=True, equal_nan=False)[1].astype(np.uint64)
    numbers: dict[Any, int] = {}
    values = [value.strip() if isinstance(value, str | bytes) else value for value in given.tolist()]
    try:
        names = [
            ("row", row) if value is None or value in ("", b"") or value != value else ("of", value)
            for row, value in enumerate(values)
        ]
        return np.fromiter((numbers.setdefault(name, len(numbers)) for name in names), np.uint64, len(names))
    except (TypeError, ValueError) as error:  # for example pandas' NA, or lists
        raise ArrayError(
            f"groups holds values that are neither numbers nor strings ({error}): give numbers or strings. [arrays-group-names]"
        ) from error
