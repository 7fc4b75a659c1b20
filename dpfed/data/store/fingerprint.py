"""Computes the fingerprint of a data set, which identifies the records and may be published.

A plain hash of private records would be an exact function of them: an attacker who knows all records but one could try
candidates for the last one until the hash matches. The hash of private records is therefore keyed with a secret, which is drawn
when the store is written and never leaves it. Only a holder of the store can compute the fingerprint; to everybody else it is a
random number. The hash of public records has no key: two people whose stores hold the same records see the same fingerprint.

The fingerprint does not depend on the order of the records, or on the batches in which the store keeps them.
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
    """Returns the secret key for the fingerprint of a new store; empty for public records."""
    return b"" if public else secrets.token_bytes(_KEY_BYTES)


def record_digest(key: bytes, id: str, image: bytes, captions: Sequence[str], unit: int, labels: Mapping[str, int]) -> bytes:
    """Returns the digest of a record as it is stored, `RECORD_BYTES` bytes.

    Args:
        key: Key of the fingerprint.
        id: Id of the record.
        image: Stored bytes of the image.
        captions: Captions of the record.
        unit: Key of the record's unit; the record's own key if it has no unit.
        labels: Class number for each label name; -1 means the same as an absent label.
    """
    digest = hashlib.blake2b(key=key, digest_size=RECORD_BYTES, person=b"dpfed record")
    given = sorted((name, int(number)) for name, number in labels.items() if number >= 0)
    # repr() of the tuple is unambiguous; the image comes last, and its length is part of the tuple.
    digest.update(repr((id, list(captions), int(unit), given, len(image))).encode())
    digest.update(image)
    return digest.digest()


def fingerprint_of(key: bytes, digests: np.ndarray, splits: np.ndarray) -> str:
    """Returns the fingerprint of records, which does not depend on their order.

    Args:
        key: Key of the fingerprint.
        digests: Digests of the records, ``(n, RECORD_BYTES)`` uint8.
        splits: Split of each record, an index into `dpfed.data.store.record.SPLITS`, ``(n,)`` int8.
    """
    first, second = digests.view(">u8").T  # big-endian, so that numbers sort in the order of their bytes
    order = np.argsort(first.astype(np.uint64))
    if (np.diff(first[order]) == 0).any():
        order = np.lexsort((np.asarray(splits, np.uint8), second, first))
    whole = hashlib.blake2b(key=key, digest_size=_FINGERPRINT_BYTES, person=b"dpfed contents")
    for at, end in blocks(len(order)):
        rows = order[at:end]
        whole.update(np.concatenate([digests[rows], np.asarray(splits[rows], np.uint8)[:, None]], axis=1).tobytes())
    return whole.hexdigest()


def contents_header(key: bytes, digests: bytes | bytearray, splits: np.ndarray) -> dict[str, str]:
    """Returns the entry ``contents`` of a store's header: the fingerprint, and its secret key if the records are private.

    Args:
        key: Key of the fingerprint; empty for public records.
        digests: Concatenated digests of all records, see `record_digest`.
        splits: Split of each record, an index into `dpfed.data.store.record.SPLITS`, ``(n,)`` int8.
    """
    fingerprint = fingerprint_of(key, np.frombuffer(bytes(digests), np.uint8).reshape(-1, RECORD_BYTES), splits)
    return {"fingerprint": fingerprint} | ({"key": key.hex()} if key else {})


def contents_of(store: RecordStore, key: bytes) -> dict[str, str]:
    """Reads every record of a store, and computes the entry ``contents`` of its header with a given key; see `contents_header`.

    Raises:
        UserError: If the store is damaged.
    """
    digests = bytearray()
    units = store.keys if store.units is None else store.units
    for rows, batch in store.batches:
        ids, captions = batch["id"].to_pylist(), batch["captions"].to_pylist()
        images = store.pictures.stored(batch)
        for row, id, texts, image in zip(range(rows.start, rows.stop), ids, captions, images, strict=True):
            labels = {name: values[row] for name, values in store.labels.items()}
            digests += record_digest(key, id, image, texts, units[row], labels)
    return contents_header(key, digests, store.index.splits)
