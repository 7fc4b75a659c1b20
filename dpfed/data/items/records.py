"""Records from any map-style data set: of torch, of Hugging Face, a list of images, or a record store."""

from __future__ import annotations

import functools
import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpfed.data.items.classes import labels_in_words, numbered_labels
from dpfed.data.items.item import Part, Parts
from dpfed.data.items.joined import Joined
from dpfed.data.items.recognition import picture_of
from dpfed.data.items.scanning import Scanned, scan
from dpfed.data.items.store_items import StoreItems
from dpfed.data.record_set import RecordSet
from dpfed.data.store.record import SPLITS, record_key
from dpfed.data.store.records import RecordStore
from dpfed.errors import UserError


@dataclass(frozen=True)
class _Index:
    """The facts about all records that one pass over the data set collects.

    Attributes:
        keys: Keys of the records, see `RecordSet`.
        labelled_keys: Keys for losses that read labels: records with different labels are then not equal.
        pictures: Hash of each picture, independent of its form.
        units: Keys of the units, see `RecordSet`.
        labels: Class numbers by label name, see `RecordSet`.
        label_names: Names of the classes by label name, see `RecordSet`.
        captions: Captions of each record.
        equal: Number of records whose image and captions another record has, too.
    """

    keys: np.ndarray
    labelled_keys: np.ndarray
    pictures: list[str]
    units: np.ndarray | None
    labels: dict[str, np.ndarray]
    label_names: dict[str, list[str]]
    captions: list[tuple[str, ...]]
    equal: int


