"""Record stores: an immutable directory of records, memory-mapped, of which only what is asked for is read.

    store.json      format version, name, kind, counts, label names, and the sizes of the other files
    index.arrow     key, split, labels and unit (if any) of every record: small, always read
    records.arrow   id, image and captions, in batches of about a thousand records: mapped, read at access

A store is made by `dpfed.data.writing.StoreWriter` and never changed afterwards.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from dpfed.data.pixels import BrokenImage, decode, decoders, square
from dpfed.errors import UserError, nearest

FORMAT_VERSION = 2
SPLITS = ("train", "validation", "test")
KINDS = ("image", "image-text")
HEADER, INDEX, RECORDS = "store.json", "index.arrow", "records.arrow"
_RESIZED_AT_ONCE = 1024  # images resized at a time: bounds the float workspace


def record_key(id: str) -> int:
    """The stable 64-bit key of a record (or a unit): a hash of its id (or name) and of nothing else."""
    return int.from_bytes(hashlib.blake2b(id.encode(), digest_size=8).digest(), "little")


def is_text(text: str) -> bool:
    """Whether a text can be written as UTF-8; file names and JSON can hold halves of surrogate pairs, which cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_store(path: str | Path) -> bool:
    """Whether a path looks like a record store (it may still be damaged)."""
    return (Path(path) / HEADER).is_file()


class RecordStore:
    """Records on disk, by row. Open one with `RecordStore.open`.

    Attributes:
        path: the store's directory.
        name: what the data set is called.
        kind: ``"image"`` or ``"image-text"``.
        public: anyone may see the records.
        size: side of the stored images, pixels; ``None`` when the original files are stored.
        keys: ``(N,)`` uint64, a stable hash of each record's id; unique.
        units: ``(N,)`` uint64, the same for records that share a unit; ``None`` when the source names no units.
        unit_name: what a unit is called, such as ``"person"``; ``None``: there are none.
        labels: name -> ``(N,)`` int64, -1 where a record has none.
        label_names: name -> what the numbers mean.
        skipped: (id, reason) of the records that were left out as unreadable when the store was written.
    """

    def __init__(self, path: Path, header: dict[str, Any], index: pa.Table, records: pa.ipc.RecordBatchFileReader) -> None:
        self.path = path
        self.name: str = header["name"]
        self.kind: str = header["kind"]
        self.public: bool = header["public"]
        self.size: int | None = header["images"].get("size")
        self.label_names: dict[str, list[str]] = header["label_names"]
        self.skipped: list[tuple[str, str]] = [(entry["id"], entry["reason"]) for entry in header["skipped"]]
        self.unit_name: str | None = header.get("unit_name")  # absent in stores of format 1
        self.keys: np.ndarray = index["key"].to_numpy()
        self.units: np.ndarray | None = index["unit"].to_numpy() if self.unit_name else None
        self.labels: dict[str, np.ndarray] = {name: index[f"label:{name}"].to_numpy() for name in self.label_names}
        self._split: np.ndarray = index["split"].to_numpy()
        self._batches = [records.get_batch(number) for number in range(records.num_record_batches)]
        self._starts = np.cumsum([0] + [batch.num_rows for batch in self._batches])

    @classmethod
    def open(cls, path: str | Path) -> RecordStore:
        """Opens a store.

        Args:
            path: the store's directory.

        Raises:
            UserError: when there is no store, it is damaged, or a newer version of dpfed wrote it.
        """
        path = Path(path).absolute()
        header = _read_header(path)
        try:
            _check_sizes(path, header["files"])
            with pa.memory_map(str(path / INDEX)) as source:
                index = pa.ipc.open_file(source).read_all().combine_chunks()
            records = pa.ipc.open_file(pa.memory_map(str(path / RECORDS)))
            store = cls(path, header, index, records)
        except (pa.ArrowException, OSError, LookupError, TypeError, ValueError, AttributeError) as error:
            raise _damaged(path, f"its files cannot be read ({type(error).__name__})") from error
        if not len(store._split) == store._starts[-1] == header["records"]:
            raise _damaged(path, f"it says {header['records']} records and holds {store._starts[-1]}")
        return store

    def __len__(self) -> int:
        return len(self.keys)

    def __repr__(self) -> str:
        return f"RecordStore({str(self.path)!r}, {self.name!r}, {self.kind}, {len(self):,} records)"

    def __reduce__(self) -> tuple[Callable[..., RecordStore], tuple[Path]]:
        return RecordStore.open, (self.path,)  # another process maps the files itself

    def split(self, name: str) -> np.ndarray:
        """Rows of a split.

        Args:
            name: ``"train"``, ``"validation"`` or ``"test"``.

        Returns:
            ``(n,)`` int64, ascending; none when the store has no such records.

        Raises:
            UserError: for any other name.
        """
        if name not in SPLITS:
            raise UserError(f"unknown split {name!r}; {nearest(name, SPLITS)}")
        return np.flatnonzero(self._split == SPLITS.index(name))

    def share_units(self, first: str, second: str) -> bool:
        """Whether a unit has records in both of two splits."""
        if self.units is None:
            return False
        return bool(np.isin(self.units[self.split(first)], self.units[self.split(second)]).any())

    def ids(self, rows: np.ndarray) -> list[str]:
        """The records' ids, one for each row."""
        return self._column(rows, "id")

    def captions(self, rows: np.ndarray) -> list[list[str]]:
        """The records' captions, a list for each row; at least one each when the kind is ``"image-text"``."""
        return self._column(rows, "captions")

    def images(self, rows: np.ndarray, size: int, resize: str = "crop", interpolation: str = "bicubic") -> Tensor:
        """The records' images.

        Args:
            rows: ``(n,)`` rows, in any order.
            size: side, pixels.
            resize: how an original file becomes square: ``"crop"`` (shorter side, then the centre), ``"squash"`` (both sides,
                the ratio is lost) or ``"pad"`` (longer side, black borders). Images that are stored square stay whole.
            interpolation: ``"bicubic"`` or ``"bilinear"``.

        Returns:
            ``(n, 3, size, size)`` uint8.

        Raises:
            IndexError: for a row that does not exist.
            UserError: when a stored file cannot be decoded any more.
        """
        if self.size is None:
            return self._decoded(np.asarray(rows), size, resize, interpolation)
        whole = np.dtype((np.void, 3 * self.size**2))  # one element per image: a gather is then one memcpy each
        stored = np.empty(len(rows), whole)
        for places, batch, local in self._by_batch(rows):
            stored[places] = np.frombuffer(batch.column("image").buffers()[1], whole, len(batch))[local]
        images = torch.from_numpy(stored.view(np.uint8).reshape(-1, 3, self.size, self.size))
        return images if size == self.size else _resize(images, size, interpolation)

    def _decoded(self, rows: np.ndarray, size: int, resize: str, interpolation: str) -> Tensor:
        result = np.empty((len(rows), 3, size, size), np.uint8)

        def fill(place: int, encoded: pa.Scalar) -> None:
            try:
                result[place] = square(decode(encoded.as_py(), size), size, resize, interpolation)
            except BrokenImage as error:
                [id] = self.ids(rows[place : place + 1])
                raise _damaged(self.path, f"the image of {id!r} cannot be decoded ({error})") from error

        files = [
            (place, batch.column("image")[row])
            for places, batch, local in self._by_batch(rows)
            for place, row in zip(places.tolist(), local.tolist(), strict=True)
        ]
        for _ in decoders().map(lambda file: fill(*file), files):
            pass  # an error in a thread is raised here
        return torch.from_numpy(result)

    def _column(self, rows: np.ndarray, name: str) -> list[Any]:
        result: list[Any] = [None] * len(rows)
        for places, batch, local in self._by_batch(rows):
            values = batch.column(name).take(pa.array(local)).to_pylist()
            for place, value in zip(places.tolist(), values, strict=True):
                result[place] = value
        return result

    def _by_batch(self, rows: np.ndarray) -> Iterator[tuple[np.ndarray, pa.RecordBatch, np.ndarray]]:
        """Yields (places in `rows`, batch, rows of the batch)."""
        rows = np.asarray(rows, np.int64)
        if len(rows) == 0:
            return
        if rows.min() < 0 or rows.max() >= len(self):
            raise IndexError(f"rows {rows.min()}..{rows.max()} of a store with {len(self)} records")
        number = np.searchsorted(self._starts, rows, side="right") - 1
        order = np.argsort(number, kind="stable")
        for places in np.split(order, np.flatnonzero(np.diff(number[order])) + 1):
            which = number[places[0]]
            yield places, self._batches[which], rows[places] - self._starts[which]


