"""Record stores: directories of records that never change. Their files are memory-mapped, so only what is used is read.

One file is the index (key, split, labels and unit of every record). Another file has the records themselves (id, image and
captions, in batches). `dpfed.data.store.layout` lists the files.
`dpfed.data.store.writing.StoreWriter` writes a store.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from dpfed.data.record_set import RecordSet, split_number
from dpfed.data.store.index import Index
from dpfed.data.store.layout import INDEX, RECORDS, Layout, damaged, read_layout
from dpfed.data.store.mapped import Damage, MappedBatches, check_index, starts_of
from dpfed.data.store.pictures import Pictures
from dpfed.errors import UserError
from dpfed.paths import local_path

if TYPE_CHECKING:  # torch takes seconds and half a gigabyte, and importing or counting records does not need it
    from torch import Tensor


class RecordStore(RecordSet):
    """Records on disk, which are read by their index. `RecordStore.open` opens a store.

    Attributes:
        path: Directory of the store.
        name: Name of the data set.
        kind: ``"image"`` or ``"image-text"``.
        public: Whether anyone may see the records.
        size: Side of the stored images, pixels; ``None``: the original files are stored.
        resized: Whether at least one image was cropped or scaled (bicubic) to a square of side `size` before it was stored.
        converted: Number of images that were converted because stock open_clip would destroy them (`dpfed.data.modes`), for
            each kind of conversion.
        batches: Records as they are stored (id, image, captions); iterating yields each batch with its indices.
        pictures: Reader of the records' images (`dpfed.data.store.pictures`).
        index: Key, split, unit (if any) and labels of every record (`dpfed.data.store.index`).
        keys: Stable and unique hash of each record's id, ``(N,)`` uint64. Keys, units and labels are memory-mapped.
        units: Key of each record's unit, ``(N,)`` uint64; ``None``: the source names no units.
        unit_name: Name of the kind of unit, such as ``"person"``; ``None``: the source names no units.
        splits: Split of each record, an index into `dpfed.data.store.record.SPLITS`, ``(N,)`` int8.
        labels: For each label name, the class numbers of the records, ``(N,)`` int64; -1 for a record without the label.
        label_names: For each label name, the names of its classes in the order of their numbers.
        left_out: Number of all that was left out when the store was written: unreadable records, and files, folders and columns
            that the import did not read.
        contents: Fingerprint of all records of the whole store (`dpfed.data.store.fingerprint`).
        contents_key: Secret key of the fingerprint, which must not leave the store; ``None``: the records are public.
    """

    def __init__(self, path: Path, layout: Layout, index: Index, batches: MappedBatches) -> None:
        self.path, self._layout, header = path, layout, layout.header
        self.name: str = header["name"]
        self.kind: str = header["kind"]
        self.public: bool = header["public"]
        self.size: int | None = header["images"].get("size")
        self.resized: bool = header["images"].get("resized", False)
        self.converted: dict[str, int] = header.get("converted", {})
        self.label_names: dict[str, list[str]] = header["label_names"]
        self.unit_name: str | None = header["unit_name"]
        self.left_out: int = header.get("left_out", len(header["skipped"]))
        self.contents: str = header["contents"]["fingerprint"]
        self.contents_key: str | None = header["contents"].get("key")
        self.index, self.batches = index, batches
        self.pictures = Pictures(path, self.size, batches)
        self.keys, self.units, self.labels, self.splits = index.keys, index.units, index.labels, index.splits

    @classmethod
    def open(cls, path: str | Path) -> RecordStore:
        """Opens a store.

        Args:
            path: Directory of the store.

        Raises:
            UserError: If there is no store, the store is damaged, or it has another format version.
        """
        path = local_path(path, "the place of the store")
        layout = read_layout(path)
        try:
            layout.check_sizes(path)
            with pa.memory_map(str(path / INDEX)) as source:
                table = pa.ipc.open_file(source).read_all()
            check_index(table, layout.header)
            batches = MappedBatches(path / RECORDS, layout.header, starts_of(table.schema))
            if len(table) != layout.header["records"]:
                raise Damage(f"it should hold {layout.header['records']} records and holds {len(table)}")
            store = cls(path, layout, Index(layout, table), batches)
        except Damage as error:
            raise damaged(path, str(error)) from error
        except (pa.ArrowException, OSError, LookupError, TypeError, ValueError, AttributeError) as error:
            raise damaged(path, f"its files cannot be read ({type(error).__name__})") from error
        store.pictures.opened = store.__reduce__()
        return store

    @property
    def skipped(self) -> list[tuple[str, str]]:
        """The (id, reason) of what was left out when the store was written; at most 10,000 entries.

        For what can be left out, see `left_out`.
        """
        return [(entry["id"], entry["reason"]) for entry in self._layout.header["skipped"]]

    @functools.cached_property
    def fingerprint(self) -> str:
        """The hash of the store's header, by which two processes check that they have opened the same records."""
        return hashlib.blake2b(json.dumps(self._layout.header, sort_keys=True).encode(), digest_size=8).hexdigest()

    @property
    def training_units(self) -> int | None:
        """The number of units of the training records; ``None``: the store names no units."""
        return None if self.units is None else self._layout.training_units

    def __len__(self) -> int:
        return len(self.index)

    def __repr__(self) -> str:
        return f"RecordStore({str(self.path)!r}, {self.name!r}, {self.kind}, {len(self):,} records)"

    def __reduce__(self) -> tuple[Callable[..., RecordStore], tuple[Path]]:
        return RecordStore.open, (self.path,)  # another process maps the files itself

    def count(self, name: str) -> int:
        """Returns the number of records of a split, as the store's header gives it; see `split`. It was checked on opening."""
        split_number(name)
        return self._layout.splits[name]

    def ids(self, indices: np.ndarray) -> list[str]:
        """Returns the records' ids, one for each index.

        Raises:
            IndexError: If an index does not exist.
            UserError: If the store is damaged.
        """
        return self.batches.column("id", indices)

    def captions(self, indices: np.ndarray) -> list[list[str]]:
        """Returns the captions of the records, a list for each index. If the kind is ``"image-text"``, no list is empty.

        Raises:
            IndexError: If an index does not exist.
            UserError: If the store is damaged.
        """
        return self.batches.column("captions", indices)

    def images(self, indices: np.ndarray, size: int, resize: str = "crop", interpolation: str = "bicubic") -> Tensor:
        """Returns the pixels of the records' images, which are made square.

        Args:
            indices: Indices of the records, ``(n,)``, in any order.
            size: Side of the result, pixels.
            resize: Method by which an original file becomes square: ``"crop"`` (the shorter side becomes `size`, then the
                centre is cut out), ``"squash"`` (both sides become `size`, so the aspect ratio is lost) or ``"pad"`` (the
                longer side becomes `size`, then borders are added). Images that are stored as squares are only scaled.
            interpolation: ``"bicubic"`` or ``"bilinear"``.

        Returns:
            The images, ``(n, 3, size, size)`` uint8.

        Raises:
            IndexError: If an index does not exist.
            UserError: If the store is damaged, a stored file can no longer be decoded, or a process that decodes dies.
            ValueError: If original files are stored and `resize` has another value, or if images have to be scaled and
                `interpolation` has another value.
        """
        return self.pictures.squares(indices, size, resize, interpolation)

    def encoded(self, indices: np.ndarray) -> list[bytes]:
        """Returns the images as they are stored, one for each index: files, or raw ``(3, size, size)`` pixels.

        Raises:
            IndexError: If an index does not exist.
            UserError: If the store is damaged.
        """
        return self.pictures.encoded(indices)


def open_or_write(path: Path, write: Callable[[Path], object]) -> RecordStore:
    """Opens a store. If it does not exist, it is written first.

    Args:
        path: Directory of the store.
        write: Function that writes the store to a path; it is called at most once.

    Raises:
        UserError: If writing or opening fails.
    """
    if not path.exists():
        try:
            write(path)
        except UserError:
            if not path.exists():  # otherwise another process was faster, and its store is used
                raise
    return RecordStore.open(path)