class Records(RecordSet):
    """Records of a data set with ``len()`` and ``[]``. Every item is read once when the records are opened.

    An item is an image, a tuple that begins with one, or a mapping. Images are PIL images, arrays ``(H, W)``, ``(H, W, 3)`` or
    ``(C, H, W)``, or tensors ``(C, H, W)`` of uint8, uint16 or floats with any number of channels. Random transforms do not
    belong in the data set: give them to `Views`.

    Args:
        data: Training records.
        image: Location of the image in an item: a column, a position in a tuple, or a function of the item. Default: the item
            itself, the first of a tuple, or the column ``image``.
        caption: Location of the text, or of a list of texts. Default: the second of a tuple, if that is a text.
        label: Location of the class, or a mapping from label names to locations; read for k-NN, the linear probe, and losses of
            classes such as `dpfed.losses.SupCon`.
            Default: the second of a tuple, or the column ``label``, if that is a whole number.
        key: Location of the key that identifies a record, whatever its position in the data set. Default: a hash of image and
            captions, and of the labels where a loss reads them.
        unit: Location of the name of the record's unit, such as a person. `Privacy(unit="user")` protects all records of a
            unit together.
        validation: Data set of held-out records, on which the model is measured.
        test: Data set of further held-out records.
        name: Name of the data set, also on the card. Default: the name of its class.
        public: True if anyone may see the records.
        workers: Number of processes that read items and make views; 0: this process does it. Default: one for each core.

    Attributes:
        source: Data set as it was given.
        reads_labels: True if the loss of the open run reads labels: records with different labels are then not equal.
        equal: Number of records whose image and captions another record has, too; each of them counts.

    Raises:
        UserError: If the data set has no length, or keys are equal or are positions; raised when the records are opened.
    """

    def __init__(
        self,
        data: Any,
        *,
        image: Part | None = None,
        caption: Part | None = None,
        label: Part | Mapping[str, Part] | None = None,
        key: Part | None = None,
        unit: Part | None = None,
        validation: Any = None,
        test: Any = None,
        name: str | None = None,
        public: bool = False,
        workers: int | None = None,
    ) -> None:
        labels = label if isinstance(label, Mapping) or label is None else {"label": label}
        self.parts = Parts(image, caption, labels, key, unit)
        self.store = data if isinstance(data, RecordStore) else None
        if self.store is not None:
            self._refuse_twice(validation, test, image, caption, label, key, unit)
            self.parts = Parts("image", "captions", {}, None, None)
            public = self.store.public
        self.items = StoreItems(self.store) if self.store is not None else Joined([data, validation, test])
        self.name = name or (self.store.name if self.store is not None else type(data).__name__)
        self.public, self.workers = public, workers
        self.source = data
        self.path = Path(f"records of {self.name}") if self.store is None else self.store.path
        self.advance: Callable[[int], None] = lambda done: None
        self.reads_labels = False

    def __len__(self) -> int:
        return len(self.items)

    @property
    def held_out(self) -> tuple[str, ...]:
        """The held-out splits that have records."""
        return tuple(split for number, split in enumerate(SPLITS) if number and bool((self.splits == number).any()))

    def __repr__(self) -> str:
        return f"Records({self.name!r}, {len(self):,} records)"

    def __reduce__(self) -> Any:
        raise TypeError("Records are not sent to other processes: give a configuration a function that makes them")

    @property
    def keys(self) -> np.ndarray:  # type: ignore[override]
        """See `RecordSet`, also for the properties below."""
        if self.store is not None:
            return self.store.keys
        return self._index.labelled_keys if self.reads_labels else self._index.keys

    @property
    def units(self) -> np.ndarray | None:  # type: ignore[override]
        """See `RecordSet`."""
        return self._index.units if self.store is None else self.store.units

    @property
    def unit_name(self) -> str | None:  # type: ignore[override]
        """See `RecordSet`."""
        if self.store is not None:
            return self.store.unit_name
        unit = self.parts.unit
        return None if unit is None else unit if isinstance(unit, str) else "user"

    @property
    def labels(self) -> dict[str, np.ndarray]:  # type: ignore[override]
        """See `RecordSet`."""
        return self._index.labels if self.store is None else self.store.labels

    @property
    def label_names(self) -> dict[str, list[str]]:  # type: ignore[override]
        """See `RecordSet`."""
        return self._index.label_names if self.store is None else self.store.label_names

    @property
    def equal(self) -> int:
        """The number of records whose image and captions another record has, too."""
        return self._index.equal if self.store is None else 0

    @property
    def kind(self) -> str:  # type: ignore[override]
        """See `RecordSet`."""
        if self.store is not None:
            return self.store.kind
        return "image-text" if all(self._index.captions) else "image"

    @functools.cached_property
    def splits(self) -> np.ndarray:  # type: ignore[override]
        """See `RecordSet`."""
        return self.items.splits

    @property
    def contents(self) -> str:  # type: ignore[override]
        """See `RecordSet`: a plain hash, which leaves this machine for public records only."""
        if self.store is not None:
            return self.store.contents
        order = np.argsort(self.keys, kind="stable")
        parts = [self.keys[order], self.splits[order], *(() if self.units is None else (self.units[order],))]
        return hashlib.blake2b(b"".join(np.ascontiguousarray(part).tobytes() for part in parts), digest_size=16).hexdigest()

    @property
    def fingerprint(self) -> str:
        """See `RecordSet`."""
        return self.contents if self.store is None else self.store.fingerprint

    @functools.cached_property
    def budget_names(self) -> np.ndarray:  # type: ignore[override]
        """See `RecordSet`: hashes of each picture and its number among equal ones, independent of keys and captions."""
        if self.store is not None:
            return self.store.budget_names
        seen = Counter[str]()
        names = np.empty(len(self), np.uint64)
        for row, picture in enumerate(self._index.pictures):
            names[row] = record_key(f"picture {picture} {seen[picture]}")
            seen[picture] += 1
        return names

    @functools.cached_property
    def budget_fingerprint(self) -> str:  # type: ignore[override]
        """See `RecordSet`: a hash of the training records' pictures and units, in any order."""
        if self.store is not None:
            return self.store.budget_fingerprint
        units = [""] * len(self) if self.units is None else self.units.tolist()
        lines = sorted(f"{self._index.pictures[row]} {units[row]}" for row in self.split("train").tolist())
        return hashlib.blake2b("\n".join(lines).encode(), digest_size=16).hexdigest()

    @property
    def budget_folder(self) -> Path | None:
        """See `RecordSet`. A run's folder gets no copy: people share runs, and the ledger has plain hashes of pictures."""
        return None if self.store is None else self.store.path

    def captions(self, indices: np.ndarray) -> list[list[str]]:
        """See `RecordSet`."""
        if self.store is not None:
            return self.store.captions(indices)
        return [list(self._index.captions[row]) for row in np.asarray(indices).tolist()]

    def encoded(self, indices: np.ndarray) -> list[bytes]:
        """See `RecordSet`."""
        if self.store is not None:
            return self.store.encoded(indices)
        return [picture_of(self.parts.image_of(self.items[row])) for row in np.asarray(indices).tolist()]

    @functools.cached_property
    def _index(self) -> _Index:
        return self._read(scan(self.items, self.parts, self.workers, self.advance))

    def _read(self, scanned: list[Scanned]) -> _Index:
        if not scanned:
            raise UserError(f"the data set {self.name} has no items. [records-none]")
        labels, names = numbered_labels([record.labels for record in scanned], self._class_names())
        units = None
        if self.parts.unit is not None:
            units = np.array([record_key(f"unit {record.unit}") for record in scanned], np.uint64)
        keys, equal = self._keys(scanned)
        labelled = self._keys(scanned, by_label=True)[0]
        captions = [record.captions for record in scanned]
        if any(captions) and not all(captions):
            missing = sum(not texts for texts in captions)
            raise UserError(f"{missing:,} of {len(captions):,} records of {self.name} have no caption. [records-uncaptioned]")
        pictures = [record.picture.hex() for record in scanned]
        return _Index(keys, labelled, pictures, units, labels, names, captions, equal)

    def _keys(self, scanned: list[Scanned], by_label: bool = False) -> tuple[np.ndarray, int]:
        """Returns the records' keys, and the number of records that are equal to another one.

        The first, second, ... of a unit's equal records have different keys, which do not change when another one is added.
        Where a loss reads labels, records with different labels are not equal. Otherwise, if the first of them were removed,
        the second would get the key of the first.

        Raises:
            UserError: If the given keys are positions, or a key occurs twice.
        """
        counts = Counter(record.content for record in scanned)
        equal = sum(count for count in counts.values() if count > 1)
        if self.parts.key is not None:
            given = [str(record.key) for record in scanned]
            if len(given) > 1 and given == [str(place) for place in range(len(given))]:
                raise UserError(
                    "the keys are the positions 0, 1, 2, ...: a record's key must not change when other records come or go. "
                    "Give a name that the record keeps, or leave key= out: a hash of its contents is its key then. "
                    "[records-key-position]"
                )
            if twice := [name for name, count in Counter(given).items() if count > 1]:
                raise UserError(
                    f"{len(twice):,} of the keys belong to several records each, and a key has to tell a record from all "
                    "others: give another key, or leave key= out. [records-key-twice]"
                )
            return np.array([record_key(name) for name in given], np.uint64), equal
        seen, classes = Counter[str](), self._class_names()
        keys = np.empty(len(scanned), np.uint64)
        for row, record in enumerate(scanned):
            name = f"{record.content.hex()} {record.unit}{labels_in_words(record.labels, classes) if by_label else ''}"
            keys[row] = record_key(f"{name} {seen[name]}")
            seen[name] += 1
        return keys, equal

    def _class_names(self) -> Mapping[str, Sequence[str]]:
        """Returns the names of the classes of a torchvision or Hugging Face data set, by label name."""
        features = getattr(self.source, "features", None)
        names: dict[str, Sequence[str]] = {}
        for name, part in (self.parts.labels or {"label": "label"}).items():
            feature = features.get(part) if isinstance(features, Mapping) and isinstance(part, str) else None
            classes = getattr(feature, "names", None) or getattr(self.source, "classes", None)
            if classes is not None and all(isinstance(entry, str) for entry in classes):
                names[name] = classes
        return names

    @staticmethod
    def _refuse_twice(*given: Any) -> None:
        if any(argument is not None for argument in given):
            raise UserError(
                "a record store has captions, labels, units, keys and held-out splits of its own: leave these arguments of "
                "Records out. [records-store]"
            )
