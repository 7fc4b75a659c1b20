"""A source in pieces that any process can read, and the volumes that they are imported into.

Which pieces make a volume follows from their sizes alone. So a store is the same however many processes write it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dpfed.data.importers.access import Access
from dpfed.data.importers.source import FileRecord, Item, Piece, Source, Unreadable, content_hash
from dpfed.data.processes import Tell
from dpfed.data.store.layout import volume_files
from dpfed.data.store.record import record_key
from dpfed.data.store.volume import Form, Volume, VolumeWriter
from dpfed.data.store.writing import StoreWriter, ids_at, repeats

Progress = Callable[[int, int | None], None]  # (records so far, of how many)

_SMALLEST = 16 << 20  # bytes of the sources of a volume
_MOST = 256  # volumes, and some more where pieces are large
_TOLD = 256  # records between two reports
_COPY = re.compile(r"(.*)\+\d+", re.DOTALL)


def volumes_of(pieces: Sequence[Piece]) -> list[tuple[Piece, ...]]:
    """The pieces of each volume, in order."""
    least = max(_SMALLEST, sum(piece.size for piece in pieces) // _MOST)
    volumes: list[tuple[Piece, ...]] = [()]
    held = 0
    for piece in pieces:
        if held >= least:
            volumes.append(())
            held = 0
        volumes[-1] += (piece,)
        held += piece.size
    return volumes


@dataclass(frozen=True)
class Job:
    """What a process needs to write a volume.

    Attributes:
        file: of its records.
        pieces: what it holds.
        form: of the store.
        key: of its fingerprint.
        access: which files may be read.
        by_content: name records by what they hold; the beginning of a name is the split's where the source names them, too.
        named: the source names its records.
        taken: ids of records of earlier volumes -> how many have them.
    """

    file: Path
    pieces: tuple[Piece, ...]
    form: Form
    key: bytes
    access: Access
    by_content: bool
    named: bool
    taken: dict[str, int]


def write_volume(job: Job, tell: Tell) -> Volume:
    """Writes a volume."""
    writer = VolumeWriter(job.file, job.form, job.key, job.taken)
    try:
        records = itertools.chain.from_iterable(piece.records() for piece in job.pieces)
        store_records(records, writer, job.access, job.by_content, job.named, job.form, tell)
        return writer.finish()
    finally:
        writer.close()


def store_records(
    records: Iterator[Item],
    writer: VolumeWriter | StoreWriter,
    access: Access,
    by_content: bool,
    named: bool,
    form: Form,
    tell: Tell,
) -> int:
    """Gives the records of a source to a writer; see `Job`.

    Returns:
        How many there were, with those that cannot be read.
    """
    done = 0
    for done, item in enumerate(records, start=1):  # noqa: B007 - the count is read after the loop
        record = item.read(access) if isinstance(item, FileRecord) else item
        if isinstance(record, Unreadable):
            writer.reject(record.id, record.reason)
        elif by_content:
            beginning = f"{record.split}/" if named else record.id
            name = writer.counted(beginning + content_hash(record, form.label_names))
            writer.add(replace(record, id=name, place=record.place or record.id))
        else:
            writer.add(record)
        if done % _TOLD == 0:
            tell(done)
    return done


def taken_before(folder: Path, files: Sequence[str], volumes: Sequence[Volume]) -> dict[int, dict[str, int]]:
    """Which volumes hold records that earlier ones hold as well, where records are named by what they hold.

    Args:
        folder: of the files.
        files: of records, one for each volume.
        volumes: in order.

    Returns:
        Volume -> ids -> how many records of earlier volumes have them.
    """
    starts = np.cumsum([0] + [len(volume.numbers) for volume in volumes])
    keys = [volume.numbers["key"].to_numpy() for volume in volumes]
    found, names = repeats(np.concatenate(keys)), set()
    for which, (start, end) in enumerate(itertools.pairwise(starts)):
        own = found[(found >= start) & (found < end)] - start
        for id in ids_at(folder / files[which], volumes[which], own):
            names.add(copied[1] if (copied := _COPY.fullmatch(id)) else id)
    before, taken = dict.fromkeys(names, 0), {}
    by_key = {record_key(name): name for name in names}
    wanted = np.array(sorted(by_key), np.uint64)
    for which, volume in enumerate(volumes):
        here = {by_key[int(key)] for key in wanted[np.isin(wanted, keys[which])]} | (volume.copies.keys() & names)
        if own_taken := {name: before[name] for name in sorted(here) if before[name]}:
            taken[which] = own_taken
        for name in here:
            before[name] += volume.copies.get(name, 1)
    return taken


def write_volumes(
    folder: Path, source: Source, form: Form, key: bytes, access: Access, by_content: bool, progress: Progress | None
) -> list[Volume]:
    """Writes the files of records of a source in pieces.

    Args:
        folder: of the files.
        source: opened.
        form: of the store.
        key: of its fingerprint.
        access: which files may be read, and the processes that read them.
        by_content: see `Job`.
        progress: called now and then with (records so far, of how many).

    Returns:
        The volumes, in order.
    """
    parts = volumes_of(source.pieces)
    files, elsewhere = volume_files(len(parts)), access.elsewhere()
    taken: dict[int, dict[str, int]] = {}
    volumes: dict[int, Volume] = {}

    def write(numbers: Sequence[int], progress: Progress | None) -> None:
        jobs = [
            Job(folder / files[one], parts[one], form, key, elsewhere, by_content, source.named, taken.get(one, {}))
            for one in numbers
        ]
        known = dict.fromkeys(numbers, 0)

        def told(which: int, done: int) -> None:
            known[numbers[which]] = done
            if progress is not None:
                progress(sum(known.values()), source.total)

        for which, volume in access.processes.each(write_volume, jobs, told):
            volumes[numbers[which]] = volume
            told(which, volume.met)

    write(range(len(parts)), progress)
    while by_content and len(parts) > 1:  # equal records are named apart
        found = taken_before(folder, files, [volumes[one] for one in range(len(parts))])
        again = {number: own for number, own in found.items() if own != taken.get(number)}
        if not again:
            break
        taken |= again
        write(sorted(again), None)
    return [volumes[one] for one in range(len(parts))]
