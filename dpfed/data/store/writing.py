"""Writes a record store completely, or not at all."""

from __future__ import annotations

import json
import shutil
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from types import TracebackType

import numpy as np
import pyarrow as pa

from dpfed.data.decoding import BrokenImage, decoded, decoders, encode, holds_several, memory
from dpfed.data.limits import stored_side, whole_number
from dpfed.data.reasons import by_reason, mending
from dpfed.data.resizing import square
from dpfed.data.store.fingerprint import contents_header, new_key, record_digest
from dpfed.data.store.layout import FORMAT_VERSION, HEADER, INDEX, MOST_SKIPPED, RECORDS
from dpfed.data.store.mapped import records_schema, with_starts
from dpfed.data.store.record import KINDS, SPLITS, RecordInput, check_types, hold_out_hash, is_text, record_key, selected
from dpfed.errors import UserError
from dpfed.files.atomic import cannot_write, name_directory, start_directory
from dpfed.paths import local_path

_BATCH_RECORDS = 1024
_BATCH_BYTES = 64 << 20  # images in memory before a batch is written
_THREAD_RECORDS = 32  # records that a thread decodes at a time: enough to outweigh the cost of handing them over


@dataclass(frozen=True)
class _Stored:
    """An image as the store keeps it.

    Attributes:
        content: Bytes that are stored: a file, or raw pixels.
        converted: Conversion that stock open_clip makes necessary (`dpfed.data.modes`); ``None``: there was none.
        resized: Whether the image was cropped or scaled.
        several: Whether the file holds further pictures, which are not used.
    """

    content: bytes
    converted: str | None
    resized: bool = False
    several: bool = False


