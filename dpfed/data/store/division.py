"""Division of a store among simulated institutions with differing records, for experiments with federations.

A record's home site follows from its class in the store's first label. In a store without labels, it follows from the
first words of the record's first caption. With probability `skew` the record goes to its home site, otherwise to a site drawn
uniformly; a record without a class has no home site, and always goes to a site drawn uniformly. Both draws depend on the
record's own key and public constants only, so a record's site does not depend on which other records exist. If the store names
units, the draws depend on the unit's key instead, so that all records of a unit go to the same site.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from dpfed.data.limits import MOST_SITES, whole_number
from dpfed.data.store.fingerprint import contents_of, new_key
from dpfed.data.store.layout import HEADER, INDEX, RECORDS, read_layout
from dpfed.data.store.mapped import records_schema
from dpfed.data.store.record import SPLITS, record_key
from dpfed.data.store.records import RecordStore
from dpfed.data.store.writing import write_index
from dpfed.errors import UserError
from dpfed.files.atomic import cannot_write, claimed, refuse_existing, whole_directory
from dpfed.paths import local_path
from dpfed.privacy.randomness import Randomness

EVALUATION = "evaluation"  # the folder of the held-out records
_BATCH_RECORDS, _BATCH_BYTES = 1024, 64 << 20  # limits of a batch in memory; a batch that reaches one is written
_OPENING_WORDS = 3  # enough to tell "a large red ..." from "a small blue ...", few enough for many records to share them
_PUBLIC = Randomness.from_seed(0)  # nothing about a division is secret


def site_folder(site: int) -> str:
    """Returns the name of the folder of a site's store."""
    return f"site-{site}"


def site_of_records(store: RecordStore, sites: int, skew: float) -> np.ndarray:
    """Assigns every record of a store to a site.

    Args:
        store: Store to divide. The sites that the result gives for held-out records have no meaning.
        sites: Number of sites, at least 2.
        skew: Probability that a record goes to its home site, 0 (all sites have the same mix of classes) to 1 (no two sites
            share a class). Classes are those of the store's first label: the home site of class c is c modulo `sites`, and a
            record without a class goes to a site drawn uniformly. In a store without labels, a hash of the first three words of
            the first caption takes the place of c.

    Returns:
        The sites, ``(N,)`` int64, 0 .. sites - 1, by index in the store.

    Raises:
        UserError: If there are fewer than two sites, if the skew is not a probability, if the skew is above 0 and the store has
            neither labels nor captions, or if the skew is above 0 and a unit has training records of several home sites.
    """
    if sites < 2:
        raise UserError(f"a store is divided among at least 2 sites, got {sites}; give more sites. [store-few-sites]")
    if not 0 <= skew <= 1:
        raise UserError(
            f"the skew must lie between 0 (all sites have the same mix of labels) and 1 (no label shared), got {skew}. "
            "[store-skew-range]"
        )
    keys = store.keys if store.units is None else store.units
    uniforms = _PUBLIC.per_record("site", 0, keys, 2)
    anywhere = (uniforms[:, 1] * sites).astype(np.int64)
    if skew == 0:
        return anywhere
    by = next(iter(store.labels), "caption")
    if by == "caption" and store.kind != "image-text":
        raise UserError(f"{store.name} has neither labels nor captions to divide by: set the skew to 0. [store-skew-labels]")
    traits = _traits(store, by)
    home = np.where(traits < 0, -1, traits % sites)
    _refuse_torn_units(store, home, by)
    return np.where((uniforms[:, 0] < skew) & (home >= 0), home, anywhere)


def divide_store(
    source: str | Path, dest: str | Path, sites: int, skew: float, progress: Callable[[int, int | None], None] | None = None
) -> list[RecordStore]:
    """Writes a store for each site, and one store for the evaluation. If an error is raised, none of these stores exists.

    ``site-0``, ``site-1``, ... hold the training records of one site each, and nothing else; ``evaluation`` holds the held-out
    records, and no training record. Keys, ids, labels, units, captions and images are those of the source, in its order.

    Args:
        source: Store to divide.
        dest: Directory to create for the new stores; it must not exist.
        sites: Number of sites, see `site_of_records`.
        skew: Probability that a record goes to its home site, see `site_of_records`.
        progress: Callback that receives (records written so far, all records).

    Returns:
        The stores of the sites, in order, followed by the evaluation's store.

    Raises:
        UserError: If `site_of_records` raises one, there are more than 4,096 sites, a site or the evaluation would have no
            record, the source cannot be read, `dest` exists or cannot be written, or another process is writing there.
    """
    sites, path = (
        whole_number(sites, "the number of sites", least=2, most=MOST_SITES),
        local_path(dest, "the place of the sites' stores"),
    )
    refuse_existing(path)
    store = RecordStore.open(local_path(source, "the store to divide"))
    part_of_record = site_of_records(store, sites, skew)
    for split in SPLITS[1:]:
        part_of_record[store.split(split)] = sites  # the last part
    _refuse_empty(store, np.bincount(part_of_record, minlength=sites + 1))
    names = [*map(site_folder, range(sites)), EVALUATION]
    try:
        with claimed(path), whole_directory(path) as partial:
            _write_parts(store, [partial / name for name in names], part_of_record, progress)
            for part, name in enumerate(names):
                _write_header(store, np.flatnonzero(part_of_record == part), partial / name)
                _add_contents(partial / name)
    except OSError as error:
        raise cannot_write(path, error) from error
    return [RecordStore.open(path / name) for name in names]


