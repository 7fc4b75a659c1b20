"""Reads every item of a data set once, for its key, unit, captions and labels, and for hashes of its contents.

Up to 256 items are read a second time, in another order. If an item differs then, it is not a function of its record, and the
data set is refused.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Dataset

from dpfed.data.items.item import BrokenItem, Part, Parts, content_of, described, hashed, part_of
from dpfed.data.items.loading import Failure
from dpfed.data.items.recognition import picture_of
from dpfed.data.processes import cores, loader_processes
from dpfed.errors import UserError

_CHUNK = 64  # items that a process reads at a time
_AGAIN = 256  # items that are read a second time
_SMALL = 64  # data sets of at most this many items are read in this process


@dataclass(frozen=True)
class Scanned:
    """The facts that an item gives about its record.

    Attributes:
        content: Hash of the image and the captions.
        picture: Hash of only the picture, in the form that `dpfed.data.items.recognition.picture_of` returns.
        captions: Captions of the record.
        labels: Labels by their names, as they stand in the item.
        key: Key that the item names, as a string; ``None``: the user gave no location of keys.
        unit: Unit that the item names, as a string; ``None``: the user gave no location of units.
    """

    content: bytes
    picture: bytes
    captions: tuple[str, ...]
    labels: dict[str, Any] = field(default_factory=dict)
    key: Any = None
    unit: Any = None


class _Scan(Dataset[Any]):
    def __init__(self, items: Sequence[Any], parts: Parts) -> None:
        self._items, self._parts = items, parts

    def __getitem__(self, rows: list[int]) -> list[Scanned | Failure]:
        return [self._one(row) for row in rows]

    def _one(self, row: int) -> Scanned | Failure:
        parts = self._parts
        try:
            item = self._items[row]
            if item is None:
                raise BrokenItem("it is None")
            captions = tuple(parts.captions_of(item))
            image = parts.image_of(item)
            content = hashed(content_of(image), *(caption.encode() for caption in captions))
            key, unit = (None if part is None else _name(part_of(item, part), part) for part in (parts.key, parts.unit))
            unit = unit and unit.strip()  # one person must not become two units
            return Scanned(content, hashed(picture_of(image)), captions, parts.labels_of(item), key, unit)
        except BrokenItem as error:
            return Failure(row, str(error))
        except Exception as error:  # whatever a foreign data set raises
            return Failure(row, f"{type(error).__name__}: {error}")


def scan(
    items: Sequence[Any], parts: Parts, workers: int | None = None, advance: Callable[[int], None] = lambda done: None
) -> list[Scanned]:
    """Reads every item of a data set, and returns the facts about the records in the order of the items.

    Args:
        items: Data set.
        parts: Locations of the parts of an item.
        workers: Number of processes; ``None``: one for each core.
        advance: Callback that receives the number of items read so far.

    Raises:
        UserError: If `items` is not a data set or has no length, an item is broken or differs when it is read again, or the
            length changes.
    """
    count = length_of(items)
    workers = 0 if count <= _SMALL else cores() if workers is None else workers
    workers = loader_processes(workers, (items, parts))
    read: list[Scanned] = []
    for scanned in _in_order(items, parts, list(range(count)), workers):
        read.append(scanned)
        if len(read) % _CHUNK == 0 or len(read) == count:
            advance(len(read))
    again = random.Random(0).sample(range(count), min(count, _AGAIN))  # noqa: S311 nothing is secret here
    for row, scanned in zip(again, _in_order(items, parts, again, min(workers, 1)), strict=True):
        if scanned != read[row]:
            raise UserError(
                f"item {row:,} was read twice and came out differently: an item has to be a function of its record alone. Take "
                "random transforms and shuffling out of the data set, and give the transform as views=. [records-unsteady]"
            )
    if length_of(items) != count:
        raise UserError(
            f"the data set had {count:,} items, and now has {length_of(items):,}: it must not change. [records-length-changed]"
        )
    return read


def length_of(items: Any) -> int:
    """Returns the number of items of a map-style data set.

    Raises:
        UserError: If `items` has no length, or is not a map-style data set.
    """
    if not hasattr(items, "__getitem__") or not hasattr(items, "__len__"):
        raise UserError(
            f"expected a data set with len() and [], got {described(items)}: read an iterable data set into a list, or write "
            "its records into a record store with dpfed.StoreWriter. [records-no-length]"
        )
    try:
        return int(len(items))
    except TypeError as error:
        raise UserError(f"the data set does not tell its length ({error}): give one that does. [records-untold]") from error


def _in_order(items: Sequence[Any], parts: Parts, rows: list[int], workers: int) -> Iterator[Scanned]:
    chunks = [rows[first : first + _CHUNK] for first in range(0, len(rows), _CHUNK)]
    reads = _Scan(items, parts)
    loaded = DataLoader(reads, batch_size=None, sampler=chunks, num_workers=workers, collate_fn=_as_it_is) if workers else None
    for chunk in loaded if loaded is not None else map(reads.__getitem__, chunks):
        for scanned in chunk:
            if isinstance(scanned, Failure):
                raise UserError(f"item {scanned.row:,} of the records cannot be used: {scanned.said}. [records-item]")
            yield scanned


def _as_it_is(value: Any) -> Any:
    return value


def _name(value: Any, part: Part) -> str:
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, bytes):
        return value.hex()
    if not isinstance(value, str | int) or isinstance(value, bool) or not str(value).strip():
        what = "a function" if callable(part) else repr(part)
        given = "a blank string" if isinstance(value, str) else described(value)
        raise BrokenItem(f"{what} gives {given}, expected a string or a whole number")
    return str(value)
