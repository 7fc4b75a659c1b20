"""Makes records from any map-style data set: one of torch or Hugging Face, a list of images, or a record store."""

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
from dpfed.data.limits import whole_number
from dpfed.data.record_set import RecordSet
from dpfed.data.store.record import SPLITS, record_key
from dpfed.data.store.records import RecordStore
from dpfed.errors import UserError


@dataclass(frozen=True)
class _Index:
    """What one pass over a data set collects about its records.

    Attributes:
        keys: Keys of the records, see `RecordSet`.
        labelled_keys: Keys of the records for losses that read labels. Unless the user gave the keys, they also depend on the
            records' labels.
        pictures: Hash of each record's picture, which is the same in whatever form the data set gives the picture.
        units: Keys of the units, see `RecordSet`.
        labels: Class numbers for each label name, see `RecordSet`.
        label_names: Names of the classes for each label name, see `RecordSet`.
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
    """Records of a data set with ``len()`` and ``[]``. All items (but those of a record store) are read at the first use.

    An item is an image, a tuple that begins with an image, or a mapping. Images are PIL images, arrays ``(H, W)``,
    ``(H, W, 3)`` of uint8 or ``(C, H, W)``, or tensors ``(C, H, W)`` of uint8, uint16 or floats with any number of channels.
    Random transforms do not belong in the data set: give them to `Views`.

    Args:
        data: Data set of the training records, or a record store, which has all splits.
        image: Location of the image in an item: a column, a position in a tuple, or a function of the item. Default: the item
            itself, the first entry of a tuple, or a column such as ``image``.
        caption: Location of the text, or of a list of texts. Default: the second entry of a tuple, if that is a text or a list
            of texts.
        label: Location of the class, or a mapping from label names to locations. k-NN, the linear probe, and losses of classes
            such as `dpfed.losses.SupCon` read it. Default: the second entry of a tuple, or the column ``label``, if that is a
            whole number.
        key: Location of the key that identifies a record, whatever its position in the data set. Default: a hash of the image,
            captions and unit, and of the labels if a loss reads them.
        unit: Location of the name of the record's unit, such as a person. `Privacy(unit="user")` protects all records of a
            unit together.
        validation: Data set of held-out records, on which the model is measured.
        test: Data set of further held-out records.
        name: Name of the data set, which the privacy card shows. Default: the name of its class, or of the record store.
        public: Whether anyone may see the records. Not used for a record store: its header says whether it is public.
        workers: Number of processes that read items and make views; 0: this process does it. Default: one for each core.

    Attributes:
        source: Data set as it was given.
        reads_labels: Whether the loss of the run that uses these records reads labels. If so, records that differ only in
            their labels have unrelated keys.

    Raises:
        UserError: If `data` is ``None``, a data set is a path or another `RecordSet` (but `data` may be a record store),
            `workers` is not a number of processes, or `image`, `caption`, `label`, `key`, `unit`, `validation` or `test` is
            given beside a record store, which has its own. Later, when the items are read: if a data set has no ``len()`` or
            ``[]``, there are no items or their number changes, an item cannot be used or differs when it is read again, only
            some items have captions, the values of a label are neither all whole numbers nor all strings, two records have the
            same key, or the keys are the positions 0, 1, 2, ...
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
        self.public = public
        self.workers = None if workers is None else whole_number(workers, "Records: workers, the number of processes,")
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
        raise TypeError(
            "Records cannot be sent to other processes: write a function that returns them, and name it in the configuration "
            "(data.source = 'package.module:function')"
        )

    @property
    def keys(self) -> np.ndarray:  # type: ignore[override]
        """The keys of the records, see `RecordSet`."""
        if self.store is not None:
            return self.store.keys
        return self._index.labelled_keys if self.reads_labels else self._index.keys

    @property
    def units(self) -> np.ndarray | None:  # type: ignore[override]
        """The keys of the records' units, see `RecordSet`."""
        return self._index.units if self.store is None else self.store.units

    @property
    def unit_name(self) -> str | None:  # type: ignore[override]
        """The name of the kind of unit, see `RecordSet`: the column of the units, or ``"user"`` if they are not in a column."""
        if self.store is not None:
            return self.store.unit_name
        unit = self.parts.unit
        return None if unit is None else unit if isinstance(unit, str) else "user"

    @property
    def labels(self) -> dict[str, np.ndarray]:  # type: ignore[override]
        """The class numbers for each label name, see `RecordSet`."""
        return self._index.labels if self.store is None else self.store.labels

    @property
    def label_names(self) -> dict[str, list[str]]:  # type: ignore[override]
        """The names of the classes for each label name, see `RecordSet`."""
        return self._index.label_names if self.store is None else self.store.label_names

    @property
    def equal(self) -> int:
        """The number of records with the same image and captions as another record; 0 for a record store: not counted."""
        return self._index.equal if self.store is None else 0

    @property
    def kind(self) -> str:  # type: ignore[override]
        """The kind of the records, see `RecordSet`: ``"image-text"`` if they have captions."""
        if self.store is not None:
            return self.store.kind
        return "image-text" if all(self._index.captions) else "image"

    @functools.cached_property
    def splits(self) -> np.ndarray:  # type: ignore[override]
        """The split of each record, see `RecordSet`."""
        return self.items.splits

    @property
    def contents(self) -> str:  # type: ignore[override]
        """The fingerprint of all records, see `RecordSet`.

        For a record store, it is the store's own fingerprint. Otherwise it is a hash without a secret key, so it leaves this
        machine only if the records are public.
        """
        if self.store is not None:
            return self.store.contents
        order = np.argsort(self.keys, kind="stable")
        parts = [self.keys[order], self.splits[order], *(() if self.units is None else (self.units[order],))]
        return hashlib.blake2b(b"".join(np.ascontiguousarray(part).tobytes() for part in parts), digest_size=16).hexdigest()

    @property
    def fingerprint(self) -> str:
        """The value by which two processes recognise the same records, see `RecordSet`."""
        return self.contents if self.store is None else self.store.fingerprint

    @functools.cached_property
    def budget_names(self) -> np.ndarray:  # type: ignore[override]
        """The names by which a lifetime budget recognises records, see `RecordSet`.

        For a record store, they are the store's own. Otherwise a name is a hash of the record's picture, and of the record's
        number among all records with this picture. It does not depend on keys and captions.
        """
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
        """The fingerprint by which a lifetime budget recognises the whole record set, see `RecordSet`.

        For a record store, it is the store's `contents`. Otherwise it is a hash of the training records' pictures and units,
        and does not depend on their order.
        """
        if self.store is not None:
            return self.store.budget_fingerprint
        units = [""] * len(self) if self.units is None else self.units.tolist()
        lines = sorted(f"{self._index.pictures[row]} {units[row]}" for row in self.split("train").tolist())
        return hashlib.blake2b("\n".join(lines).encode(), digest_size=16).hexdigest()

    @property
    def budget_folder(self) -> Path | None:
        """The folder that keeps a copy of the budget's ledger: that of the record store; ``None`` for other data sets.

        The folder of a run gets no copy of this ledger: people share runs, and the ledger contains hashes of pictures, which
        are computed without a secret key.
        """
        return None if self.store is None else self.store.path

    def captions(self, indices: np.ndarray) -> list[list[str]]:
        """Returns the captions of the records, see `RecordSet`."""
        if self.store is not None:
            return self.store.captions(indices)
        return [list(self._index.captions[row]) for row in np.asarray(indices).tolist()]

    def encoded(self, indices: np.ndarray) -> list[bytes]:
        """Returns the records' images as bytes, see `RecordSet`."""
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
            raise UserError(
                f"{missing:,} of {len(captions):,} records of {self.name} have no caption, but the others have: give captions "
                "to all records, or to none. [records-uncaptioned]"
            )
        pictures = [record.picture.hex() for record in scanned]
        return _Index(keys, labelled, pictures, units, labels, names, captions, equal)

    def _keys(self, scanned: list[Scanned], by_label: bool = False) -> tuple[np.ndarray, int]:
        """Returns the records' keys, and the number of records whose image and captions another record has, too.

        Without given keys, a key is a hash of the record's contents and unit, and of the record's number among the records for
        which these are equal. So equal records have different keys, and adding one more changes no other key. If a loss reads
        labels, the hash must cover them: otherwise, if the first of two records that differ only in their labels were removed,
        the second would get the key of the first.

        Args:
            scanned: Facts about each record.
            by_label: Whether keys that are hashes depend on the labels, too; given keys do not.

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
        """Returns the names of the classes for each label name, as data sets of torchvision and Hugging Face give them.

        A label is left out if the data set does not name its classes.
        """
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
