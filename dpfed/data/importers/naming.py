"""Names for records that have none of their own: a hash of what the record holds, and of nothing else.

A record's key, its worker, its site and whether it is held out follow from its name. A row number would not do: with one row
less, all later records would have other names, and with them other workers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from dpfed.data.store.record import RecordInput

CONTENT = "content"  # what --id takes beside the name of a column


def content_hash(record: RecordInput, label_names: Mapping[str, Sequence[str]]) -> str:
    """A hash of all that is stored of a record: its image as it came, its captions, labels and unit.

    Labels count by the names of their classes: their numbers may depend on which classes other records have.

    Args:
        record: its image is an encoded file or an array.
        label_names: what the class numbers of each label mean.

    Returns:
        32 hexadecimal digits.
    """
    digest = hashlib.blake2b(digest_size=16)
    image = record.image
    if not isinstance(image, bytes):
        pixels = np.asarray(image)
        _add(digest, f"{pixels.dtype}{pixels.shape}".encode())
        image = pixels.tobytes()
    _add(digest, image)
    for text in _texts(record, label_names):
        _add(digest, text.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _texts(record: RecordInput, label_names: Mapping[str, Sequence[str]]) -> Iterable[str]:
    yield str(len(record.captions))
    yield from record.captions
    for label, number in sorted(record.labels.items()):
        names = label_names.get(label, ())
        if number >= 0:
            yield label
            yield names[number] if number < len(names) else str(number)
    yield record.unit or ""


def _add(digest: hashlib.blake2b, part: bytes) -> None:
    """Adds a part with its length, so that no two lists of parts give the same bytes."""
    digest.update(len(part).to_bytes(8, "little"))
    digest.update(part)
