"""A volume: one file of records, with the numbers of all that is in it.

A store consists of one volume, or of several that were written by processes that knew nothing of each other. What only all
records together say (that names are unique, who is held out, the fingerprint) is found from the volumes' numbers
(`dpfed.data.store.writing`).
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from dpfed.data.store.fingerprint import RECORD_BYTES, record_digest
from dpfed.data.store.mapped import records_schema
from dpfed.data.store.record import SPLITS, RecordInput, check_types, hold_out_hash, is_text, record_key
from dpfed.data.views.pixels import BrokenImage, decoded, decoders, encode, memory, square
from dpfed.errors import UserError

_BATCH_RECORDS = 1024
_BATCH_BYTES = 64 << 20  # images in memory before a batch is written
_THREAD_RECORDS = 32  # records that a thread decodes at a time: enough to pay for handing them over


@dataclass(frozen=True)
class Form:
    """What all records of a store have in common.

    Attributes:
        name: what the data set is called.
        kind: ``"image"`` or ``"image-text"``.
        size: side of square images, which are stored raw, pixels; ``None``: the original files are kept.
        public: anyone may see the records.
        label_names: what the class numbers of each label mean; every label that is used must be here.
        unit_name: what a unit is called, such as ``"person"``; ``None``: no record names one.
        hold_out: splits to which training records may be moved at the end.
    """

    name: str
    kind: str
    size: int | None = None
    public: bool = False
    label_names: Mapping[str, Sequence[str]] = field(default_factory=dict)
    unit_name: str | None = None
    hold_out: tuple[str, ...] = SPLITS[1:]

    @property
    def schema(self) -> pa.Schema:
        """Of the records."""
        return records_schema(self.size)


@dataclass(frozen=True)
class Volume:
    """What is known of a volume that is complete.

    Attributes:
        numbers: a row for each record: key, unit, split, digest, what decides who is held out, labels.
        batches: records in each batch of the file.
        broken: (id, reason) of the records that were left out.
        met: records that were met, with the broken ones.
        converted: what was done to images that stock open_clip cannot read sensibly -> to how many.
        resized: whether an image became a square by cropping and scaling.
        copies: ids that follow from what records hold -> how many of its records have them, where that is more than one, or
            where earlier volumes have such records, too.
    """

    numbers: pa.Table
    batches: Sequence[int]
    broken: Sequence[tuple[str, str]]
    met: int
    converted: Mapping[str, int]
    resized: bool
    copies: Mapping[str, int]


@dataclass(frozen=True)
class _Stored:
    """The bytes of an image in a store, and what was done to it."""

    content: bytes
    converted: str | None
    resized: bool = False


class VolumeWriter:
    """Writes records to a file, and gathers their numbers.

    Args:
        file: of the records; it is made.
        form: what the records have in common.
        key: of their fingerprint; empty for public ones.
        taken: ids that records before this volume have -> how many of them, where ids follow from what records hold.

    Attributes:
        broken: (id, reason) of the unreadable records met so far.
        converted: what was done to images so far (`dpfed.data.views.modes`).

    Raises:
        OSError: if the file cannot be written.
    """

    def __init__(self, file: Path, form: Form, key: bytes, taken: Mapping[str, int] | None = None) -> None:
        self.broken: list[tuple[str, str]] = []
        self.converted: Counter[str] = Counter()
        self._form, self._key, self._resized = form, key, False
        self._keys, self._units, self._splits = array("Q"), array("Q"), array("b")
        self._labels = {label: array("q") for label in form.label_names}
        self._hashes = {split: array("Q") for split in form.hold_out}
        self._digests = bytearray()
        self._batches: list[int] = []
        self._taken = dict(taken or {})
        self._copies = dict(self._taken)
        self._seen = {record_key(id) for id in self._taken}
        self._pending: list[RecordInput] = []
        self._pending_bytes = 0
        self._records, self._closed = pa.ipc.new_file(str(file), form.schema), False

    @property
    def met(self) -> int:
        """Records met so far, with the broken ones."""
        return len(self._seen) - len(self._taken)

    def add(self, record: RecordInput) -> None:
        """Adds a record; see `dpfed.data.store.writing.StoreWriter.add`."""
        check_types(record)
        if not is_text(record.id):
            self.reject(record.id, "name is not valid text")
            return
        self._check(record)
        captions = tuple(text.strip() for text in record.captions if text.strip())
        if self._form.kind == "image-text" and not captions:
            self.broken.append((record.called, "no caption"))
            return
        if not all(map(is_text, captions)):
            self.broken.append((record.called, "caption is not valid text"))
            return
        self._pending.append(replace(record, captions=captions))
        self._pending_bytes += max(memory(record.image), 3 * (self._form.size or 0) ** 2)
        if len(self._pending) >= _BATCH_RECORDS or self._pending_bytes >= _BATCH_BYTES:
            self._flush()

    def reject(self, id: str, reason: str) -> None:
        """Counts a record that is missing or unreadable at the source; see `dpfed.data.store.writing.StoreWriter.reject`."""
        id = id.encode("utf-8", "backslashreplace").decode()
        self._claim(id)
        self.broken.append((id, reason))

    def counted(self, id: str) -> str:
        """An id that is free; see `dpfed.data.store.writing.StoreWriter.counted`."""
        if record_key(id) not in self._seen:
            return id
        self._copies[id] = self._copies.get(id, 1) + 1
        return f"{id}+{self._copies[id]}"

    def finish(self) -> Volume:
        """Completes the file."""
        self._flush()
        self.close()
        columns = {
            "key": pa.array(np.frombuffer(self._keys, np.uint64)),
            "unit": pa.array(np.frombuffer(self._units, np.uint64)),
            "split": pa.array(np.frombuffer(self._splits, np.int8)),
            "digest": pa.FixedSizeBinaryArray.from_buffers(
                pa.binary(RECORD_BYTES), len(self._keys), [None, pa.py_buffer(bytes(self._digests))]
            ),
            **{f"hold out:{split}": pa.array(np.frombuffer(own, np.uint64)) for split, own in self._hashes.items()},
            **{f"label:{label}": pa.array(np.frombuffer(own, np.int64)) for label, own in self._labels.items()},
        }
        copies = {id: count - self._taken.get(id, 0) for id, count in self._copies.items()}
        return Volume(pa.table(columns), self._batches, self.broken, self.met, self.converted, self._resized, copies)

    def close(self) -> None:
        """Closes the file, once: Arrow would write its end again. Before `finish`, it is not complete."""
        if not self._closed:
            self._closed = True
            self._records.close()

    def _check(self, record: RecordInput) -> None:
        form = self._form
        if record.split not in SPLITS:
            raise ValueError(f"record {record.id!r}: unknown split {record.split!r}, expected one of {SPLITS}")
        if form.kind == "image" and record.captions:
            raise ValueError(f"record {record.id!r} has captions, in a store of kind 'image'")
        for label, number in record.labels.items():
            if label not in form.label_names:
                raise ValueError(f"record {record.id!r}: label {label!r} is not among {sorted(form.label_names)}")
            classes = len(form.label_names[label])
            if not -1 <= number < classes:
                raise UserError(
                    f"record {record.called!r} has {label} = {number}, and there are only {classes} classes; correct it."
                )
        if record.unit and form.unit_name is None:
            raise ValueError(f"record {record.id!r} has a unit, in a store without a unit name")
        if record.unit and not is_text(record.unit):
            raise UserError(f"record {record.called!r}: its {form.unit_name} {record.unit!r} is not valid text; rename it.")
        self._claim(record.id)

    def _claim(self, id: str) -> None:
        key = record_key(id)
        if key in self._seen:
            raise repeated(id)
        self._seen.add(key)

    def _flush(self) -> None:
        if not self._pending:
            return
        pending, self._pending, self._pending_bytes = self._pending, [], 0
        kept, images = [], []
        parts = [pending[start : start + _THREAD_RECORDS] for start in range(0, len(pending), _THREAD_RECORDS)]

        def encode_all(part: list[RecordInput]) -> list[_Stored | BrokenImage]:
            return list(map(self._encode, part))

        encoded = (stored for part in decoders().map(encode_all, parts) for stored in part)
        for record, stored in zip(pending, encoded, strict=True):
            if isinstance(stored, BrokenImage):
                self.broken.append((record.called, str(stored)))
                continue
            kept.append(record)
            images.append(stored.content)
            self.converted.update([stored.converted] if stored.converted else [])
            self._resized |= stored.resized
        if not kept:
            return
        columns = [[record.id for record in kept], images, [list(record.captions) for record in kept]]
        self._records.write_batch(pa.record_batch(columns, schema=self._form.schema))
        self._batches.append(len(kept))
        for record, image in zip(kept, images, strict=True):
            self._note(record, image)

    def _note(self, record: RecordInput, image: bytes) -> None:
        unit = record.unit or record.id
        key, of_unit = record_key(record.id), record_key(unit)
        self._digests += record_digest(self._key, record.id, image, record.captions, of_unit, record.labels)
        self._keys.append(key)
        self._units.append(of_unit)
        self._splits.append(SPLITS.index(record.split))
        for split, hashes in self._hashes.items():
            hashes.append(hold_out_hash(unit, split))
        for label, numbers in self._labels.items():
            numbers.append(record.labels.get(label, -1))

    def _encode(self, record: RecordInput) -> _Stored | BrokenImage:
        """What to store, or what is wrong with the image."""
        size = self._form.size
        try:
            with decoded(record.image) as (image, converted):
                if size is not None:
                    return _Stored(square(image, size).tobytes(), converted, image.size != (size, size))
                return _Stored(record.image if isinstance(record.image, bytes) else encode(image), converted)
        except BrokenImage as error:
            return error


def repeated(id: str) -> UserError:
    """The error of an id that two records have."""
    return UserError(f"the record id {id!r} occurs twice (or its hash does); ids must be unique.")
