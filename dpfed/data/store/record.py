"""One record as input of a store, the names of the splits and kinds, and the key that follows from a record's id.

This module also chooses the training records that are held out. The choice depends only on the names of records and units, so
it is the same on every machine and in any order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
from PIL import Image

from dpfed.data.decoding import ImageInput
from dpfed.data.limits import whole_number
from dpfed.errors import UserError

SPLITS = ("train", "validation", "test")
KINDS = ("image", "image-text")


@dataclass(frozen=True)
class RecordInput:
    """One record to be stored.

    Attributes:
        id: Unique and stable name of the record.
        image: Encoded file, PIL image, or uint8 array ``(H, W)`` or ``(H, W, 3)``.
        captions: Texts of the image; blank ones are dropped.
        labels: Class number for each label name; -1 or no entry: the record has no class of this label.
        split: ``"train"``, ``"validation"`` or ``"test"``.
        unit: Name of the record's privacy unit, such as a person; spaces around it do not count. ``None`` or blank: the record
            is its own unit.
        place: Position of the record at its source, for messages; ``None``: messages use the id.
    """

    id: str
    image: ImageInput
    captions: tuple[str, ...] = ()
    labels: dict[str, int] = field(default_factory=dict)
    split: str = "train"
    unit: str | None = None
    place: str | None = None

    @property
    def called(self) -> str:
        """The name of the record in messages: its place, or its id if the place is not known."""
        return self.place or self.id


def record_key(id: str) -> int:
    """Returns the stable 64-bit key of a record (or a unit): a hash of its id (or name) and of nothing else."""
    return int.from_bytes(hashlib.blake2b(id.encode(), digest_size=8).digest(), "little")


def is_text(text: str) -> bool:
    """Returns whether a text can be written as UTF-8. File names and JSON can hold lone surrogates, which cannot be written."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_types(record: RecordInput) -> None:
    """Checks the types of a record's fields.

    Without this check, some wrong types would pass silently: one string in place of several would be read as one caption for
    each letter.

    Raises:
        UserError: If a field has a wrong type, or the number of a class is below -1.
    """
    if not isinstance(record, RecordInput):
        raise UserError(f"expected a dpfed.RecordInput, got {type(record).__name__}. [record-type]")
    if not isinstance(record.id, str):
        raise UserError(f"the id of a record must be a string, got {record.id!r}. [record-id-text]")
    if not isinstance(record.unit, str | None):
        raise UserError(f"record {record.called!r}: its unit must be a string or None, got {record.unit!r}. [record-unit]")
    captions = record.captions
    if isinstance(captions, str) or not isinstance(captions, Collection) or not all(isinstance(text, str) for text in captions):
        raise UserError(
            f"record {record.called!r}: captions must be a sequence of strings, as in ('a cat',). [record-captions]"
        )
    if not isinstance(record.labels, Mapping):
        raise UserError(f"record {record.called!r}: expected its labels as a dictionary from names to numbers. [record-labels]")
    for label, number in record.labels.items():
        whole_number(number, f"record {record.called!r}: its label {label!r}", -1)
    if not isinstance(record.image, bytes | np.ndarray | Image.Image):
        raise UserError(
            f"record {record.called!r}: expected its image as the bytes of a file, a PIL image or a uint8 array (H, W, 3) or "
            f"(H, W), got {type(record.image).__name__}. [record-image]"
        )


def hold_out_hash(unit: str, split: str) -> int:
    """Returns the hash that decides whether a unit is held out for a split: the units with the smallest hashes are held out.

    Args:
        unit: Name of the unit, or the id of a record that is its own unit.
        split: Name of the split; it is part of the hash's key, so that the choices for different splits are unrelated.
    """
    return int.from_bytes(hashlib.blake2b(unit.encode(), key=f"dpfed {split}".encode(), digest_size=8).digest(), "little")


def selected(hashes: np.ndarray, count: int) -> np.ndarray:
    """Selects whole units in the ascending order of their hashes until at least `count` records are selected.

    Args:
        hashes: Hash of each record's unit, ``(n,)`` uint64.
        count: Smallest number of records to select.

    Returns:
        Whether each record is selected, ``(n,)`` bool. If each record is its own unit, exactly `count` records are selected, or
        all if there are fewer.
    """
    units, sizes = np.unique(hashes, return_counts=True)
    return np.isin(hashes, units[np.cumsum(sizes) - sizes < count])