def _traits(store: RecordStore, by: str) -> np.ndarray:
    """Returns the number that decides each record's home site, ``(N,)`` int64.

    Args:
        store: Store to divide.
        by: Name of a label: the number is the record's class (-1: none). With any other name, it is a hash of the first words
            of the record's first caption.
    """
    if by in store.labels:
        return store.labels[by]
    traits = np.empty(len(store), np.int64)
    for indices, batch in store.batches:
        openings = (" ".join(texts[0].lower().split()[:_OPENING_WORDS]) for texts in batch["captions"].to_pylist())
        traits[indices] = [record_key(opening) >> 1 for opening in openings]  # 63 bits: never negative
    return traits


def _refuse_torn_units(store: RecordStore, home: np.ndarray, by: str) -> None:
    if store.units is None:
        return
    indices = store.split("train")
    units, home = store.units[indices], home[indices]
    order = np.lexsort((home, units))
    if ((np.diff(units[order]) == 0) & (np.diff(home[order]) != 0)).any():
        raise UserError(
            f"all records of one {store.unit_name} must go to the same site, but some of them differ in their {by}, which "
            "decides the site: set the skew to 0, or import the records with a first label that is equal for all records of a "
            f"{store.unit_name}. [unit-divided]"
        )


def _refuse_empty(store: RecordStore, records: np.ndarray) -> None:
    if records[-1] == 0:
        raise UserError(
            f"{store.name} has no held-out records; import the data again with --validation or --test and a number. "
            "[store-held-out]"
        )
    for site, count in enumerate(records[:-1].tolist()):
        if count == 0:
            raise UserError(
                f"site {site} of {len(records) - 1} would get none of the training records of {store.name}: choose fewer "
                "sites, or a smaller skew. [store-empty-site]"
            )


def _write_header(store: RecordStore, indices: np.ndarray, folder: Path) -> None:
    splits = {split: np.intersect1d(indices, store.split(split)) for split in SPLITS}
    header = read_layout(store.path).header | {
        "records": len(indices),
        "splits": {split: len(rows) for split, rows in splits.items()},
        **({} if store.units is None else {"training_units": len(np.unique(store.units[splits["train"]]))}),
        "skipped": [],  # records that were left out when the source was written belong to no site
        "contents": {"fingerprint": ""},  # the source's fingerprint does not apply; `_add_contents` computes the part's own
        "files": {name: (folder / name).stat().st_size for name in (INDEX, RECORDS)},
    }
    header.pop("left_out", None)
    (folder / HEADER).write_text(json.dumps(header, indent=1), encoding="utf-8")


def _add_contents(folder: Path) -> None:
    """Computes the fingerprint of a part's new store, with a new key, and writes it into the header of that store."""
    store, header = RecordStore.open(folder), read_layout(folder).header
    header["contents"] = contents_of(store, new_key(store.public))
    (folder / HEADER).write_text(json.dumps(header, indent=1), encoding="utf-8")


def _write_parts(
    store: RecordStore,
    folders: Sequence[Path],
    part_of_record: np.ndarray,
    progress: Callable[[int, int | None], None] | None = None,
) -> None:
    """Copies each record of a store into one of several folders. Each folder gets an index and a file of records.

    Images, captions and ids are copied as they are stored, and records keep their order.

    Args:
        store: Store to copy from.
        folders: Folders to create, one for each part.
        part_of_record: Number of the part that each record goes to, ``(N,)`` integers.
        progress: Callback that receives (records written so far, all records).
    """
    order = np.argsort(part_of_record.astype(np.uint16), kind="stable")  # numpy sorts 16-bit integers by counting
    ends = np.cumsum(np.bincount(part_of_record, minlength=len(folders)))
    for folder, rows, end in zip(folders, np.split(order, ends[:-1]), ends.tolist(), strict=True):
        folder.mkdir()
        batches = _write_records(store, rows, folder / RECORDS)
        write_index(folder / INDEX, store.index.table.take(pa.array(rows)), batches)
        if progress is not None:
            progress(end, len(store))


def _write_records(store: RecordStore, rows: np.ndarray, file: Path) -> list[int]:
    """Copies records of a store to a new file, in batches of some megabytes.

    Args:
        store: Store to copy from.
        rows: Rows of the records, ``(n,)``.
        file: File to create.

    Returns:
        The number of records in each batch.
    """
    waiting: list[pa.RecordBatch] = []
    lengths: list[int] = []
    schema = records_schema(store.size)
    with pa.ipc.new_file(str(file), schema) as writer:

        def write_waiting() -> None:
            for batch in pa.Table.from_batches(waiting, schema).combine_chunks().to_batches():
                writer.write_batch(batch)
                lengths.append(len(batch))
            waiting.clear()

        for _, batch, local in store.batches.holding(rows):
            waiting.append(batch.take(pa.array(local)))
            if sum(map(len, waiting)) >= _BATCH_RECORDS or sum(part.nbytes for part in waiting) >= _BATCH_BYTES:
                write_waiting()
        write_waiting()
    return lengths
