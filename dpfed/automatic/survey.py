"""Reads the public facts of the records at a path before an import, such as their number, their kind and the size of images.

The choices depend on these facts of the data set and on no others. dpfed treats the facts as public; the number of training
records is public in every run.
"""

from __future__ import annotations

import io
import itertools
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from dpfed.data.importers.access import Access
from dpfed.data.importers.detection import detect, existing, importers
from dpfed.data.importers.source import FileRecord, Item
from dpfed.data.store.layout import read_layout
from dpfed.data.store.record import RecordInput
from dpfed.errors import UserError
from dpfed.paths import is_store

FEWEST = 100  # records; with fewer, no method learns anything under privacy
_LOOKED_AT = 64  # images whose size is read


@dataclass(frozen=True)
class Survey:
    """The public facts of a data set.

    Attributes:
        path: Path of the data set, absolute.
        source: Name of the importer that reads the data set, or ``"store"``.
        kind: Kind of the records: ``"image"`` or ``"image-text"``.
        records: Number of records in all splits, or in the training split of a store; ``None``: only an import can count them.
        splits: Splits that the data set has.
        labels: Class names of each label, by the label's name.
        unit_name: Privacy unit that the records name, such as ``"person"``; ``None``: the records name no unit.
        side: Shorter side of most images, pixels, rounded to a power of two; for a store of square images, their exact side.
            0: not known.
        squares: Whether the records are a store of square images.
    """

    path: Path
    source: str
    kind: str
    records: int | None
    splits: frozenset[str]
    labels: dict[str, list[str]]
    unit_name: str | None
    side: int
    squares: bool = False

    @property
    def classes(self) -> int:
        """The number of classes of the label with the most classes; 0: there are no labels."""
        return max((len(names) for names in self.labels.values()), default=0)


def survey(given: str | Path) -> Survey:
    """Reads the public facts of a data set. Nothing is imported, and only the first images are opened, to read their sizes.

    Args:
        given: Path of a folder, a table, another file that an importer reads, or a record store.

    Raises:
        UserError: If the path does not exist, no importer recognises the data set, or the data set has fewer than 100 records
            (of a store, only training records count).
    """
    path = existing(given)
    if is_store(path):
        layout = read_layout(path)
        header, size = layout.header, layout.header["images"].get("size")
        counts, labels = layout.splits, header["label_names"]
        splits = frozenset(split for split, count in counts.items() if count)
        facts = Survey(
            path, "store", header["kind"], counts["train"], splits, labels, header["unit_name"], size or 0, bool(size)
        )
    else:
        access = Access.to(path)
        source = detect(path, access)
        opened = importers()[source].open(path, access)
        side = _usual_side(opened.records, access)
        facts = Survey(path, source, opened.kind, opened.total, opened.splits, opened.label_names, opened.unit_name, side)
    if facts.records is not None and facts.records < FEWEST:
        raise UserError(
            f"{path} has {facts.records:,} records{' for training' * (facts.source == 'store')}. With fewer than {FEWEST}, "
            "noise hides all that a model could learn: give more records, or use a public model as it is. [automatic-few]"
        )
    return facts


def _usual_side(items: Iterator[Item], access: Access) -> int:
    """Returns the most frequent shorter side of the first images, pixels, rounded to a power of two; 0: none was readable."""
    sides = [side for item in itertools.islice(items, _LOOKED_AT) if (side := _side(item, access))]
    counted = Counter(2 ** round(math.log2(side)) for side in sides)
    return counted.most_common(1)[0][0] if counted else 0


def _side(item: Item, access: Access) -> int | None:
    record = item.read(access) if isinstance(item, FileRecord) else item
    if not isinstance(record, RecordInput):
        return None
    if not isinstance(record.image, bytes):
        return min(np.asarray(record.image).shape[:2])
    try:
        with Image.open(io.BytesIO(record.image)) as image:
            return min(image.size)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):  # the import will report the error
        return None