class StoreWriter:
    """Writes a record store, as a context manager.

    All files are written to a hidden directory beside `path`, which is renamed to `path` at the end of the ``with`` block. If
    the block fails, the hidden directory is removed, so a store is either complete or absent. Every image is decoded once, so
    no unreadable image is stored.

    Args:
        path: Directory to create for the store; it must not exist.
        name: Name of the data set.
        kind: ``"image"`` or ``"image-text"``.
        size: Side, pixels, of the square raw images to store; they are read fast. ``None``: the original files are stored.
        public: Whether anyone may see the records.
        label_names: For each label name that records use, the names of its classes in the order of their numbers.
        skip_broken: Whether to leave unreadable records out and list them in the store; otherwise no store is written if there
            is an unreadable record.
        unit_name: Name of the kind of unit, such as ``"person"``; ``None``: no record names a unit.

    Attributes:
        broken: (id, reason) of the unreadable records found so far, and of all that was given to `reject`.
        converted: Number of images that were converted because stock open_clip would destroy them (`dpfed.data.modes`), for
            each kind of conversion.
        several: Number of files with several pictures, of which only the first is used.
        repeated: Number of training records with the same picture as an earlier one; known after the ``with`` block.
        shared: Number of held-out records with the same picture as a training record; known after the ``with`` block.

    Raises:
        UserError: If `size` is not a valid side, `path` exists or cannot be written, a field of a record has a wrong type, an
            id occurs twice, a class number is out of range, there are no records, no training record is left after holding out,
            or records are unreadable and `skip_broken` is not set.
        ValueError: If a kind, split or label is unknown, a record has captions in a store of kind ``"image"``, or a record has
            a unit in a store without `unit_name`.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        name: str,
        kind: str,
        size: int | None = None,
        public: bool = False,
        label_names: Mapping[str, Sequence[str]] | None = None,
        skip_broken: bool = False,
        unit_name: str | None = None,
    ) -> None:
        if kind not in KINDS:
            raise ValueError(f"unknown kind {kind!r}, expected one of {KINDS}")
        self.path = local_path(path, "the place of the new store")
        self.broken: list[tuple[str, str]] = []
        self.converted: Counter[str] = Counter()
        self.several = self.repeated = self.shared = 0
        self._name = name
        self._kind = kind
        self._size = stored_side(size)
        self._public = public
        self._unit_name = unit_name
        self._label_names = {label: list(names) for label, names in (label_names or {}).items()}
        self._skip_broken, self._key, self._resized = skip_broken, new_key(public), False
        self._held_out: list[tuple[int, str]] = []
        self._seen: set[int] = set()
        self._copies: Counter[str] = Counter()
        self._pending: list[RecordInput] = []
        self._pending_bytes = 0
        self._batches: list[int] = []
        self._digests, self._splits = bytearray(), array("b")
        self._keys, self._units, self._pictures = array("Q"), array("Q"), array("Q")
        self._labels = {label: array("q") for label in self._label_names}
        self._hashes = {split: array("Q") for split in SPLITS[1:]}

    def __enter__(self) -> StoreWriter:
        self._partial = start_directory(self.path)
        self._schema = records_schema(self._size)
        try:
            self._records = pa.ipc.new_file(str(self._partial / RECORDS), self._schema)
        except OSError as error:
            shutil.rmtree(self._partial, ignore_errors=True)
            raise cannot_write(self.path, error) from error
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if error is None:
                self._flush()
            self._records.close()
            if error is None:
                self._write_around()
                name_directory(self._partial, self.path)
        except OSError as failure:
            raise cannot_write(self.path, failure) from failure
        finally:
            shutil.rmtree(self._partial, ignore_errors=True)

    def add(self, record: RecordInput) -> None:
        """Adds a record.

        A record with an id or caption that is not valid text, or without a needed caption, is only listed in `broken`.

        Raises:
            UserError: If a field has a wrong type, the id was added before, a class number is out of range, or the unit's name
                is not valid text.
            ValueError: If a split or label is unknown, or the record has captions or a unit that the store cannot hold.
            OSError: If a batch of records cannot be written.
        """
        check_types(record)
        if not is_text(record.id):
            self.reject(record.id, "name is not valid text")
            return
        record = replace(record, unit=(record.unit or "").strip() or None)
        self._check(record)
        captions = tuple(text.strip() for text in record.captions if text.strip())
        if self._kind == "image-text" and not captions:
            self.broken.append((record.called, "no caption"))
            return
        if not all(map(is_text, captions)):
            self.broken.append((record.called, "caption is not valid text"))
            return
        self._pending.append(replace(record, captions=captions))
        self._pending_bytes += max(memory(record.image), 3 * (self._size or 0) ** 2)
        if len(self._pending) >= _BATCH_RECORDS or self._pending_bytes >= _BATCH_BYTES:
            self._flush()

    def reject(self, id: str, reason: str) -> None:
        """Adds to `broken` a record that is missing or unreadable at the source.

        Args:
            id: Id that the record would have had, or its position at the source.
            reason: Reason in a few words.
        """
        self.broken.append((id.encode("utf-8", "backslashreplace").decode(), reason))

    def counted(self, id: str) -> str:
        """Returns an id that no record has yet: the given id, or the given id with a number if a record already has it.

        This is for ids that are hashes of the whole record. Records with the same id are then equal, so it does not matter
        which record gets which number: if one of these records is removed, the highest number is missing.
        """
        if record_key(id) not in self._seen:
            return id
        self._copies[id] += 1
        return f"{id}+{self._copies[id] + 1}"

    def hold_out(self, count: int, split: str) -> None:
        """Moves at least `count` training records to another split: the units with the smallest hashes (`hold_out_hash`).

        Without units, exactly `count` records are moved. With units it may be a few more, so that all records of a unit stay
        together. The choice depends only on the names of the units (or ids of the records), not on their order. The records
        are moved at the end of the ``with`` block, before any private mechanism runs: the privacy guarantee is about the
        training split that remains.

        Args:
            count: Smallest number of records to move.
            split: ``"validation"`` or ``"test"``.

        Raises:
            UserError: If `count` is not a number of records; at the end of the block, if no training record would be left.
            ValueError: If `split` has another value.
        """
        if split not in SPLITS[1:]:
            raise ValueError(f"records are held out for one of {SPLITS[1:]}, got {split!r}")
        self._held_out.append((whole_number(count, f"the number of {split} records"), split))

    def _check(self, record: RecordInput) -> None:
        if record.split not in SPLITS:
            raise ValueError(f"record {record.id!r}: unknown split {record.split!r}, expected one of {SPLITS}")
        if self._kind == "image" and record.captions:
            raise ValueError(f"record {record.id!r} has captions, in a store of kind 'image'")
        for label, number in record.labels.items():
            if label not in self._label_names:
                raise ValueError(f"record {record.id!r}: label {label!r} is not among {sorted(self._label_names)}")
            classes = len(self._label_names[label])
            if not -1 <= number < classes:
                raise UserError(
                    f"record {record.called!r}: the class {label} = {number} must be from 0 to {classes - 1}, or -1 for no "
                    "class; correct it. [class-range]"
                )
        if record.unit and self._unit_name is None:
            raise ValueError(f"record {record.id!r} has a unit, in a store without a unit name")
        if record.unit and not is_text(record.unit):
            raise UserError(f"record {record.called!r}: {self._unit_name} {record.unit!r} is not UTF-8; rename it. [unit-text]")
        self._claim(record.id)

    def _claim(self, id: str) -> None:
        key = record_key(id)
        if key in self._seen:
            raise UserError(
                f"the record id {id!r} occurs twice (or its hash does); ids must be unique. [record-id-twice]",
                command="--id names another column of Parquet; with --id content, a hash of each record is its id.",
            )
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
            self.several += stored.several
            self._note(record, stored.content)
        if kept:
            columns = [[record.id for record in kept], images, [list(record.captions) for record in kept]]
            self._records.write_batch(pa.record_batch(columns, schema=self._schema))
            self._batches.append(len(kept))

    def _note(self, record: RecordInput, image: bytes) -> None:
        unit = record.unit or record.id
        of_unit = record_key(unit)
        self._digests += record_digest(self._key, record.id, image, record.captions, of_unit, record.labels)
        self._keys.append(record_key(record.id))
        self._units.append(of_unit)
        self._pictures.append(int.from_bytes(blake2b(image, digest_size=8).digest()))
        self._splits.append(SPLITS.index(record.split))
        for split, hashes in self._hashes.items():
            hashes.append(hold_out_hash(unit, split))
        for label, numbers in self._labels.items():
            numbers.append(record.labels.get(label, -1))

    def _encode(self, record: RecordInput) -> _Stored | BrokenImage:
        """Returns a record's image as the store keeps it, or the error if the image cannot be read."""
        size, several = self._size, holds_several(record.image)
        try:
            with decoded(record.image) as (image, converted):
                if size is not None:
                    return _Stored(square(image, size).tobytes(), converted, image.size != (size, size), several)
                whole = record.image if isinstance(record.image, bytes) else encode(image)
                return _Stored(whole, converted, several=several)
        except BrokenImage as error:
            return error

    def _write_around(self) -> None:
        """Moves the held-out records to their splits, and writes the index and the header of the store.

        Raises:
            UserError: If records are unreadable and `skip_broken` is not set, there are no records, or no training record would
                be left.
            OSError: If a file cannot be written.
        """
        broken, met = self.broken, len(self.broken) + len(self._keys)
        sentence = f"{len(broken):,} of {met:,} records cannot be read: {'; '.join(by_reason(broken))}" if broken else ""
        if broken and not self._skip_broken:
            raise UserError(f"{sentence}; {mending(broken)}. [record-unreadable]")
        if not self._keys:
            raise UserError(f"no records to write to {self.path}{f'. {sentence}' if sentence else ''}. [store-no-records]")
        splits, units = np.array(self._splits, np.int8), np.frombuffer(self._units, np.uint64)
        for count, split in self._held_out:
            self._move(splits, count, split)
        self._compare(splits == 0)
        columns = {"key": np.frombuffer(self._keys, np.uint64), "split": splits}
        if self._unit_name:
            columns["unit"] = units
        columns |= {f"label:{label}": np.frombuffer(numbers, np.int64) for label, numbers in self._labels.items()}
        write_index(self._partial / INDEX, pa.table(columns), self._batches)
        images: dict[str, object] = {"encoding": "encoded"} if self._size is None else {"encoding": "raw", "size": self._size}
        # Optional entries are written only where they apply.
        header = {
            "dpfed_store": FORMAT_VERSION,
            "name": self._name,
            "kind": self._kind,
            "public": self._public,
            "records": len(splits),
            "splits": {split: int((splits == number).sum()) for number, split in enumerate(SPLITS)},
            "images": images | ({"resized": True} if self._resized else {}),
            "label_names": self._label_names,
            "unit_name": self._unit_name,
            **({"training_units": len(np.unique(units[splits == 0]))} if self._unit_name else {}),
            "skipped": [{"id": id, "reason": reason} for id, reason in broken[:MOST_SKIPPED]],
            **({"left_out": len(broken)} if len(broken) > MOST_SKIPPED else {}),
            "files": {name: (self._partial / name).stat().st_size for name in (INDEX, RECORDS)},
            **({"converted": dict(sorted(self.converted.items()))} if self.converted else {}),
            "contents": contents_header(self._key, self._digests, splits),
        }
        (self._partial / HEADER).write_text(json.dumps(header, indent=1), encoding="utf-8")

    def _compare(self, training: np.ndarray) -> None:
        """Counts pictures that occur several times: sets `repeated` and `shared`.

        Args:
            training: Whether each record is a training record, ``(N,)`` bool.
        """
        pictures = np.frombuffer(self._pictures, np.uint64)
        distinct = np.unique(pictures[training])
        self.repeated = int(training.sum()) - len(distinct)
        self.shared = int(np.isin(pictures[~training], distinct).sum())

    def _move(self, splits: np.ndarray, count: int, split: str) -> None:
        """Moves training records to another split, see `hold_out`.

        Args:
            splits: Number of each record's split, ``(N,)`` int8, in which this method enters the moves.
            count: Smallest number of records to move.
            split: Name of the other split.

        Raises:
            UserError: If no training record would be left.
        """
        training = np.flatnonzero(splits == 0)
        moved = selected(np.frombuffer(self._hashes[split], np.uint64)[training], count)
        if count and moved.all():
            what = f" (all records of one {self._unit_name} are held out together)" if self._unit_name else ""
            raise UserError(
                f"cannot hold out {count:,} records for {split}: some of the {len(training):,} training records must be "
                f"left{what}; hold out fewer. [split-too-large]"
            )
        splits[training[moved]] = SPLITS.index(split)


def write_index(file: Path, table: pa.Table, batches: Sequence[int]) -> None:
    """Writes the index file of a store.

    Args:
        file: File to create.
        table: Key, split, unit (if any) and labels of each record, as columns.
        batches: Number of records in each batch of the file of records.
    """
    schema = with_starts(table.schema, batches)
    with pa.ipc.new_file(str(file), schema) as writer:
        writer.write_table(table.cast(schema))