def open_or_write(path: Path, write: Callable[[Path], object]) -> RecordStore:
    """Opens a store, after writing it if it is not there yet.

    Args:
        path: where the store is or will be.
        write: writes it; called at most once.

    Raises:
        UserError: when writing or opening fails.
    """
    if not path.exists():
        try:
            write(path)
        except UserError:
            if not path.exists():  # otherwise another process was faster, and its store will do
                raise
    return RecordStore.open(path)


def _resize(images: Tensor, size: int, interpolation: str) -> Tensor:
    result = images.new_empty(len(images), 3, size, size)
    for source, target in zip(images.split(_RESIZED_AT_ONCE), result.split(_RESIZED_AT_ONCE), strict=True):
        if len(source):
            resized = torch.nn.functional.interpolate(source.float(), (size, size), mode=interpolation, antialias=True)
            target.copy_(resized.round_().clamp_(0, 255))
    return result


def _read_header(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise UserError(f"there is no record store at {path}; import one with `dpfed data import`.")
    if not is_store(path):
        raise UserError(f"{path} is not a record store (it has no {HEADER}); import it with `dpfed data import` first.")
    try:
        header = json.loads((path / HEADER).read_text(encoding="utf-8"))
        version = header["dpfed_store"]
        if isinstance(version, int) and version > FORMAT_VERSION:
            raise UserError(
                f"{path} was written in store format {version}, and this dpfed reads up to {FORMAT_VERSION}; update dpfed."
            )
        complete = {"name", "kind", "public", "records", "images", "label_names", "skipped", "files"} <= header.keys()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(path, f"{HEADER} cannot be read") from error
    if not complete:
        raise _damaged(path, f"{HEADER} is incomplete")
    return header


def _check_sizes(path: Path, files: dict[str, int]) -> None:
    for name, expected in files.items():
        file = path / name
        actual = file.stat().st_size if file.is_file() else 0
        if actual != expected:
            raise _damaged(path, f"{name} has {actual:,} bytes instead of {expected:,}")


def _damaged(path: Path, what: str) -> UserError:
    return UserError(f"the record store {path} is damaged: {what}; delete it and import the data again.")
