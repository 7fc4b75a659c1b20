"""The public records of a run, which join the groups of private records. They are fixed before training, without private data.

This module does not import torch, which takes seconds, so that errors in the public records are reported at once.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from dpfed.data.generated.procedural import ImportProgress, procedural_store
from dpfed.data.generated.shapes import shapes_store
from dpfed.data.opening import refuse_other_squares
from dpfed.data.options import DataConfig, PublicConfig
from dpfed.data.store.layout import read_layout
from dpfed.data.store.records import RecordStore
from dpfed.errors import UserError
from dpfed.paths import is_store

_SEED = 2**32 - 2  # seed of generated public records: no generated data set has the same records
_HASH_BYTES = 16
_HASH = np.dtype(f"V{_HASH_BYTES}")


def public_fingerprint(config: PublicConfig) -> str | None:
    """Returns the fingerprint of a public store's records. Only the store's header is read.

    ``None``: the public records are generated, so the configuration determines them.

    Args:
        config: Section ``[public]`` with an absolute path.

    Raises:
        UserError: If there is no store, its header is damaged or has another format version, the store is not marked public, or
            its fingerprint is not the configuration's ``digest``.
    """
    if config.source != "store":
        return None
    path = _place(config)
    header = read_layout(path).header
    if not header["public"]:
        raise UserError(
            f"public.path: the records of {path} are not marked public, but they join every group: give a store that "
            "was imported with `dpfed data import --public`. [public-not-marked]"
        )
    fingerprint: str = header["contents"]["fingerprint"]
    if config.digest not in (None, fingerprint):
        raise UserError(
            f"public.path: the records of {path} are not those that were agreed on when the run (or the federation) was "
            "started: restore them, or start a new run. [public-changed]"
        )
    return fingerprint


def open_public(
    config: PublicConfig,
    data: DataConfig,
    private: RecordStore,
    captions: bool,
    interpolation: str,
    progress: ImportProgress | None = None,
) -> RecordStore:
    """Opens the public records of a run, and checks that they share no image with the private records.

    If the configuration says so, the public records are generated first.

    Args:
        config: Section ``[public]`` with an absolute path.
        data: Section ``[data]`` with its size and resizing resolved, and with the folder of generated stores.
        private: Private records of the run, opened.
        captions: Whether the model reads text.
        interpolation: Interpolation by which the model expects images to be scaled.
        progress: Callback that is called while records are generated.

    Raises:
        UserError: If `given_public` raises one; if generated records lack captions that the model reads, or are fewer than join
            a group (`config.records`); if the public records were made square in a way that the model does not expect, or share
            images with the private records; or if a store is damaged or cannot be written.
        ValueError: If procedural images are to be generated, and `data` has no size.
    """
    if config.source == "shapes":
        store = shapes_store(config.generated, data.stores, test=0, half=config.half, seed=_SEED)
    elif config.source == "procedural":
        if data.size is None:
            raise ValueError(
                "the section [data] has no size: set it, or use the section that dpfed.runs.resolution.resolve_model_defaults "
                "returns"
            )
        store = procedural_store(config.generated, data.stores, data.size, test=0, seed=_SEED, progress=progress)
    else:
        store = given_public(config, captions)
        refuse_other_squares(store, data.resize, interpolation)
    _refuse_unfit(config, store, captions)
    refuse_shared(store, private, data.stores)
    return store


def given_public(config: PublicConfig, captions: bool) -> RecordStore:
    """Opens a public store that the user gives, and checks its header and index.

    Args:
        config: Section ``[public]`` with ``source = "store"``.
        captions: Whether the model reads text.

    Raises:
        UserError: If `public_fingerprint` raises one, the store is damaged, its records lack captions that the model reads, or
            it has fewer training records than join a group (`config.records`).
    """
    public_fingerprint(config)
    store = RecordStore.open(_place(config))
    _refuse_unfit(config, store, captions)
    return store


def _refuse_unfit(config: PublicConfig, store: RecordStore, captions: bool) -> None:
    """Rejects public records that lack captions that the model reads, or are fewer than each group needs.

    Raises:
        UserError: If it rejects the records.
    """
    if captions and store.kind != "image-text":
        key = f"public.source = '{config.source}'" if config.is_generated else f"public.path = {store.path}"
        raise UserError(
            f"{key}: the model reads captions, and these public records have none. Give a store with captions as public.path. "
            "[public-no-captions]"
        )
    if store.count("train") >= config.records:
        return
    needed = f"every group is to hold public.records = {config.records:,} public records"
    if config.is_generated:
        raise UserError(
            f"{needed}, but public.generated = {config.generated:,} records are generated. Lower public.records, or raise "
            "public.generated. [public-few-generated]"
        )
    raise UserError(
        f"{needed}, but {store.path} has {store.count('train'):,} training records. Lower public.records, or give another "
        "store. [public-few-records]"
    )


def share_images(first: RecordStore, second: RecordStore) -> bool:
    """Returns whether two stores share an image, compared byte by byte as stored; the first should be the smaller store.

    Raises:
        UserError: If a store is damaged.
    """
    lengths = np.zeros(0, np.int64)
    for _, batch in first.batches:
        lengths = np.union1d(lengths, first.pictures.lengths(batch))
    hashes = np.sort(np.concatenate(list(_hashes(first, lengths))))
    places = ((np.searchsorted(hashes, others), others) for others in _hashes(second, lengths))
    return any((hashes[np.minimum(place, len(hashes) - 1)] == others).any() for place, others in places)


def refuse_shared(public: RecordStore, private: RecordStore, stores: str) -> None:
    """Rejects public records that share images with the private records.

    Stores never change, so the check is done only once: an empty file then says that the two stores share no image.

    Args:
        public: Public records.
        private: Private records of the run.
        stores: Folder of this file.

    Raises:
        UserError: If an image is in both stores, compared byte by byte as stored, or a store is damaged.
    """
    known_by = hashlib.blake2b(repr((public.contents, private.contents)).encode(), digest_size=_HASH_BYTES).hexdigest()
    apart = Path(stores) / f"apart-{known_by}"
    if apart.exists():
        return
    if share_images(public, private):  # their number is private, so the message does not give it
        raise UserError(
            f"public.path: {public.path} and {private.path} share images, and a record cannot be both public and private: "
            "import one of the two again without them (in a federation: the private one). [public-shared-images]"
        )
    with contextlib.suppress(OSError):
        apart.parent.mkdir(parents=True, exist_ok=True)
        apart.touch()


def _hashes(store: RecordStore, lengths: np.ndarray) -> Iterator[np.ndarray]:
    """Yields, batch by batch, hashes of the stored images whose sizes in bytes are among `lengths`.

    Images of other sizes are not read: the other store has no image of their size.
    """
    for _, batch in store.batches:
        rows = np.flatnonzero(np.isin(store.pictures.lengths(batch), lengths)).tolist()
        images = (store.pictures.at(batch, row) for row in rows)
        yield np.frombuffer(b"".join(hashlib.blake2b(image, digest_size=_HASH_BYTES).digest() for image in images), _HASH)


def _place(config: PublicConfig) -> Path:
    """Returns the path of the public store.

    Raises:
        UserError: If there is no path, or no store at the path.
    """
    path = None if config.path is None else Path(config.path).expanduser()
    if path is None or not is_store(path):
        what = "it is not set" if path is None else f"there is no record store on this machine at {config.path}"
        raise UserError(
            f"public.path: {what}. Give the folder of a record store that `dpfed data import --public` made (a federation's "
            "site names its copy as `public` in its site.toml). [public-store-missing]"
        )
    return path
