"""What lies at a path, before anything is imported: how many records, of which kind, and how large their images are.

These numbers, and no others, decide what is chosen. They count as public, as N does in every run.
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

FEWEST = 100  # records that are worth a private run of any kind
_LOOKED_AT = 64  # images, for their sizes


@dataclass(frozen=True)
class Survey:
    """What a data set is, as far as that is public.

    Attributes:
        path: of the data set, absolute.
        source: the importer that reads it, or ``"store"``.
        kind: ``"image"`` or ``"image-text"``.
        records: in all splits; ``None``: only an import can tell.
        splits: that the data set has itself.
        labels: label name -> its classes.
        unit_name: what records share, such as ``"person"``; ``None``: nothing.
        side: the shorter side of most images, pixels, rounded to a power of two; of a store of squares, their side.
        squares: a store's images are squares of `side` already.
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
        """How many classes the label with the most of them has; 0: there are no labels."""
        return max((len(names) for names in self.labels.values()), default=0)


def survey(given: str | Path) -> Survey:
    """Looks at a data set; nothing is imported, and the first images alone are opened, for their sizes.

    Args:
        given: a folder, a table, a file that an importer reads, or a record store.

    Raises:
        UserError: where nothing is, where no importer recognises what is there, or for fewer than 100 records.
    """
    path = existing(given)
    if is_store(path):
        layout = read_layout(path)
        header, size = layout.header, layout.header["images"].get("size")
        counts, labels = layout.splits, header["label_names"]
        splits = frozenset(split for split, count in counts.items() if count)
        found = Survey(
            path, "store", header["kind"], counts["train"], splits, labels, header["unit_name"], size or 0, bool(size)
        )
    else:
        access = Access.to(path)
        source = detect(path, access)
        opened = importers()[source].open(path, access)
        side = _usual_side(opened.records, access)
        found = Survey(path, source, opened.kind, opened.total, opened.splits, opened.label_names, opened.unit_name, side)
    if found.records is not None and found.records < FEWEST:
        raise UserError(
            f"{path} has {found.records:,} records. Privacy hides each record among the others, and below {FEWEST} no method "
            "learns anything: give more records, or use a public model as it is. [automatic-few]"
        )
    return found


def _usual_side(items: Iterator[Item], access: Access) -> int:
    """The shorter side that most of the first images have, rounded to a power of two; 0: none could be read."""
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
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):  # the import will say what is wrong
        return None
