"""The fingerprint of a data set: which records these are, in a line that may be published.

A plain hash of private records would be an exact function of them: whoever knows all records but one could try candidates for
the last until the hash fits. So the hash of private records is keyed with a secret that is drawn when the store is written and
stays in it. Only who has the store can compute the fingerprint; to all others it is a random number. Public records need no
key, so that two people can see that they have the same ones.

The order of the records does not matter, and neither does how a store is laid out.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from dpfed.data.store.index import blocks

if TYPE_CHECKING:
    from dpfed.data.store.records import RecordStore

RECORD_BYTES = 16
_KEY_BYTES = 32
_FINGERPRINT_BYTES = 16


def new_key(public: bool) -> bytes:
    """What a new store's fingerprint is keyed with; public records need nothing."""
    return b"" if public else secrets.token_bytes(_KEY_BYTES)


def record_digest(key: bytes, id: str, image: bytes, captions: Sequence[str], unit: int, labels: Mapping[str, int]) -> bytes:
    """The digest of a record as it is stored, of `RECORD_BYTES` bytes.

    Args:
        key: of the fingerprint.
        id: of the record.
        image: the stored bytes.
        captions: its texts.
        unit: the key of its unit; its own where it has none.
        labels: by name; -1 says the same as an absent one.
    """
    digest = hashlib.blake2b(key=key, digest_size=RECORD_BYTES, person=b"dpfed record")
    given = sorted((name, int(number)) for name, number in labels.items() if number >= 0)
    # repr() of the lot cannot be read in two ways; the image comes last, at its own length.
    digest.update(repr((id, list(captions), int(unit), given, len(image))).encode())
    digest.update(image)
    return digest.digest()


def fingerprint_of(key: bytes, digests: np.ndarray, splits: np.ndarray) -> str:
    """The fingerprint of records, in any order.

    Args:
        key: of the fingerprint.
        digests: ``(n, RECORD_BYTES)`` uint8.
        splits: ``(n,)`` int8, the split of each.
    """
    first, second = digests.view(">u8").T  # they are sorted as texts are: by the first bytes that differ
    order = np.argsort(first.astype(np.uint64))
    if (np.diff(first[order]) == 0).any():
        order = np.lexsort((np.asarray(splits, np.uint8), second, first))
    whole = hashlib.blake2b(key=key, digest_size=_FINGERPRINT_BYTES, person=b"dpfed contents")
    for at, end in blocks(len(order)):
        own = order[at:end]
        whole.update(np.concatenate([digests[own], np.asarray(splits[own], np.uint8)[:, None]], axis=1).tobytes())
    return whole.hexdigest()


def contents_header(key: bytes, digests: bytes | bytearray, splits: np.ndarray) -> dict[str, str]:
    """What a store says of its contents; the key must not leave the store.

    Args:
        key: of the fingerprint; empty for public records.
        digests: of all records, see `record_digest`.
        splits: ``(n,)`` int8, the split of each.
    """
    fingerprint = fingerprint_of(key, np.frombuffer(bytes(digests), np.uint8).reshape(-1, RECORD_BYTES), splits)
    return {"fingerprint": fingerprint} | ({"key": key.hex()} if key else {})


def contents_of(store: RecordStore, key: bytes) -> dict[str, str]:
    """Reads every record of a store as it is now, and gives its `contents_header` for a key."""
    digests = bytearray()
    units = store.keys if store.units is None else store.units
    for rows, batch in store.batches:
        ids, captions = batch["id"].to_pylist(), batch["captions"].to_pylist()
        images = store.pictures.stored(batch)
        for row, id, texts, image in zip(range(rows.start, rows.stop), ids, captions, images, strict=True):
            labels = {name: values[row] for name, values in store.labels.items()}
            digests += record_digest(key, id, image, texts, units[row], labels)
    return contents_header(key, digests, store.index.splits)
