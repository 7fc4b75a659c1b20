"""Writing a record store: all of it, or nothing."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import numpy as np
import pyarrow as pa

from dpfed.data.limits import stored_side, whole_number
from dpfed.data.reasons import by_reason, mending
from dpfed.data.store.fingerprint import RECORD_BYTES, fingerprint_of, new_key
from dpfed.data.store.layout import FORMAT_VERSION, HEADER, INDEX, MOST_SKIPPED, RECORDS, SKIPPED, volume_files
from dpfed.data.store.mapped import RecordsFile, with_starts
from dpfed.data.store.record import KINDS, SPLITS, RecordInput, selected
from dpfed.data.store.volume import Form, Volume, VolumeWriter, repeated
from dpfed.errors import UserError
from dpfed.files.atomic import cannot_write, name_directory, start_directory
from dpfed.paths import local_path


class StoreWriter:
    """Writes a record store; a context manager.

    Everything goes to a hidden directory beside `path` that is renamed at the end of the ``with`` block. When the block fails,
    it is removed, so a store is either complete or absent. Every image is decoded once: none that cannot be read gets in.

    Args:
        path: the directory to create; must not exist.
        name: what the data set is called.
        kind: ``"image"`` or ``"image-text"``.
        size: store square images of this side, raw (fast); ``None``: keep the original files.
        public: anyone may see the records.
        label_names: what the class numbers of each label mean; every label that is used must be here.
        skip_broken: leave unreadable records out, and list them in the store, instead of refusing to write it.
        unit_name: what a unit is called, such as ``"person"``; ``None``: no record names one.

    Attributes:
        broken: (id, reason) of the unreadable records met so far.
        converted: what was done to images that stock open_clip cannot read sensibly -> how many they are
            (`dpfed.data.views.modes`).

    Raises:
        UserError: when `path` exists, an id occurs twice, a class number is out of range, no record is left, or records are
            unreadable.
        ValueError: for labels, kinds, splits or units that the store does not know.
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
        names = {label: list(names) for label, names in (label_names or {}).items()}
        self._form = Form(name, kind, stored_side(size), public, names, unit_name)
        self.path = local_path(path, "the place of the new store")
        self.broken: list[tuple[str, str]] = []
        self.converted: Counter[str] = Counter()
        self._skip_broken, self._key = skip_broken, new_key(public)
        self._held_out: list[tuple[int, str]] = []

    def __enter__(self) -> StoreWriter:
        self._partial = start_directory(self.path)
        try:
            self._volume = VolumeWriter(self._partial / RECORDS, self._form, self._key)
        except OSError as error:
            shutil.rmtree(self._partial, ignore_errors=True)
            raise cannot_write(self.path, error) from error
        self.broken, self.converted = self._volume.broken, self._volume.converted
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if error is None:
                write_around(
                    self._partial, self.path, self._form, self._key, [self._volume.finish()], self._held_out, self._skip_broken
                )
                name_directory(self._partial, self.path)
            else:
                self._volume.close()
        except OSError as failure:
            raise cannot_write(self.path, failure) from failure
        finally:
            shutil.rmtree(self._partial, ignore_errors=True)

    def add(self, record: RecordInput) -> None:
        """Adds a record.

        Raises:
            UserError: when its id was added before, or for a class number out of range.
            ValueError: for a label, split or unit that the store does not know.
        """
        self._volume.add(record)

    def reject(self, id: str, reason: str) -> None:
        """Counts a record whose image is missing or unreadable at the source.

        Args:
            id: the id that the record would have had, or where it stands at the source.
            reason: a few words.
        """
        self._volume.reject(id, reason)

    def counted(self, id: str) -> str:
        """An id that is free: the given one, or with a number for each further record that has it.

        For ids that follow from all that a record holds. Records that share one are then equal, and which of them has which
        number means nothing: with one of them less, the highest number is missing.
        """
        return self._volume.counted(id)

    def hold_out(self, count: int, split: str) -> None:
        """Moves training records to another split: whole units, those with the smallest keyed hash, `count` records or more.

        Without units that is exactly `count`; with units it may be a few more, so that no unit is torn apart. The choice
        depends on the units (ids) alone, not on their order, and is made at the end of the ``with`` block, before any private
        mechanism runs: the guarantee is about the training split that results.

        Args:
            count: how many, at least.
            split: ``"validation"`` or ``"test"``.

        Raises:
            UserError: when that is not a number of records; at the end of the block, when it would leave no training record.
        """
        self._held_out.append((whole_number(count, f"the number of {split} records"), split))


def write_around(
    folder: Path,
    path: Path,
    form: Form,
    key: bytes,
    volumes: Sequence[Volume],
    held_out: Sequence[tuple[int, str]],
    skip_broken: bool,
    left_out: Sequence[tuple[str, str]] = (),
) -> None:
    """Writes what makes a store of volumes: index and header.

    Args:
        folder: holds the files of the volumes, see `volume_files`.
        path: what the folder will be called.
        form: what the records have in common.
        key: of their fingerprint.
        volumes: in the order of their files.
        held_out: how many training records go to which split, in this order.
        skip_broken: leave unreadable records out, instead of refusing.
        left_out: (id, reason) of what is left out beside the volumes' own records.

    Raises:
        UserError: for unreadable records, no records, ids that occur twice, or more held out than there are.
        OSError: if a file cannot be written.
    """
    broken = [*left_out, *((id, reason) for volume in volumes for id, reason in volume.broken)]
    met = len(left_out) + sum(volume.met for volume in volumes)
    sentence = f"{len(broken):,} of {met:,} records cannot be read: {'; '.join(by_reason(broken))}" if broken else ""
    if broken and not skip_broken:
        raise UserError(f"{sentence}; {mending(broken)}.")
    numbers = pa.concat_tables(volume.numbers for volume in volumes).combine_chunks()
    if not len(numbers):
        raise UserError(f"there are no records to write to {path}{f': {sentence}' if sentence else ''}.")
    files = volume_files(len(volumes))
    if len(volumes) > 1:
        refuse_repeated(folder, files, volumes, _column(numbers, "key"))
    splits = _column(numbers, "split").copy()
    for count, split in held_out:
        _hold_out(splits, numbers, count, split, form.unit_name)
    batches = {file: volume.batches for file, volume in zip(files, volumes, strict=True)}
    _write_index(folder / INDEX, numbers, splits, form, batches)
    digests = np.frombuffer(numbers["digest"].chunk(0).buffers()[1], np.uint8).reshape(-1, RECORD_BYTES)
    units = len(np.unique(_column(numbers, "unit")[splits == 0])) if form.unit_name else None
    skipped = [{"id": id, "reason": reason} for id, reason in broken]
    converted = sum((Counter(volume.converted) for volume in volumes), Counter[str]())
    # What does not apply to most stores is left out of them.
    header = {
        "dpfed_store": FORMAT_VERSION,
        "name": form.name,
        "kind": form.kind,
        "public": form.public,
        "records": len(numbers),
        "splits": {split: int((splits == number).sum()) for number, split in enumerate(SPLITS)},
        "images": _images(form, any(volume.resized for volume in volumes)),
        "label_names": form.label_names,
        "unit_name": form.unit_name,
        **({} if units is None else {"training_units": units}),
        **({} if len(volumes) == 1 else {"volumes": len(volumes)}),
        "skipped": skipped[:MOST_SKIPPED],
        "files": {name: (folder / name).stat().st_size for name in (INDEX, *files)},
        **({"converted": dict(sorted(converted.items()))} if converted else {}),
        "contents": {"fingerprint": fingerprint_of(key, digests, splits)} | ({"key": key.hex()} if key else {}),
    }
    if len(skipped) > MOST_SKIPPED:
        (folder / SKIPPED).write_text("".join(f"{json.dumps(one)}\n" for one in skipped), encoding="utf-8")
        header["left_out"] = len(skipped)
    (folder / HEADER).write_text(json.dumps(header, indent=1), encoding="utf-8")


def _images(form: Form, resized: bool) -> dict[str, object]:
    """How images are stored, as the header says it."""
    stored: dict[str, object] = {"encoding": "encoded"} if form.size is None else {"encoding": "raw", "size": form.size}
    return stored | ({"resized": True} if resized else {})


def _write_index(file: Path, numbers: pa.Table, splits: np.ndarray, form: Form, batches: Mapping[str, Sequence[int]]) -> None:
    """What the store says of each record in numbers, and where each file's batches begin."""
    columns = {
        "key": numbers["key"],
        "split": splits,
        **({"unit": numbers["unit"]} if form.unit_name else {}),
        **{name: numbers[name] for name in numbers.column_names if name.startswith("label:")},
    }
    table = pa.table(columns)
    schema = with_starts(table.schema, batches)
    with pa.ipc.new_file(str(file), schema) as writer:
        writer.write_table(table.cast(schema))


def repeats(keys: np.ndarray) -> np.ndarray:
    """Places of the keys that occur more than once, ascending."""
    order = np.argsort(keys, kind="stable")
    same = np.diff(keys[order]) == 0
    return np.sort(order[np.append(same, False) | np.append(False, same)])


def refuse_repeated(folder: Path, files: Sequence[str], volumes: Sequence[Volume], keys: np.ndarray) -> None:
    """Refuses records of several volumes that have one id.

    Raises:
        UserError: naming it.
    """
    if not len(found := repeats(keys)):
        return
    starts = np.cumsum([0] + [len(volume.numbers) for volume in volumes])
    which = int(np.searchsorted(starts, found[0], side="right")) - 1
    raise repeated(ids_at(folder / files[which], volumes[which], found[:1] - starts[which])[0])


def ids_at(file: Path, volume: Volume, rows: np.ndarray) -> list[str]:
    """The ids of some records of a volume."""
    starts = np.cumsum([0, *volume.batches])
    records = RecordsFile(file, starts)
    batches = np.searchsorted(starts, rows, side="right") - 1
    return [records.batch(int(batch))["id"][int(row - starts[batch])].as_py() for row, batch in zip(rows, batches, strict=True)]


def _hold_out(splits: np.ndarray, numbers: pa.Table, count: int, split: str, unit_name: str | None) -> None:
    """Moves training records to another split, see `StoreWriter.hold_out`."""
    training = np.flatnonzero(splits == 0)
    moved = selected(_column(numbers, f"hold out:{split}")[training], count)
    if count and moved.all():
        what = f" and whole {unit_name}s are held out" if unit_name else ""
        raise UserError(
            f"cannot hold out {count:,} records for {split}: there are {len(training):,} training records{what}, "
            "and some must be left; ask for fewer."
        )
    splits[training[moved]] = SPLITS.index(split)


def _column(table: pa.Table, name: str) -> np.ndarray:
    column = table[name]
    return column.chunk(0).to_numpy() if column.num_chunks == 1 else column.to_numpy()
